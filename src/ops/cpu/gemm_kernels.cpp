// Outer-product kernels: a register tile holds R rows × 32·G/kVecs outputs, and each step decodes
// one cache line of weights per panel and multiplies it with R broadcast activations. Every output
// element is one lane that accumulates with fused multiply-add over k ascending, whatever R and G
// are: that is the whole proof of batch independence.
#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gemm_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eyrie::ops::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr int kRegisters = 32;
inline constexpr int kTileRows = kLanes == 16 ? 12 : 6;
#else
inline constexpr int kRegisters = 16;
inline constexpr int kTileRows = 6;
#endif
static_assert(kTileRows <= kMaxTileRows);

// Vectors of low and high outputs.
struct Pair {
  VF low, high;
};

// ---- decoders: one kernel step (kSteps of k) of kLanes words ------------------------------------
// kBlock is the k after which scales change (0: never). Words is what a step loads once.

struct DecodeF32 {
  static constexpr int kStep = 1, kBlock = 0, kStepBytes = 128;
  struct Words {
    VF low, high;
  };
  static HWY_INLINE Words load(const std::byte* p) {
    const auto* f = reinterpret_cast<const float*>(p);
    return {hn::LoadU(df, f), hn::LoadU(df, f + 16)};
  }
  template <int kK>
  static HWY_INLINE Pair decode(const Words& w, const Pair&) {
    return {w.low, w.high};
  }
};

struct DecodeBf16 {
  static constexpr int kStep = 1, kBlock = 0, kStepBytes = 64;
  using Words = VU;
  static HWY_INLINE Words load(const std::byte* p) {
    return hn::LoadU(du, reinterpret_cast<const uint32_t*>(p));
  }
  template <int kK>
  static HWY_INLINE Pair decode(Words w, const Pair&) {
    return {hn::BitCast(df, hn::ShiftLeft<16>(w)),
            hn::BitCast(df, hn::And(w, hn::Set(du, 0xffff0000u)))};
  }
};

// An E4M3 code moved to the top of a float32 is the value times 2^-120, subnormals included. pack()
// multiplies the activations by 2^64 and the row's scale brings back the other 2^56, so that no
// weight needs a multiplication; products stay exact from 2^-70 to 2^63.
inline constexpr float kFp8InputScale = 0x1p64f, kFp8OutputScale = 0x1p56f;

struct DecodeFp8 {
  static constexpr int kStep = 2, kBlock = 0, kStepBytes = 64;
  using Words = VI;
  static HWY_INLINE Words load(const std::byte* p) {
    return hn::LoadU(di, reinterpret_cast<const int32_t*>(p));
  }
  template <int kByte>
  static HWY_INLINE VF decode_byte(Words w) {
    const VI top = hn::ShiftLeft<24 - 8 * kByte>(w);
    return hn::BitCast(
        df, hn::And(hn::ShiftRight<4>(top), hn::Set(di, static_cast<int32_t>(0x87f00000u))));
  }
  template <int kK>
  static HWY_INLINE Pair decode(Words w, const Pair&) {
    return {decode_byte<2 * kK>(w), decode_byte<2 * kK + 1>(w)};
  }
};

HWY_ALIGN inline constexpr float kFp4Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                   4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                   -2.0f, -3.0f, -4.0f, -6.0f};
HWY_ALIGN inline constexpr int8_t kFp4Doubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                     0, -1, -2, -3, -4, -6, -8, -12};

struct DecodeMxfp4 {
  static constexpr int kStep = 4, kBlock = 32, kStepBytes = 64;
  // The block's scales, 2^(byte - 127) each. Scale byte 0 (2^-127, blocks of zeros) decodes as 0.
  static HWY_INLINE Pair scales(const std::byte* p) {
    const hn::Rebind<uint16_t, F> du16;
    const VU w = hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p)));
    const VF low = hn::BitCast(df, hn::ShiftLeft<23>(hn::And(w, hn::Set(du, 255u))));
    const VF high = hn::BitCast(df, hn::ShiftLeft<23>(hn::ShiftRight<8>(w)));
    const VF unit = hn::Set(df, kLanes == 16 ? 1.0f : 0.5f);  // the byte table holds 2 · value
    return {hn::Mul(low, unit), hn::Mul(high, unit)};
  }
