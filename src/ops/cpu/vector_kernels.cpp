// Row-wise kernels. Sums run in 16 partial sums (element i into i mod 16) whatever the vector
// width.
#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/vector_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "ops/cpu/isa.h"
#include "ops/cpu/rounding-inl.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eyrie::ops::cpu {
namespace HWY_NAMESPACE {

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  HWY_ALIGN float partial[16] = {};
  VF sums[kVecs];
  for (int v = 0; v < kVecs; ++v) sums[v] = hn::Zero(df);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int v = 0; v < kVecs; ++v) {
      const VF a = hn::LoadU(df, x + i + v * kLanes);
      sums[v] = hn::MulAdd(a, a, sums[v]);
    }
  }
  for (int v = 0; v < kVecs; ++v) {
    const auto rest = static_cast<int>(HWY_MAX(0, HWY_MIN(n - i - v * kLanes, kLanes)));
    const VF a = load_some(x + i + v * kLanes, rest);
    hn::Store(hn::MulAdd(a, a, sums[v]), df, partial + v * kLanes);
  }
  const float mean = sum16(partial) / static_cast<float>(n);
  const VF factor = hn::Set(df, 1.0f / std::sqrt(mean + eps));
  for_vectors(
      n,
      [&](int64_t k) HWY_ATTR {
        const VF y = hn::Mul(hn::Mul(hn::LoadU(df, x + k), factor), hn::LoadU(df, weight + k));
        hn::StoreU(y, df, out + k);
      },
      [&](int64_t k, int count) HWY_ATTR {
        const VF y =
            hn::Mul(hn::Mul(load_some(x + k, count), factor), load_some(weight + k, count));
        store_some(y, out + k, count);
      });
}

void add(const float* x, int64_t n, float* residual) {
  for_vectors(
      n,
      [&](int64_t k) HWY_ATTR {
        hn::StoreU(hn::Add(hn::LoadU(df, residual + k), hn::LoadU(df, x + k)), df, residual + k);
      },
      [&](int64_t k, int count) HWY_ATTR {
        for (int i = 0; i < count; ++i) residual[k + i] += x[k + i];
      });
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
  for_vectors(
      n,
      [&](int64_t k) HWY_ATTR {
        const VF g = hn::LoadU(df, gate + k);
        hn::StoreU(hn::Mul(hn::Mul(g, sigmoid(g)), hn::LoadU(df, up + k)), df, out + k);
      },
      [&](int64_t k, int count) HWY_ATTR {
        const VF g = load_some(gate + k, count);
        store_some(hn::Mul(hn::Mul(g, sigmoid(g)), load_some(up + k, count)), out + k, count);
      });
}

void sigmoid_row(const float* x, int64_t n, float* out) {
  for_vectors(
      n, [&](int64_t k) HWY_ATTR { hn::StoreU(sigmoid(hn::LoadU(df, x + k)), df, out + k); },
      [&](int64_t k, int count)
          HWY_ATTR { store_some(sigmoid(load_some(x + k, count)), out + k, count); });
}

void weighted_sum(const float* const* rows, const float* weights, int num_slots, int64_t n,
                  float* out) {
  for_vectors(
      n,
      [&](int64_t k) HWY_ATTR {
        VF sum = hn::Zero(df);
        for (int s = 0; s < num_slots; ++s) {
          sum = hn::MulAdd(hn::Set(df, weights[s]), hn::LoadU(df, rows[s] + k), sum);
        }
        hn::StoreU(sum, df, out + k);
      },
      [&](int64_t k, int count) HWY_ATTR {
        VF sum = hn::Zero(df);
        for (int s = 0; s < num_slots; ++s) {
          sum = hn::MulAdd(hn::Set(df, weights[s]), load_some(rows[s] + k, count), sum);
        }
        store_some(sum, out + k, count);
      });
}

// ---- rope angles, in float64 --------------------------------------------------------------------

using D = hn::CappedTag<double, 8>;
inline constexpr D dd;
using VD = hn::Vec<D>;

