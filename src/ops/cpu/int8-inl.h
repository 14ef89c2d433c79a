// Bytes in vectors: the dot product that each instruction set has for them, and how panels of
// four-bit weights become bytes (int8_layout.h). Included once per target (Highway's
// foreach_target).
#if defined(EYRIE_OPS_CPU_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EYRIE_OPS_CPU_INT8_INL_H_
#undef EYRIE_OPS_CPU_INT8_INL_H_
#else
#define EYRIE_OPS_CPU_INT8_INL_H_
#endif

#include <cstring>

#include "ops/cpu/int8_layout.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eyrie::ops::cpu {
namespace HWY_NAMESPACE {

// Four bytes a lane of the float vectors.
using B = hn::Repartition<uint8_t, F>;
using S16 = hn::Repartition<int16_t, F>;
using VB = hn::Vec<B>;
using VS16 = hn::Vec<S16>;
inline constexpr B db;
inline constexpr S16 ds16;

// Four activations in every lane.
HWY_INLINE VB four_in_every_lane(const std::byte* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
  return hn::BitCast(db, hn::Set(di, four));
}

// ---- sums of four products a lane ---------------------------------------------------------------

// sum + Σ w·x over the four bytes of each lane, w unsigned, x four signed bytes for every lane.
// x86's instruction is spelt out: Highway's AVX3_DL does not enable VNNI, and AVX-VNNI (of 256
// bits, on processors without AVX-512) is no target of its own.
#if HWY_TARGET == HWY_AVX3_DL
inline constexpr bool kHasDot = true;
template <bool kVnni>
HWY_INLINE VI dot(VI sum, VB w, const std::byte* x) {
  using Four [[gnu::may_alias]] = int32_t;
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sum.raw)
      : "v"(w.raw), "m"(*reinterpret_cast<const Four*>(x)));
  return sum;
}
#elif HWY_TARGET == HWY_AVX2
inline constexpr bool kHasDot = false;
template <bool kVnni>
HWY_INLINE VI dot(VI sum, VB w, const std::byte* x) {
  static_assert(kVnni);
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(w.raw), "x"(four_in_every_lane(x).raw));
  return sum;
}
#elif HWY_TARGET == HWY_NEON
inline constexpr bool kHasDot = true;
template <bool kVnni>
HWY_INLINE VI dot(VI sum, VB w, const std::byte* x) {  // w fits in signed bytes too
  const int8x16_t a = vreinterpretq_s8_u8(w.raw);
  const int8x16_t b = vreinterpretq_s8_u8(four_in_every_lane(x).raw);
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
  const int32x4_t high = vpaddlq_s16(vmull_high_s8(a, b));
  return VI{vaddq_s32(sum.raw, vpaddq_s32(low, high))};
}
#else
inline constexpr bool kHasDot = false;
template <bool kVnni>
HWY_INLINE VI dot(VI sum, VB, const std::byte*) {
  static_assert(!kVnni);
  return sum;
}
#endif

#if HWY_ARCH_X86
// Products of neighbouring bytes, added, in 16 bits.
HWY_INLINE VS16 multiply_pairs(VB w, VB x) {
#if HWY_TARGET <= HWY_AVX3
  return VS16{_mm512_maddubs_epi16(w.raw, x.raw)};
#elif HWY_TARGET == HWY_AVX2
  return VS16{_mm256_maddubs_epi16(w.raw, x.raw)};
#else
  return VS16{_mm_maddubs_epi16(w.raw, x.raw)};
#endif
}

HWY_INLINE VI add_pairs(VS16 v) {
  const VS16 ones = hn::Set(ds16, int16_t{1});
#if HWY_TARGET <= HWY_AVX3
  return VI{_mm512_madd_epi16(v.raw, ones.raw)};
#elif HWY_TARGET == HWY_AVX2
  return VI{_mm256_madd_epi16(v.raw, ones.raw)};
#else
  return VI{_mm_madd_epi16(v.raw, ones.raw)};
#endif
}
#endif

