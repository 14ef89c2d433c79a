// Decoders of the weight panels (layout.h): what a kernel step loads, and how kLanes outputs of one
// k become float32 in registers. Included once per target (Highway's foreach_target).
#if defined(EYRIE_OPS_CPU_GEMM_DECODERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EYRIE_OPS_CPU_GEMM_DECODERS_INL_H_
#undef EYRIE_OPS_CPU_GEMM_DECODERS_INL_H_
#else
#define EYRIE_OPS_CPU_GEMM_DECODERS_INL_H_
#endif

#include "ops/cpu/layout.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eyrie::ops::cpu {
namespace HWY_NAMESPACE {

// Vectors of low and high outputs.
struct Pair {
  VF low, high;
};

// What a decoder says beside its functions. kStep: k a step; kBlock: k that share a scale, 0 when
// there is none in the panel; kScaleBytes of a block in all 32 columns, kScaleWordBytes of a word;
// an output is the sum times kOutputScale times its row's scale.
struct Unscaled {
  static constexpr int kBlock = 0, kScaleBytes = 0, kScaleWordBytes = 0;
  static constexpr bool kRowScales = false, kLastFirst = false, kDots = false;
  static constexpr float kOutputScale = 1.0f;
};

struct DecodeF32 : Unscaled {
  static constexpr int kStep = 1, kStepBytes = 128;
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

// Two bfloat16 in a word each.
HWY_INLINE Pair split_bf16(VU w) {
  return {hn::BitCast(df, hn::ShiftLeft<16>(w)),
          hn::BitCast(df, hn::And(w, hn::Set(du, 0xffff0000u)))};
}

struct DecodeBf16 : Unscaled {
  static constexpr int kStep = 1, kStepBytes = 64;
  using Words = VU;
  static HWY_INLINE Words load(const std::byte* p) {
    return hn::LoadU(du, reinterpret_cast<const uint32_t*>(p));
  }
  template <int kK>
  static HWY_INLINE Pair decode(Words w, const Pair&) {
    return split_bf16(w);
  }
};

// Pairs of k of a column in a word. The processor's dot product of pairs is two fused
// multiply-adds, the second of the pair first (and takes numbers below 2^-126 for zero): whoever
// does them one by one in that order has the same bits.
struct DecodeBf16Pairs : Unscaled {
  static constexpr int kStep = 2, kStepBytes = 128;
  static constexpr bool kLastFirst = true;
  struct Words {
    VU low, high;
  };
  static HWY_INLINE Words load(const std::byte* p) {
    const auto* w = reinterpret_cast<const uint32_t*>(p);
    return {hn::LoadU(du, w), hn::LoadU(du, w + 16)};
  }
  template <int kK>
  static HWY_INLINE Pair decode(const Words& w, const Pair&) {
    if constexpr (kK == 0) {
      return {hn::BitCast(df, hn::ShiftLeft<16>(w.low)),
              hn::BitCast(df, hn::ShiftLeft<16>(w.high))};
    } else {
      const VU top = hn::Set(du, 0xffff0000u);
      return {hn::BitCast(df, hn::And(w.low, top)), hn::BitCast(df, hn::And(w.high, top))};
    }
  }
};

#if HWY_TARGET == HWY_AVX3
// With the dot product itself (AVX512_BF16, which is no target of Highway's here): a step's
// activations are one word of two bfloat16.
struct DotBf16Pairs : DecodeBf16Pairs {
  static constexpr bool kDots = true;
  static HWY_INLINE VF add_product(VF sum, VU w, VU x) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(w.raw), "v"(x.raw));
    return sum;
  }
};
#endif

struct DecodeF16 : Unscaled {
  static constexpr int kStep = 1, kStepBytes = 64;
  static constexpr float kOutputScale = kF16OutputScale;
  using Words = VI;
  static HWY_INLINE Words load(const std::byte* p) {
    return hn::LoadU(di, reinterpret_cast<const int32_t*>(p));
  }
  static HWY_INLINE VF decode_top(VI top) {
    return hn::BitCast(
        df, hn::And(hn::ShiftRight<3>(top), hn::Set(di, static_cast<int32_t>(0x8fffe000u))));
  }
  template <int kK>
  static HWY_INLINE Pair decode(Words w, const Pair&) {
    return {decode_top(hn::ShiftLeft<16>(w)), decode_top(w)};
  }
};

// ---- eight bits ---------------------------------------------------------------------------------