// sin and cos of x, |x| < 2^20 or so: x = q·π/2 + r with π/2 in three parts of 33 bits (products
// with q are exact), then Taylor series to r^13 and r^14 (|r| ≤ π/4: error below 1e-13).
HWY_INLINE void sincos(VD x, VD* sine, VD* cosine) {
  const VD magic = hn::Set(dd, 0x1.8p52);  // adding it leaves round(x) in the low mantissa bits
  const VD shifted = hn::MulAdd(x, hn::Set(dd, 0.63661977236758134308), magic);
  const VD q = hn::Sub(shifted, magic);
  VD r = hn::NegMulAdd(q, hn::Set(dd, 1.57079632673412561417e+00), x);
  r = hn::NegMulAdd(q, hn::Set(dd, 6.07710050630396597660e-11), r);
  r = hn::NegMulAdd(q, hn::Set(dd, 2.02226624879595063154e-21), r);
  const VD r2 = hn::Mul(r, r);
  VD s = hn::Set(dd, 1.0 / 6227020800.0);
  s = hn::MulAdd(s, r2, hn::Set(dd, -1.0 / 39916800.0));
  s = hn::MulAdd(s, r2, hn::Set(dd, 1.0 / 362880.0));
  s = hn::MulAdd(s, r2, hn::Set(dd, -1.0 / 5040.0));
  s = hn::MulAdd(s, r2, hn::Set(dd, 1.0 / 120.0));
  s = hn::MulAdd(s, r2, hn::Set(dd, -1.0 / 6.0));
  s = hn::MulAdd(hn::Mul(s, r2), r, r);
  VD c = hn::Set(dd, -1.0 / 87178291200.0);
  c = hn::MulAdd(c, r2, hn::Set(dd, 1.0 / 479001600.0));
  c = hn::MulAdd(c, r2, hn::Set(dd, -1.0 / 3628800.0));
  c = hn::MulAdd(c, r2, hn::Set(dd, 1.0 / 40320.0));
  c = hn::MulAdd(c, r2, hn::Set(dd, -1.0 / 720.0));
  c = hn::MulAdd(c, r2, hn::Set(dd, 1.0 / 24.0));
  c = hn::MulAdd(c, r2, hn::Set(dd, -0.5));
  c = hn::MulAdd(c, r2, hn::Set(dd, 1.0));
  const hn::RebindToUnsigned<D> du64;
  const auto bits = hn::BitCast(du64, shifted);
  const auto odd = hn::Eq(hn::And(bits, hn::Set(du64, uint64_t{1})), hn::Set(du64, uint64_t{1}));
  const auto swap = hn::RebindMask(dd, odd);
  const auto sign_s = hn::ShiftLeft<62>(hn::And(bits, hn::Set(du64, uint64_t{2})));
  const auto sign_c = hn::ShiftLeft<62>(
      hn::And(hn::Add(bits, hn::Set(du64, uint64_t{1})), hn::Set(du64, uint64_t{2})));
  *sine = hn::Xor(hn::IfThenElse(swap, c, s), hn::BitCast(dd, sign_s));
  *cosine = hn::Xor(hn::IfThenElse(swap, s, c), hn::BitCast(dd, sign_c));
}

void rope_table(double position, const double* inv_freq, int64_t half, float magnitude,
                float* cosines, float* sines) {
  constexpr auto kLanes64 = static_cast<int64_t>(hn::MaxLanes(dd));
  HWY_ALIGN double frequency[kLanes64], s[kLanes64], c[kLanes64];
  for (int64_t i = 0; i < half; i += kLanes64) {
    const int64_t count = HWY_MIN(kLanes64, half - i);
    for (int64_t j = 0; j < kLanes64; ++j) frequency[j] = j < count ? inv_freq[i + j] : 0.0;
    VD sine, cosine;
    sincos(hn::Mul(hn::Set(dd, position), hn::Load(dd, frequency)), &sine, &cosine);
    const VD scale = hn::Set(dd, static_cast<double>(magnitude));
    hn::Store(hn::Mul(sine, scale), dd, s);
    hn::Store(hn::Mul(cosine, scale), dd, c);
    for (int64_t j = 0; j < count; ++j) {
      sines[i + j] = static_cast<float>(s[j]);
      cosines[i + j] = static_cast<float>(c[j]);
    }
  }
}