#if HWY_TARGET == HWY_AVX3
  using Words = VU;
  static HWY_INLINE Words load(const std::byte* p) {
    return hn::LoadU(du, reinterpret_cast<const uint32_t*>(p));
  }
  template <int kNibble>
  static HWY_INLINE VF lookup(Words w) {
    VU index = kNibble == 0 ? w : hn::ShiftRight<4 * kNibble>(w);
#if HWY_IS_DEBUG_BUILD
    index = hn::And(index, hn::Set(du, 15u));  // the instruction itself ignores the upper bits
#endif
    return hn::TableLookupLanes(hn::Load(df, kFp4Values), hn::IndicesFromVec(df, index));
  }
  template <int kK>
  static HWY_INLINE Pair decode(Words w, const Pair& scale) {
    return {hn::Mul(lookup<2 * kK>(w), scale.low), hn::Mul(lookup<2 * kK + 1>(w), scale.high)};
  }
#else
  struct Words {
    VI low, high;  // bytes: 2 · value of k, k+1, k+2, k+3
  };
  static HWY_INLINE Words load(const std::byte* p) {
    const hn::Repartition<uint8_t, F> d8;
    const auto w = hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p));
    const auto mask = hn::Set(d8, uint8_t{15});
    const auto table = hn::LoadDup128(d8, reinterpret_cast<const uint8_t*>(kFp4Doubled));
    const auto upper = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(du, w)));
    return {hn::BitCast(di, hn::TableLookupBytes(table, hn::And(w, mask))),
            hn::BitCast(di, hn::TableLookupBytes(table, hn::And(upper, mask)))};
  }
  template <int kK>
  static HWY_INLINE VF signed_byte(VI w) {
    return hn::ConvertTo(df, hn::ShiftRight<24>(hn::ShiftLeft<24 - 8 * kK>(w)));
  }
  template <int kK>
  static HWY_INLINE Pair decode(const Words& w, const Pair& scale) {
    return {hn::Mul(signed_byte<kK>(w.low), scale.low),
            hn::Mul(signed_byte<kK>(w.high), scale.high)};
  }
#endif
};

// ---- the register tile --------------------------------------------------------------------------

// A group is one vector of words: kLanes low and kLanes high outputs. Vector group g of a matrix
// lies in panel g / kVecs.
struct GroupPointers {
  const std::byte* words;
  const std::byte* scales;  // mxfp4
  int64_t column;           // of the first low output; high ones are 16 further
};

template <typename D>
HWY_INLINE GroupPointers group_pointers(const PanelMatrix& m, int64_t group) {
  const int64_t panel = group / kVecs, sub = group % kVecs;
  const std::byte* p = m.panels + panel * m.panel_bytes;
  return {.words = p + sub * kLanes * 4,
          .scales = p + m.padded_in / D::kStep * D::kStepBytes + sub * kLanes * 2,
          .column = panel * kPanel + sub * kLanes};
}

HWY_INLINE void store_outputs(VF v, float* out, int64_t column, int64_t columns) {
  if (column + kLanes <= columns) {
    hn::StoreU(v, df, out + column);
  } else if (column < columns) {
    store_some(v, out + column, static_cast<int>(columns - column));
  }
}

template <int kK, typename D, int R, int G>
HWY_INLINE void multiply_add(const typename D::Words (&words)[G], const Pair (&scales)[G],
                             const float* x, VF (&acc)[R][2 * G]) {
  Pair w[G];
#pragma GCC unroll 16
  for (int g = 0; g < G; ++g) w[g] = D::template decode<kK>(words[g], scales[g]);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const VF xr = hn::Set(df, x[kK * R + r]);
#pragma GCC unroll 16
    for (int g = 0; g < G; ++g) {
      acc[r][2 * g] = hn::MulAdd(xr, w[g].low, acc[r][2 * g]);
      acc[r][2 * g + 1] = hn::MulAdd(xr, w[g].high, acc[r][2 * g + 1]);
    }
  }
}

