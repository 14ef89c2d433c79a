// 16 rows of a paged cache as float32, from bfloat16 or E4M3 codes: transposed for scores, as they
// are for values. Included once per target (Highway's foreach_target).
#if defined(EYRIE_OPS_CPU_CACHE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EYRIE_OPS_CPU_CACHE_TILE_INL_H_
#undef EYRIE_OPS_CPU_CACHE_TILE_INL_H_
#else
#define EYRIE_OPS_CPU_CACHE_TILE_INL_H_
#endif

#include "formats/weight.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eyrie::ops::cpu {
namespace HWY_NAMESPACE {

// The value of the E4M3 code in each lane's lowest byte; higher bytes are ignored. Subnormal codes
// go through a subtraction, as a float32 subnormal would stall the multiplier.
HWY_INLINE VF decode_e4m3(VU w) {
  const VU code = hn::And(w, hn::Set(du, 0x7fu));
  const VU magnitude = hn::ShiftLeft<20>(code);  // the value's bits, but for the exponent's bias
  const VF normal = hn::BitCast(df, hn::Add(magnitude, hn::Set(du, (127u - 7u) << 23)));
  const VF subnormal =  // 2^-6 · (1 + mantissa / 8) - 2^-6
      hn::Sub(hn::BitCast(df, hn::Add(magnitude, hn::Set(du, (127u - 6u) << 23))),
              hn::Set(df, 0x1p-6f));
  const VF value =
      hn::IfThenElse(hn::RebindMask(df, hn::Lt(code, hn::Set(du, 8u))), subnormal, normal);
  const VU nan = hn::VecFromMask(du, hn::Eq(code, hn::Set(du, 0x7fu)));  // all ones
  const VU sign = hn::ShiftLeft<24>(hn::And(w, hn::Set(du, 0x80u)));
  return hn::BitCast(df, hn::Or(hn::Or(hn::BitCast(du, value), nan), sign));
}

// A cache element type: kPerWord of them travel in a 32-bit word, the first in the lowest bits.
template <typename E>
struct Cell;

template <>
struct Cell<bf16> {
  static constexpr int kPerWord = 2;
  template <int kIdx>
  static HWY_INLINE VF from_word(VU w) {
    if constexpr (kIdx == 0) return hn::BitCast(df, hn::ShiftLeft<16>(w));
    return hn::BitCast(df, hn::And(w, hn::Set(du, 0xffff0000u)));
  }
  static HWY_INLINE VF load(const bf16* p) {
    const hn::Rebind<uint16_t, F> du16;
    const auto bits = hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p));
    return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
  }
  static float widen(bf16 x) { return to_float(x); }
};

template <>
struct Cell<uint8_t> {  // E4M3 codes
  static constexpr int kPerWord = 4;
  template <int kIdx>
  static HWY_INLINE VF from_word(VU w) {
    return decode_e4m3(hn::ShiftRight<8 * kIdx>(w));
  }
  static HWY_INLINE VF load(const uint8_t* p) {
    const hn::Rebind<uint8_t, F> du8;
    return decode_e4m3(hn::PromoteTo(du, hn::LoadU(du8, p)));
  }
  static float widen(uint8_t code) { return formats::decode_fp8_e4m3(code); }
};

// Four words from each of kLanes / 4 cache rows: row, row + 4, row + 8 …
template <typename E>
HWY_INLINE VU load_quads(const E* row, int64_t stride) {
  const hn::Full128<uint32_t> d4;
  const auto quad = [&](int i) HWY_ATTR {
    return hn::LoadU(d4, reinterpret_cast<const uint32_t*>(row + 4 * i * stride));
  };
#if HWY_TARGET == HWY_AVX3
  const hn::Full256<uint32_t> d8;
  return hn::Combine(du, hn::Combine(d8, quad(3), quad(2)), hn::Combine(d8, quad(1), quad(0)));
#elif HWY_TARGET == HWY_AVX2
  return hn::Combine(du, quad(1), quad(0));
#else
  return quad(0);
#endif
}

// One word of columns of kLanes positions, to columns [0, kPerWord) of `out`.
template <typename E>
HWY_INLINE void store_columns(VU w, float* out) {
  hn::StoreU(Cell<E>::template from_word<0>(w), df, out);
  hn::StoreU(Cell<E>::template from_word<1>(w), df, out + 16);
  if constexpr (Cell<E>::kPerWord == 4) {
    hn::StoreU(Cell<E>::template from_word<2>(w), df, out + 32);
    hn::StoreU(Cell<E>::template from_word<3>(w), df, out + 48);
  }
}

// 16 cache rows → transposed[k][position]. Words of columns travel through 4 × 4 transposes within
// 128-bit blocks; the blocks hold every fourth row, so a result is one run of positions.
template <typename E>
HWY_INLINE void transpose_keys(const E* keys, int64_t stride, int width, float* transposed) {
  constexpr int kWord = Cell<E>::kPerWord;
  for (int v = 0; v < kVecs; ++v) {
    const E* row = keys + v * kLanes * stride;
    int k = 0;
    for (; k + 4 * kWord <= width; k += 4 * kWord) {
      const VU a = load_quads(row + k, stride), b = load_quads(row + stride + k, stride);
      const VU c = load_quads(row + 2 * stride + k, stride);
      const VU d = load_quads(row + 3 * stride + k, stride);
      const VU ac0 = hn::InterleaveLower(du, a, c), ac1 = hn::InterleaveUpper(du, a, c);
      const VU bd0 = hn::InterleaveLower(du, b, d), bd1 = hn::InterleaveUpper(du, b, d);
      float* out = transposed + k * 16 + v * kLanes;
      store_columns<E>(hn::InterleaveLower(du, ac0, bd0), out);
      store_columns<E>(hn::InterleaveUpper(du, ac0, bd0), out + kWord * 16);
      store_columns<E>(hn::InterleaveLower(du, ac1, bd1), out + 2 * kWord * 16);
      store_columns<E>(hn::InterleaveUpper(du, ac1, bd1), out + 3 * kWord * 16);
    }
    for (; k < width; ++k) {
      for (int i = 0; i < kLanes; ++i) {
        transposed[k * 16 + v * kLanes + i] = Cell<E>::widen(row[i * stride + k]);
      }
    }
  }
}

template <typename E>
HWY_INLINE void widen_values(const E* values, int64_t stride, int count, int width, float* out) {
  for (int j = 0; j < count; ++j) {
    const E* from = values + j * stride;
    float* row = out + int64_t{j} * width;
    int k = 0;
    for (; k + kLanes <= width; k += kLanes) hn::StoreU(Cell<E>::load(from + k), df, row + k);
    for (; k < width; ++k) row[k] = Cell<E>::widen(from[k]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eyrie::ops::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