// ---- conversions and rounding -------------------------------------------------------------------

void from_bf16(const bf16* x, int64_t n, float* out) {
  const hn::Rebind<uint16_t, F> du16;
  const auto* bits = reinterpret_cast<const uint16_t*>(x);
  for_vectors(
      n,
      [&](int64_t k) HWY_ATTR {
        const VU u = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(du16, bits + k)));
        hn::StoreU(hn::BitCast(df, u), df, out + k);
      },
      [&](int64_t k, int count) HWY_ATTR {
        for (int i = 0; i < count; ++i) out[k + i] = to_float(x[k + i]);
      });
}

void to_bf16_row(const float* x, int64_t n, bf16* out) {
  const hn::Rebind<uint16_t, F> du16;
  for_vectors(
      n,
      [&](int64_t k) HWY_ATTR {
        const VF f = hn::LoadU(df, x + k);
        const VU u = hn::BitCast(du, f);
        const VU odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u));
        const VU rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(du, 0x7fffu))));
        const VU quiet = hn::Or(hn::ShiftRight<16>(u), hn::Set(du, 0x40u));
        const VU y = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(f)), quiet, rounded);
        hn::StoreU(hn::TruncateTo(du16, y), du16, reinterpret_cast<uint16_t*>(out) + k);
      },
      [&](int64_t k, int count) HWY_ATTR {
        for (int i = 0; i < count; ++i) out[k + i] = to_bf16(x[k + i]);
      });
}

int32_t argmax(const float* x, int64_t n) {
  // The largest value first, noticing NaN on the way; then its first place.
  VF m = hn::Set(df, x[0]), nan = hn::Zero(df);
  float rest = x[0];
  bool rest_nan = false;
  for_vectors(
      n,
      [&](int64_t k) HWY_ATTR {
        const VF v = hn::LoadU(df, x + k);
        m = hn::Max(m, v);
        nan = hn::Or(nan, hn::VecFromMask(df, hn::IsNaN(v)));
      },
      [&](int64_t k, int count) HWY_ATTR {
        for (int i = 0; i < count; ++i) {
          rest_nan |= x[k + i] != x[k + i];
          rest = HWY_MAX(rest, x[k + i]);
        }
      });
  if (rest_nan || x[0] != x[0] || !hn::AllTrue(du, hn::Eq(hn::BitCast(du, nan), hn::Zero(du)))) {
    return -1;
  }
  const float largest = HWY_MAX(rest, hn::GetLane(hn::MaxOfLanes(df, m)));
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    const auto equal = hn::Eq(hn::LoadU(df, x + k), hn::Set(df, largest));
    if (!hn::AllFalse(df, equal)) break;
  }
  while (x[k] != largest) ++k;
  return static_cast<int32_t>(k);
}

const VectorKernels* vector_table() {
  static constexpr VectorKernels kTable{
      .rms_norm = rms_norm,
      .add = add,
      .silu_mul = silu_mul,
      .sigmoid = sigmoid_row,
      .weighted_sum = weighted_sum,
      .rope_table = rope_table,
      .to_bf16 = to_bf16_row,
      .from_bf16 = from_bf16,
      .to_fp8 = to_fp8,
      .argmax = argmax,
      .round_fp8 = round_fp8,
      .round_mxfp4 = round_mxfp4,
      .round_nvfp4 = round_nvfp4,
      .round_fp8_blocks = round_fp8_blocks,
  };
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace eyrie::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eyrie::ops::cpu {
HWY_EXPORT(vector_table);
const VectorKernels& vector_kernels() {
  init_isa();
  return *HWY_DYNAMIC_DISPATCH(vector_table)();
}
}  // namespace eyrie::ops::cpu
#endif