// Rows [0, R) × groups [group, group + G).
template <typename D, int R, int G>
void tile(const PanelMatrix& m, const float* x, int64_t group, float* const* out) {
  GroupPointers p[G];
  for (int g = 0; g < G; ++g) p[g] = group_pointers<D>(m, group + g);
  VF acc[R][2 * G];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int g = 0; g < 2 * G; ++g) acc[r][g] = hn::Zero(df);
  }
  // Small panels are over before the hardware's prefetcher has found their stream, so the same
  // place of the next panels is asked for; large ones a little ahead. One row has no time to spare:
  // cached weights took half as long again.
  constexpr int64_t kSmallPanel = 32 * 1024, kAhead = 2048;
  [[maybe_unused]] const int64_t ahead =
      m.panel_bytes <= kSmallPanel ? (G + kVecs - 1) / kVecs * m.panel_bytes : kAhead;
  Pair scales[G];
  const int64_t block = D::kBlock == 0 ? m.padded_in : D::kBlock;
  int64_t offset = 0;
  for (int64_t k0 = 0; k0 < m.padded_in; k0 += block) {
    if constexpr (D::kBlock != 0) {
#pragma GCC unroll 16
      for (int g = 0; g < G; ++g) scales[g] = D::scales(p[g].scales + k0 / D::kBlock * kPanel);
    } else {
#pragma GCC unroll 16
      for (int g = 0; g < G; ++g) scales[g] = {hn::Zero(df), hn::Zero(df)};
    }
    for (int64_t k = 0; k < block; k += D::kStep, offset += D::kStepBytes, x += D::kStep * R) {
      typename D::Words words[G];
#pragma GCC unroll 16
      for (int g = 0; g < G; ++g) {
        words[g] = D::load(p[g].words + offset);
        if constexpr (R > 1) __builtin_prefetch(p[g].words + offset + ahead);
      }
      multiply_add<0, D, R, G>(words, scales, x, acc);
      if constexpr (D::kStep > 1) multiply_add<1, D, R, G>(words, scales, x, acc);
      if constexpr (D::kStep > 2) {
        multiply_add<2, D, R, G>(words, scales, x, acc);
        multiply_add<3, D, R, G>(words, scales, x, acc);
      }
    }
  }
#pragma GCC unroll 16
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      VF low = acc[r][2 * g], high = acc[r][2 * g + 1];
      if (m.row_scales != nullptr) {
        const VF unit = hn::Set(df, kFp8OutputScale);
        low = hn::Mul(hn::Mul(low, unit), hn::LoadU(df, m.row_scales + p[g].column));
        high = hn::Mul(hn::Mul(high, unit), hn::LoadU(df, m.row_scales + p[g].column + 16));
      }
      store_outputs(low, out[r], p[g].column, m.out);
      store_outputs(high, out[r], p[g].column + 16, m.out);
    }
  }
}

// Groups of a tile of R rows: as many as leave registers for the weights and a broadcast.
constexpr int groups_for(int rows) {
  const int g = (kRegisters - 4) / (2 * (rows + 1));
  return g < 1 ? 1 : g > 4 ? 4 : g;
}

template <typename D, int R>
void row_tile(const PanelMatrix& m, const float* packed, int64_t panel_begin, int64_t panel_end,
              float* const* out) {
  constexpr int G = groups_for(R);
  int64_t group = panel_begin * kVecs;
  const int64_t end = panel_end * kVecs;
  for (; group + G <= end; group += G) tile<D, R, G>(m, packed, group, out);
  if constexpr (G > 1) {
    for (; group < end; ++group) tile<D, R, 1>(m, packed, group, out);
  }
}

using RowTile = void (*)(const PanelMatrix&, const float*, int64_t, int64_t, float* const*);