// sum + Σ w·x over kSteps · 4 k. Where 16-bit sums are on the way, kSafeSteps of them fit:
// 2 · 127 · (largest w) · kSafeSteps < 2^15.
template <bool kVnni, int kSteps, int kSafeSteps>
HWY_INLINE VI dot_steps(VI sum, const VB (&w)[kSteps], const std::byte* x) {
  if constexpr (kHasDot || kVnni) {
#pragma GCC unroll 8
    for (int s = 0; s < kSteps; ++s) sum = dot<kVnni>(sum, w[s], x + 4 * s);
    return sum;
  }
#if HWY_ARCH_X86
#pragma GCC unroll 8
  for (int begin = 0; begin < kSteps; begin += kSafeSteps) {
    VS16 pairs = multiply_pairs(w[begin], four_in_every_lane(x + 4 * begin));
#pragma GCC unroll 8
    for (int s = begin + 1; s < HWY_MIN(begin + kSafeSteps, kSteps); ++s) {
      pairs = hn::Add(pairs, multiply_pairs(w[s], four_in_every_lane(x + 4 * s)));
    }
    sum = hn::Add(sum, add_pairs(pairs));
  }
#endif
  return sum;
}

// ---- weights ------------------------------------------------------------------------------------

HWY_INLINE VB upper_nibbles(VB codes) {
  return hn::BitCast(db, hn::ShiftRight<4>(hn::BitCast(du, codes)));
}

// Offset integers of FP4 codes: 2 · value + 12.
struct Fp4Bytes {
  static constexpr int kSafeSteps = 4;  // 2 · 127 · 24 · 4 = 24384
  HWY_ALIGN static constexpr uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                   12, 11, 10, 9,  8,  6,  4,  0};
  // codes: a byte's low nibble counts, the upper one is anything.
  static HWY_INLINE VB lookup(VB codes) {
#if HWY_TARGET == HWY_AVX3_DL
    // The instruction reads six bits of an index, so the table repeats every 16.
    const auto table =
        _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kTable)));
    return VB{_mm512_permutexvar_epi8(codes.raw, table)};
#else
    const VB low = hn::And(codes, hn::Set(db, uint8_t{15}));
    return hn::TableLookupBytes(hn::LoadDup128(db, kTable), low);
#endif
  }
};

struct Int4Bytes {
  static constexpr int kSafeSteps = 8;  // 2 · 127 · 15 · 8 = 30480
  static HWY_INLINE VB lookup(VB codes) { return hn::And(codes, hn::Set(db, uint8_t{15})); }
};

// Scales of a group's kLanes outputs from where the first one's lies.
HWY_INLINE VU load_bytes(const std::byte* p) {
  const hn::Rebind<uint8_t, F> du8;
  return hn::PromoteTo(du, hn::LoadU(du8, reinterpret_cast<const uint8_t*>(p)));
}

template <Encoding kEncoding>
struct Int8Format {
  static constexpr Int8Geometry kGeometry = int8_geometry(kEncoding);
  static constexpr int kSteps = kGeometry.group / 4;
};

struct Mxfp4Int8 : Int8Format<Encoding::kMxfp4Int8>, Fp4Bytes {
  // Scale byte 0 (2^-127, blocks of zeros) is read as 0.
  static HWY_INLINE VF scales(const std::byte* p) {
    return hn::BitCast(df, hn::ShiftLeft<23>(load_bytes(p)));
  }
};

struct Nvfp4Int8 : Int8Format<Encoding::kNvfp4Int8>, Fp4Bytes {
  static HWY_INLINE VF scales(const std::byte* p) {
    const VU bias = hn::Set(du, static_cast<uint32_t>(127 - kNvfp4ScaleBias) << 23);
    return hn::BitCast(df, hn::Add(hn::ShiftLeft<20>(load_bytes(p)), bias));
  }
};

struct Int4Int8 : Int8Format<Encoding::kInt4Int8>, Int4Bytes {
  static HWY_INLINE VF scales(const std::byte* p) {
    const hn::Rebind<uint16_t, F> du16;
    const auto* words = reinterpret_cast<const uint16_t*>(p);
    return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(du16, words))));
  }
};

// A group's weights of kLanes outputs, four k a vector.
template <typename D>
HWY_INLINE void decode_group(const std::byte* codes, VB (&w)[D::kSteps]) {
#pragma GCC unroll 4
  for (int line = 0; line < D::kSteps / 2; ++line) {
    const VB v = hn::LoadU(db, reinterpret_cast<const uint8_t*>(codes + line * kLineBytes));
    w[2 * line] = D::lookup(v);
    w[2 * line + 1] = D::lookup(upper_nibbles(v));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eyrie::ops::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
