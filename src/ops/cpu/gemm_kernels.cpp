// Outer-product kernels: a register tile holds R rows × 32·G/kVecs outputs, and each step decodes
// one cache line of weights per panel and multiplies it with R broadcast activations. Every output
// element is one lane that accumulates with fused multiply-add over k ascending, whatever R and G
// are: that is the whole proof of batch independence.
#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gemm_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/gemm_decoders-inl.h"
#include "ops/cpu/isa.h"

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

// ---- the register tile --------------------------------------------------------------------------

// A group is one vector of words: kLanes low and kLanes high outputs. Vector group g of a matrix
// lies in panel g / kVecs.
struct GroupPointers {
  const std::byte* words;
  const std::byte* scales;  // of blocks
  int64_t column;           // of the first low output; high ones are 16 further
};

template <typename D>
HWY_INLINE GroupPointers group_pointers(const PanelMatrix& m, int64_t group) {
  const int64_t panel = group / kVecs, sub = group % kVecs;
  const std::byte* p = m.panels + panel * m.panel_bytes;
  return {.words = p + sub * kLanes * 4,
          .scales = p + m.padded_in / D::kStep * D::kStepBytes + sub * kLanes * D::kScaleWordBytes,
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
      for (int g = 0; g < G; ++g) scales[g] = D::scales(p[g].scales);
#pragma GCC unroll 16
      for (int g = 0; g < G; ++g) p[g].scales += D::kScaleBytes;
    } else {
#pragma GCC unroll 16
      for (int g = 0; g < G; ++g) scales[g] = {hn::Zero(df), hn::Zero(df)};
    }
    const int64_t count = HWY_MIN(block, m.padded_in - k0);
    for (int64_t k = 0; k < count; k += D::kStep, offset += D::kStepBytes, x += D::kStep * R) {
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
      if constexpr (D::kOutputScale != 1.0f) {
        low = hn::Mul(low, hn::Set(df, D::kOutputScale));
        high = hn::Mul(high, hn::Set(df, D::kOutputScale));
      }
      if constexpr (D::kRowScales) {
        low = hn::Mul(low, hn::LoadU(df, m.row_scales + p[g].column));
        high = hn::Mul(high, hn::LoadU(df, m.row_scales + p[g].column + 16));
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
    case Encoding::kF16:
      return row_tile_for<DecodeF16>(num_rows)(m, packed, panel_begin, panel_end, out);
    case Encoding::kFp8:
      return row_tile_for<DecodeFp8>(num_rows)(m, packed, panel_begin, panel_end, out);
    case Encoding::kFp8Block:
      return row_tile_for<DecodeFp8Block>(num_rows)(m, packed, panel_begin, panel_end, out);
    case Encoding::kMxfp4:
      return row_tile_for<DecodeMxfp4>(num_rows)(m, packed, panel_begin, panel_end, out);
    case Encoding::kNvfp4:
      return row_tile_for<DecodeNvfp4>(num_rows)(m, packed, panel_begin, panel_end, out);
    case Encoding::kInt4:
      return row_tile_for<DecodeInt4>(num_rows)(m, packed, panel_begin, panel_end, out);
    case Encoding::kMxfp4Int8:
    case Encoding::kNvfp4Int8:
    case Encoding::kInt4Int8:
      break;  // int8_kernels.cpp
  }
}

// Four rows at a time through 4 × 4 transposes of 128-bit vectors, the rest one by one.
void pack(const PanelMatrix& m, const float* const* rows, int num_rows, float* packed) {
  const hn::Full128<float> d4;
  const bool is_small_float = m.encoding == Encoding::kF16 || m.encoding == Encoding::kFp8 ||
                              m.encoding == Encoding::kFp8Block;
  const float scale = is_small_float ? kSmallFloatInputScale : 1.0f;
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
