// Outer-product kernels: a register tile holds R rows × 32·G/kVecs outputs, and each step decodes
// one cache line of weights per panel and multiplies it with R broadcast activations. Every output
// element is one lane that accumulates with fused multiply-add over k ascending, whatever R and G
// are: that is the whole proof of batch independence. (Pairs of bfloat16: two k at a time, the
// second first.)
#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gemm_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <bit>

#include "base/math.h"
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

#if HWY_TARGET == HWY_AVX3
template <int R, int G>
HWY_INLINE void multiply_pairs(const DotBf16Pairs::Words (&words)[G], const float* x,
                               VF (&acc)[R][2 * G]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const VU pair = hn::BitCast(du, hn::Set(df, x[r]));
#pragma GCC unroll 16
    for (int g = 0; g < G; ++g) {
      acc[r][2 * g] = DotBf16Pairs::add_product(acc[r][2 * g], words[g].low, pair);
      acc[r][2 * g + 1] = DotBf16Pairs::add_product(acc[r][2 * g + 1], words[g].high, pair);
    }
  }
}
#endif

// Of a step; x: its activations.
template <typename D, int R, int G>
HWY_INLINE void multiply_step(const typename D::Words (&words)[G], const Pair (&scales)[G],
                              const float* x, VF (&acc)[R][2 * G]) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (D::kDots) return multiply_pairs<R, G>(words, x, acc);
