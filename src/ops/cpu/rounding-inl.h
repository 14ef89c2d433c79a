// Rounding to E4M3 and E2M1: codes for an FP8 cache, and activations as hardware with a format's
// arithmetic would see them. Included once per target (Highway's foreach_target).
#if defined(EYRIE_OPS_CPU_ROUNDING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EYRIE_OPS_CPU_ROUNDING_INL_H_
#undef EYRIE_OPS_CPU_ROUNDING_INL_H_
#else
#define EYRIE_OPS_CPU_ROUNDING_INL_H_
#endif

#include <cmath>

#include "formats/weight.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eyrie::ops::cpu {
namespace HWY_NAMESPACE {

// E4M3 code of x, to nearest, ties to even, ±448 at most; infinities and NaN give NaN.
HWY_INLINE VU encode_e4m3(VF x) {
  const VF magnitude = hn::Min(hn::Abs(x), hn::Set(df, 448.0f));
  const VU u = hn::BitCast(du, magnitude);
  const VU odd = hn::And(hn::ShiftRight<20>(u), hn::Set(du, 1u));
  const VU normal = hn::ShiftRight<20>(
      hn::Sub(hn::Add(u, hn::Add(odd, hn::Set(du, 0x7ffffu))), hn::Set(du, (127u - 7u) << 23)));
  // 2^14 has a last bit of 2^-9, the step of E4M3's subnormals.
  const VF step = hn::Set(df, 0x1p14f);
  const VU subnormal = hn::Sub(hn::BitCast(du, hn::Add(magnitude, step)), hn::BitCast(du, step));
  const auto small = hn::RebindMask(du, hn::Lt(magnitude, hn::Set(df, 0x1p-6f)));
  const auto finite = hn::RebindMask(du, hn::Lt(hn::Abs(x), hn::Set(df, HUGE_VALF)));
  const VU code =
      hn::IfThenElse(finite, hn::IfThenElse(small, subnormal, normal), hn::Set(du, 0x7fu));
  return hn::Or(code, hn::And(hn::ShiftRight<24>(hn::BitCast(du, x)), hn::Set(du, 0x80u)));
}

void to_fp8(const float* x, int64_t n, float scale, uint8_t* out) {
  const hn::Rebind<uint8_t, F> du8;
  const VF divisor = hn::Set(df, scale);
  for_vectors(
      n,
      [&](int64_t k) HWY_ATTR {
        const VU code = encode_e4m3(hn::Div(hn::LoadU(df, x + k), divisor));
        hn::StoreU(hn::TruncateTo(du8, code), du8, out + k);
      },
      [&](int64_t k, int count) HWY_ATTR {
        HWY_ALIGN uint32_t codes[kLanes];
        hn::Store(encode_e4m3(hn::Div(load_some(x + k, count), divisor)), du, codes);
        for (int i = 0; i < count; ++i) out[k + i] = static_cast<uint8_t>(codes[i]);
      });
}

HWY_INLINE VF largest_magnitude(const float* x, int64_t n) {
  VF m = hn::Zero(df);
  for_vectors(
      n, [&](int64_t k) HWY_ATTR { m = hn::Max(m, hn::Abs(hn::LoadU(df, x + k))); },
      [&](int64_t k, int count) HWY_ATTR { m = hn::Max(m, hn::Abs(load_some(x + k, count))); });
  return hn::MaxOfLanes(df, m);
}

// Nearest E4M3 value, ties to even, saturating at ±448.
HWY_INLINE VF round_e4m3(VF x) {
  const VF magnitude = hn::Min(hn::Abs(x), hn::Set(df, 448.0f));
  const VU u = hn::BitCast(du, magnitude);
  const VU odd = hn::And(hn::ShiftRight<20>(u), hn::Set(du, 1u));
  const VU normal =
      hn::And(hn::Add(u, hn::Add(odd, hn::Set(du, 0x7ffffu))), hn::Set(du, 0xfff00000u));
  // 2^14 has a last bit of 2^-9, the step of E4M3's subnormals.
  const VF step = hn::Set(df, 0x1p14f);
  const VF subnormal = hn::Sub(hn::Add(magnitude, step), step);
  const VF y =
      hn::IfThenElse(hn::Lt(magnitude, hn::Set(df, 0x1p-6f)), subnormal, hn::BitCast(df, normal));
  return hn::IfThenElse(hn::Eq(x, x), hn::CopySignToAbs(y, x), x);
}

void round_fp8(const float* x, int64_t n, float* out) {
  const VF scale = hn::Div(largest_magnitude(x, n), hn::Set(df, 448.0f));
  const auto zero = hn::Eq(scale, hn::Zero(df));
  const auto round = [&](VF v) HWY_ATTR {
    return hn::IfThenZeroElse(zero, hn::Mul(round_e4m3(hn::Div(v, scale)), scale));
  };
  for_vectors(
      n, [&](int64_t k) HWY_ATTR { hn::StoreU(round(hn::LoadU(df, x + k)), df, out + k); },
      [&](int64_t k, int count)
          HWY_ATTR { store_some(round(load_some(x + k, count)), out + k, count); });
}

// Nearest E2M1 value of a magnitude: steps of 1/2 below 2, 1 below 4, 2 above, saturating at 6.
// Adding and subtracting 1.5 · 2^23 · step rounds to a multiple of step, ties to even.
HWY_INLINE VF round_e2m1(VF x) {
  const VF magnitude = hn::Min(hn::Abs(x), hn::Set(df, 6.0f));
  const auto below2 = hn::Lt(magnitude, hn::Set(df, 2.0f));
  const auto below4 = hn::Lt(magnitude, hn::Set(df, 4.0f));
  const VF step =
      hn::IfThenElse(below2, hn::Set(df, 6291456.0f),
                     hn::IfThenElse(below4, hn::Set(df, 12582912.0f), hn::Set(df, 25165824.0f)));
  const VF y = hn::Sub(hn::Add(magnitude, step), step);
  return hn::IfThenElse(hn::Eq(x, x), hn::CopySignToAbs(y, x), x);
}

// out = fn(x) over n elements.
template <typename Fn>
HWY_INLINE void map(const float* x, int64_t n, float* out, const Fn& fn) {
  for_vectors(
      n, [&](int64_t k) HWY_ATTR { hn::StoreU(fn(hn::LoadU(df, x + k)), df, out + k); },
      [&](int64_t k, int count)
          HWY_ATTR { store_some(fn(load_some(x + k, count)), out + k, count); });
}

void round_mxfp4(const float* x, int64_t n, float* out) {
  for (int64_t begin = 0; begin < n; begin += 32) {
    const int64_t count = HWY_MIN(int64_t{32}, n - begin);
    const int exponent =
        formats::mxfp4_scale(hn::GetLane(largest_magnitude(x + begin, count))) - 127;
    const VF scale = hn::Set(df, std::ldexp(1.0f, exponent));
    const VF inverse = hn::Set(df, std::ldexp(1.0f, -exponent));
    map(x + begin, count, out + begin,
        [&](VF v) HWY_ATTR { return hn::Mul(round_e2m1(hn::Mul(v, inverse)), scale); });
  }
}

// As formats::round_activation_nvfp4, but for NaN, which stays.
void round_nvfp4(const float* x, int64_t n, float input_scale, float* out) {
  const float global =
      input_scale > 0.0f ? input_scale : hn::GetLane(largest_magnitude(x, n)) / 2688.0f;
  const float inverse = global == 0.0f ? 0.0f : 1.0f / global;
  for (int64_t begin = 0; begin < n; begin += 16) {
    const int64_t count = HWY_MIN(int64_t{16}, n - begin);
    const float largest = hn::GetLane(largest_magnitude(x + begin, count));
    const float wanted = HWY_MIN(448.0f, inverse * (largest / 6.0f));
    const float scale = formats::decode_fp8_e4m3(formats::encode_fp8_e4m3(wanted));
    const VF multiplier = hn::Set(df, scale == 0.0f ? 0.0f : inverse / scale);
    const VF step = hn::Set(df, scale * global);
    map(x + begin, count, out + begin,
        [&](VF v) HWY_ATTR { return hn::Mul(round_e2m1(hn::Mul(v, multiplier)), step); });
  }
}

void round_fp8_blocks(const float* x, int64_t n, float* out) {
  for (int64_t begin = 0; begin < n; begin += 128) {
    const int64_t count = HWY_MIN(int64_t{128}, n - begin);
    const float largest = hn::GetLane(largest_magnitude(x + begin, count));
    const VF scale = hn::Set(df, HWY_MAX(largest, 1e-4f) / 448.0f);
    map(x + begin, count, out + begin,
        [&](VF v) HWY_ATTR { return hn::Mul(round_e4m3(hn::Div(v, scale)), scale); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eyrie::ops::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