template <typename D>
RowTile row_tile_for(int rows) {
  static constexpr RowTile kTiles[] = {
    row_tile<D, 1>,
    row_tile<D, 2>,
    row_tile<D, 3>,
    row_tile<D, 4>,
    row_tile<D, 5>,
    row_tile<D, 6>,
#if HWY_TARGET == HWY_AVX3
    row_tile<D, 7>,
    row_tile<D, 8>,
    row_tile<D, 9>,
    row_tile<D, 10>,
    row_tile<D, 11>,
    row_tile<D, 12>,
#endif
  };
  static_assert(sizeof(kTiles) / sizeof(kTiles[0]) == kTileRows);
  return kTiles[rows - 1];
}

void panels(const PanelMatrix& m, const float* packed, int num_rows, int64_t panel_begin,
            int64_t panel_end, float* const* out) {
  switch (m.encoding) {
    case Encoding::kF32:
      return row_tile_for<DecodeF32>(num_rows)(m, packed, panel_begin, panel_end, out);
    case Encoding::kBf16:
      return row_tile_for<DecodeBf16>(num_rows)(m, packed, panel_begin, panel_end, out);
    case Encoding::kFp8:
      return row_tile_for<DecodeFp8>(num_rows)(m, packed, panel_begin, panel_end, out);
    case Encoding::kMxfp4:
      return row_tile_for<DecodeMxfp4>(num_rows)(m, packed, panel_begin, panel_end, out);
  }
}

// Four rows at a time through 4 × 4 transposes of 128-bit vectors, the rest one by one.
void pack(const PanelMatrix& m, const float* const* rows, int num_rows, float* packed) {
  const hn::Full128<float> d4;
  const float scale = m.encoding == Encoding::kFp8 ? kFp8InputScale : 1.0f;
  const auto scale4 = hn::Set(d4, scale);
  int r = 0;
  for (; r + 4 <= num_rows; r += 4) {
    const float* const* q = rows + r;
    const auto load = [&](int i, int64_t k)
                          HWY_ATTR { return hn::Mul(hn::LoadU(d4, q[i] + k), scale4); };
    int64_t k = 0;
    for (; k + 4 <= m.in; k += 4) {
      const auto a = load(0, k), b = load(1, k), c = load(2, k), d = load(3, k);
      const auto ac0 = hn::InterleaveLower(d4, a, c), ac1 = hn::InterleaveUpper(d4, a, c);
      const auto bd0 = hn::InterleaveLower(d4, b, d), bd1 = hn::InterleaveUpper(d4, b, d);
      float* out = packed + k * num_rows + r;
      hn::StoreU(hn::InterleaveLower(d4, ac0, bd0), d4, out);
      hn::StoreU(hn::InterleaveUpper(d4, ac0, bd0), d4, out + num_rows);
      hn::StoreU(hn::InterleaveLower(d4, ac1, bd1), d4, out + 2 * num_rows);
      hn::StoreU(hn::InterleaveUpper(d4, ac1, bd1), d4, out + 3 * num_rows);
    }
    for (; k < m.in; ++k) {
      for (int i = 0; i < 4; ++i) packed[k * num_rows + r + i] = q[i][k] * scale;
    }
  }
  for (; r < num_rows; ++r) {
    for (int64_t k = 0; k < m.in; ++k) packed[k * num_rows + r] = rows[r][k] * scale;
  }
  for (int64_t i = m.in * num_rows; i < m.padded_in * num_rows; ++i) packed[i] = 0.0f;
}

const GemmKernels* gemm_table() {
  static constexpr GemmKernels kTable{.max_rows = kTileRows, .pack = pack, .panels = panels};
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace eyrie::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eyrie::ops::cpu {
HWY_EXPORT(gemm_table);
const GemmKernels& gemm_kernels() {
  init_isa();
  return *HWY_DYNAMIC_DISPATCH(gemm_table)();
}
}  // namespace eyrie::ops::cpu
#endif