#endif
  if constexpr (D::kLastFirst) multiply_add<1, D, R, G>(words, scales, x, acc);
  multiply_add<0, D, R, G>(words, scales, x, acc);
  if constexpr (D::kStep > 1 && !D::kLastFirst) multiply_add<1, D, R, G>(words, scales, x, acc);
  if constexpr (D::kStep > 2) {
    multiply_add<2, D, R, G>(words, scales, x, acc);
    multiply_add<3, D, R, G>(words, scales, x, acc);
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
    constexpr int kWordsOfStep = D::kDots ? 1 : D::kStep;
    for (int64_t k = 0; k < count; k += D::kStep, offset += D::kStepBytes, x += kWordsOfStep * R) {
      typename D::Words words[G];
#pragma GCC unroll 16
      for (int g = 0; g < G; ++g) {
        words[g] = D::load(p[g].words + offset);
        if constexpr (R > 1) __builtin_prefetch(p[g].words + offset + ahead);
      }
      multiply_step<D, R, G>(words, scales, x, acc);
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

// kDots: with the processor's dot product of bfloat16.
template <bool kDots>
void panels(const PanelMatrix& m, const float* packed, int num_rows, int64_t panel_begin,
            int64_t panel_end, float* const* out) {
  switch (m.encoding) {
    case Encoding::kBf16Pairs:
#if HWY_TARGET == HWY_AVX3
      if constexpr (kDots) {
        return row_tile_for<DotBf16Pairs>(num_rows)(m, packed, panel_begin, panel_end, out);
      }
#endif
      return row_tile_for<DecodeBf16Pairs>(num_rows)(m, packed, panel_begin, panel_end, out);
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

// ---- activations --------------------------------------------------------------------------------

using F4 = hn::Full128<float>;
using U4 = hn::Full128<uint32_t>;
using V4 = hn::Vec<F4>;
constexpr F4 d4;
constexpr U4 du4;

// Ways to bring a row into words that are broadcast: four words of a vector from place j on, and
// one.
struct Scaled {
  static constexpr int kPerWord = 1;
  float scale;
  HWY_INLINE V4 four(const float* x, int64_t j) const {
    return hn::Mul(hn::LoadU(d4, x + j), hn::Set(d4, scale));
  }
  float one(const float* x, int64_t j, int64_t) const { return x[j] * scale; }
};

// Bfloat16 in the upper half, nearest, ties to even; NaN stays one (tensor/dtype.h).
HWY_INLINE hn::Vec<U4> round_bf16(V4 x) {
  const auto u = hn::BitCast(du4, x), top = hn::Set(du4, 0xffff0000u);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du4, 1u));
  const auto rounded = hn::Add(hn::Add(u, hn::Set(du4, 0x7fffu)), odd);
  const auto quiet = hn::Or(u, hn::Set(du4, 0x400000u));
  const auto is_nan = hn::RebindMask(du4, hn::IsNaN(x));
  return hn::And(hn::IfThenElse(is_nan, quiet, rounded), top);
}

struct Rounded {
  static constexpr int kPerWord = 1;
  HWY_INLINE V4 four(const float* x, int64_t j) const {
    return hn::BitCast(d4, round_bf16(hn::LoadU(d4, x + j)));
  }
  float one(const float* x, int64_t j, int64_t) const { return to_float(to_bf16(x[j])); }
};

struct RoundedPairs {
  static constexpr int kPerWord = 2;
  HWY_INLINE V4 four(const float* x, int64_t j) const {
    const auto a = round_bf16(hn::LoadU(d4, x + 2 * j));
    const auto b = round_bf16(hn::LoadU(d4, x + 2 * j + 4));
    return hn::BitCast(
        d4, hn::Or(hn::ShiftRight<16>(hn::ConcatEven(du4, b, a)), hn::ConcatOdd(du4, b, a)));
  }
  float one(const float* x, int64_t j, int64_t n) const {
    const uint32_t low = to_bf16(x[2 * j]).bits;
    const uint32_t high = 2 * j + 1 < n ? to_bf16(x[2 * j + 1]).bits : 0;
    return std::bit_cast<float>(high << 16 | low);
  }
};

// Four rows at a time through 4 × 4 transposes of 128-bit vectors, the rest one by one.
template <typename Way>
void pack_words(const PanelMatrix& m, const float* const* rows, int num_rows, float* packed,
                const Way& way) {
  const int64_t num_words = div_ceil(m.in, Way::kPerWord);
  const int64_t num_whole = m.in / Way::kPerWord;
  int r = 0;
  for (; r + 4 <= num_rows; r += 4) {
    const float* const* q = rows + r;
    int64_t j = 0;
    for (; j + 4 <= num_whole; j += 4) {
      const V4 a = way.four(q[0], j), b = way.four(q[1], j);
      const V4 c = way.four(q[2], j), d = way.four(q[3], j);
      const auto ac0 = hn::InterleaveLower(d4, a, c), ac1 = hn::InterleaveUpper(d4, a, c);
      const auto bd0 = hn::InterleaveLower(d4, b, d), bd1 = hn::InterleaveUpper(d4, b, d);
      float* out = packed + j * num_rows + r;
      hn::StoreU(hn::InterleaveLower(d4, ac0, bd0), d4, out);
      hn::StoreU(hn::InterleaveUpper(d4, ac0, bd0), d4, out + num_rows);
      hn::StoreU(hn::InterleaveLower(d4, ac1, bd1), d4, out + 2 * num_rows);
      hn::StoreU(hn::InterleaveUpper(d4, ac1, bd1), d4, out + 3 * num_rows);
    }
    for (; j < num_words; ++j) {
      for (int i = 0; i < 4; ++i) packed[j * num_rows + r + i] = way.one(q[i], j, m.in);
    }
  }
  for (; r < num_rows; ++r) {
    for (int64_t j = 0; j < num_words; ++j) packed[j * num_rows + r] = way.one(rows[r], j, m.in);
  }
  const int64_t end = m.padded_in / Way::kPerWord * num_rows;
  for (int64_t i = num_words * num_rows; i < end; ++i) packed[i] = 0.0f;
}

template <bool kDots>
void pack(const PanelMatrix& m, const float* const* rows, int num_rows, float* packed) {
  switch (m.encoding) {
    case Encoding::kBf16Pairs:
      if constexpr (kDots) return pack_words(m, rows, num_rows, packed, RoundedPairs{});
      return pack_words(m, rows, num_rows, packed, Rounded{});
    case Encoding::kF16:
    case Encoding::kFp8:
    case Encoding::kFp8Block:
      return pack_words(m, rows, num_rows, packed, Scaled{kSmallFloatInputScale});
    default:
      return pack_words(m, rows, num_rows, packed, Scaled{1.0f});
  }
}

const GemmKernels* gemm_table() {
  static constexpr GemmKernels kTable{
      .max_rows = kTileRows, .pack = pack<false>, .panels = panels<false>};
#if HWY_TARGET == HWY_AVX3
  static constexpr GemmKernels kDotTable{
      .max_rows = kTileRows, .pack = pack<true>, .panels = panels<true>};
  if (uses_avx512_bf16()) return &kDotTable;
#endif
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
