// Vector helpers shared by the kernel files; included once per target (Highway's foreach_target).
#if defined(EYRIE_OPS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EYRIE_OPS_CPU_SIMD_INL_H_
#undef EYRIE_OPS_CPU_SIMD_INL_H_
#else
#define EYRIE_OPS_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace eyrie::ops::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that 16 outputs, 16 cache positions or 16 partial sums are a whole number of
// vectors on every target.
using F = hn::CappedTag<float, 16>;
using U = hn::Rebind<uint32_t, F>;
using I = hn::Rebind<int32_t, F>;
using VF = hn::Vec<F>;
using VU = hn::Vec<U>;
using VI = hn::Vec<I>;
inline constexpr F df;
inline constexpr U du;
inline constexpr I di;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(df));
inline constexpr int kVecs = 16 / kLanes;  // vectors of 16 lanes' worth

// e^x with a relative error under 2e-7: 2^n · p(r), |r| ≤ ln2 / 2 (Cephes' coefficients). 0 below
// the smallest normal result, infinity above the largest, NaN for NaN; the same operations in every
// lane.
HWY_INLINE VF exp(VF x) {
  const VF largest = hn::Set(df, 88.72f);
  const VF y = hn::Min(x, largest);
  const VF n = hn::Round(hn::Mul(y, hn::Set(df, 1.44269504f)));
  VF r = hn::NegMulAdd(n, hn::Set(df, 0.693359375f), y);
  r = hn::NegMulAdd(n, hn::Set(df, -2.12194440e-4f), r);
  VF p = hn::Set(df, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(df, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(df, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(df, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(df, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(df, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(df, 1.0f));
  // n ≤ 128 and p < 1.42: two factors keep 2^128 out of the exponent field.
  const VI e = hn::ConvertTo(di, n);
  const VI e0 = hn::ShiftRight<1>(e);
  const VF s0 = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(e0, hn::Set(di, 127))));
  const VF s1 = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(hn::Sub(e, e0), hn::Set(di, 127))));
  VF result = hn::Mul(hn::Mul(p, s0), s1);
  result = hn::IfThenZeroElse(hn::Lt(x, hn::Set(df, -87.3f)), result);
  result = hn::IfThenElse(hn::Gt(x, largest), hn::Set(df, HUGE_VALF), result);
  return hn::IfThenElse(hn::Eq(x, x), result, x);
}

HWY_INLINE VF sigmoid(VF x) {
  const VF one = hn::Set(df, 1.0f);
  return hn::Div(one, hn::Add(one, exp(hn::Neg(x))));
}

// Runs fn(offset, count) over n elements: whole vectors, then one call with count < kLanes.
template <typename Vector, typename Tail>
HWY_INLINE void for_vectors(int64_t n, const Vector& vector, const Tail& tail) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) vector(i);
  if (i < n) tail(i, static_cast<int>(n - i));
}

// The first `count` lanes from p, the others zero.
HWY_INLINE VF load_some(const float* p, int count) {
  HWY_ALIGN float lanes[kLanes] = {};
  for (int i = 0; i < count; ++i) lanes[i] = p[i];
  return hn::Load(df, lanes);
}

HWY_INLINE void store_some(VF v, float* p, int count) {
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, df, lanes);
  for (int i = 0; i < count; ++i) p[i] = lanes[i];
}

// Sum of 16 partial sums by halving: one order on every target.
HWY_INLINE float sum16(const float* s) {
  float a[8];
  for (int i = 0; i < 8; ++i) a[i] = s[i] + s[i + 8];
  for (int i = 0; i < 4; ++i) a[i] += a[i + 4];
  return (a[0] + a[2]) + (a[1] + a[3]);
}

}  // namespace HWY_NAMESPACE
}  // namespace eyrie::ops::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