struct DecodeFp8 : Unscaled {
  static constexpr int kStep = 2, kStepBytes = 64;
  static constexpr bool kRowScales = true;
  static constexpr float kOutputScale = kFp8OutputScale;
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

struct DecodeFp8Block : DecodeFp8 {
  static constexpr int kBlock = 128, kScaleBytes = 128, kScaleWordBytes = 4;
  static constexpr bool kRowScales = false;
  static constexpr float kOutputScale = 1.0f;  // the panel's scales have kFp8OutputScale in them
  static HWY_INLINE Pair scales(const std::byte* p) {
    const auto* f = reinterpret_cast<const float*>(p);
    return {hn::LoadU(df, f), hn::LoadU(df, f + 16)};
  }
  template <int kK>
  static HWY_INLINE Pair decode(Words w, const Pair& scale) {
    return {hn::Mul(decode_byte<2 * kK>(w), scale.low),
            hn::Mul(decode_byte<2 * kK + 1>(w), scale.high)};
  }
};

// ---- four bits ----------------------------------------------------------------------------------

// Where a lookup has 16 lanes it gives floats; narrower targets look up bytes, of 2 · value for
// FP4, and convert them: kUnit makes up for it.
struct Fp4Values {
  HWY_ALIGN static constexpr float kFloats[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                  4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                  -2.0f, -3.0f, -4.0f, -6.0f};
  HWY_ALIGN static constexpr int8_t kBytes[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                  0, -1, -2, -3, -4, -6, -8, -12};
  static constexpr int kUnitExponent = kLanes == 16 ? 0 : -1;
};

struct Int4Values {
  HWY_ALIGN static constexpr float kFloats[16] = {-8.0f, -7.0f, -6.0f, -5.0f, -4.0f, -3.0f,
                                                  -2.0f, -1.0f, 0.0f,  1.0f,  2.0f,  3.0f,
                                                  4.0f,  5.0f,  6.0f,  7.0f};
  HWY_ALIGN static constexpr int8_t kBytes[16] = {-8, -7, -6, -5, -4, -3, -2, -1,
                                                  0,  1,  2,  3,  4,  5,  6,  7};
};

template <typename Values>
struct DecodeNibbles : Unscaled {
  static constexpr int kStep = 4, kStepBytes = 64;
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
    return hn::TableLookupLanes(hn::Load(df, Values::kFloats), hn::IndicesFromVec(df, index));
  }
  template <int kK>
  static HWY_INLINE Pair decode(Words w, const Pair& scale) {
    return {hn::Mul(lookup<2 * kK>(w), scale.low), hn::Mul(lookup<2 * kK + 1>(w), scale.high)};
  }
#else
  struct Words {
    VI low, high;  // bytes of k, k+1, k+2, k+3
  };
  static HWY_INLINE Words load(const std::byte* p) {
    const hn::Repartition<uint8_t, F> d8;
    const auto w = hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p));
    const auto mask = hn::Set(d8, uint8_t{15});
    const auto table = hn::LoadDup128(d8, reinterpret_cast<const uint8_t*>(Values::kBytes));
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

// Scales of one byte: out i's in the low half of a 16-bit word, out i+16's in the high one.
HWY_INLINE VU load_scale_bytes(const std::byte* p) {
  const hn::Rebind<uint16_t, F> du16;
  return hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p)));
}

struct DecodeMxfp4 : DecodeNibbles<Fp4Values> {
  static constexpr int kBlock = 32, kScaleBytes = 32, kScaleWordBytes = 2;
  // The block's scales, 2^(byte - 127) each. Scale byte 0 (2^-127, blocks of zeros) decodes as 0.
  static HWY_INLINE Pair scales(const std::byte* p) {
    const VU w = load_scale_bytes(p);
    const VF low = hn::BitCast(df, hn::ShiftLeft<23>(hn::And(w, hn::Set(du, 255u))));
    const VF high = hn::BitCast(df, hn::ShiftLeft<23>(hn::ShiftRight<8>(w)));
    const VF unit = hn::Set(df, kLanes == 16 ? 1.0f : 0.5f);
    return {hn::Mul(low, unit), hn::Mul(high, unit)};
  }
};

struct DecodeNvfp4 : DecodeNibbles<Fp4Values> {
  static constexpr int kBlock = 16, kScaleBytes = 32, kScaleWordBytes = 2;
  static constexpr bool kRowScales = true;
  static HWY_INLINE Pair scales(const std::byte* p) {
    const VU w = load_scale_bytes(p);
    const VU bias =
        hn::Set(du, static_cast<uint32_t>(127 - kNvfp4ScaleBias + Fp4Values::kUnitExponent) << 23);
    const VU low = hn::ShiftLeft<20>(hn::And(w, hn::Set(du, 255u)));
    const VU high = hn::ShiftLeft<20>(hn::ShiftRight<8>(w));
    return {hn::BitCast(df, hn::Add(low, bias)), hn::BitCast(df, hn::Add(high, bias))};
  }
};

struct DecodeInt4 : DecodeNibbles<Int4Values> {
  static constexpr int kBlock = 32, kScaleBytes = 64, kScaleWordBytes = 4;
  static HWY_INLINE Pair scales(const std::byte* p) {
    return split_bf16(hn::LoadU(du, reinterpret_cast<const uint32_t*>(p)));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace eyrie::ops::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
