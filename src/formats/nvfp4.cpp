// NVFP4: E2M1 elements (packed as MXFP4's), 16 along the input dimension share an E4M3 scale, and
// one float32 for the whole tensor multiplies those scales: weight = e2m1 · (scale · global).
//
// All producers divide by the rounded E4M3 scale and round to nearest, ties to even. They differ in
// - the global scale: ModelOpt and Quark store amax / 2688 (6 · 448) and multiply by it;
//   compressed-tensors stores 1 / amax · 2688, both computed in the weight's own dtype, and divides
//   by it;
// - blocks of zeros: ModelOpt's block scale is 1, compressed-tensors' 2^-3, Quark's is 2^-23
//   divided by the global scale (0 at times; elements are divided by 2^-23 then); all decode to
//   zero;
// - zeros with a sign: ModelOpt keeps it for negative values that round to zero, compressed-tensors
//   always, Quark never.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "formats/encoders.h"

namespace eyrie::formats {
namespace {

constexpr int kBlock = 16;
constexpr float kFp4Largest = 6.0f;
constexpr float kFp8Largest = 448.0f;
constexpr float kRange = kFp4Largest * kFp8Largest;
constexpr float kSmallestScale = 0x1.0p-9f;  // E4M3's smallest subnormal
constexpr float kQuarksZero = 0x1.0p-23f;    // in place of a scale of zero

void decode_row(const Weight& weight, int64_t row, std::span<float> out) {
  const uint8_t* packed = row_of<uint8_t>(weight.data, row);
  const uint8_t* scales = row_of<uint8_t>(weight.scales, row);
  for (size_t i = 0; i < out.size(); i += 2) {
    const float scale = decode_fp8_e4m3(scales[i / kBlock]) * weight.global_scale;
    out[i] = decode_fp4_e2m1(packed[i / 2] & 15u) * scale;
    out[i + 1] = decode_fp4_e2m1(packed[i / 2] >> 4) * scale;
  }
}

float largest_of(std::span<const float> block) {
  float amax = 0.0f;
  for (const float x : block) amax = std::max(amax, std::fabs(x));
  CHECK(std::isfinite(amax), "a block to encode as nvfp4 must be finite");
  return amax;
}

// scale_of(amax) → E4M3 byte; divisor_of(byte) → what elements are divided by; code_of(x) → nibble.
template <typename ScaleOf, typename DivisorOf, typename CodeOf>
void encode_blocks(const EncodeArgs& args, ScaleOf&& scale_of, DivisorOf&& divisor_of,
                   CodeOf&& code_of) {
  CHECK_EQ(args.rows.size() % kBlock, 0u);
  for (size_t block = 0; block < args.rows.size() / kBlock; ++block) {
    const auto x = args.rows.subspan(block * kBlock, kBlock);
    const uint8_t scale = scale_of(largest_of(x));
    const float divisor = divisor_of(scale);
    for (size_t i = 0; i < kBlock; i += 2) {
      const uint32_t low = code_of(x[i] / divisor), high = code_of(x[i + 1] / divisor);
      args.data[(block * kBlock + i) / 2] = static_cast<std::byte>(low | (high << 4));
    }
    args.scales[block] = std::byte{scale};
  }
}

void encode_row(std::span<const float> row, std::span<std::byte> data,
                std::span<std::byte> scales) {
  encode_nvfp4_modelopt(
      {.rows = row, .in = static_cast<int64_t>(row.size()), .data = data, .scales = scales});
}

}  // namespace

// A tensor of zeros: ModelOpt 0.47 divides by its zero and writes NaN, 1 says the same in numbers.
float nvfp4_global_multiplier(float amax, DType) { return amax == 0.0f ? 1.0f : amax / kRange; }

float nvfp4_global_quark(float amax, DType) { return amax == 0.0f ? kQuarksZero : amax / kRange; }

float nvfp4_global_divisor(float amax, DType source) {
  constexpr float kSmallestNormal = 0x1.0p-126f;
  // torch divides a number by a tensor in two steps, each rounded to the tensor's dtype.
  const float reciprocal = rounded_to(source, 1.0f / std::max(amax, kSmallestNormal));
  const float divisor = rounded_to(source, reciprocal * kRange);
  return std::isfinite(divisor) ? divisor : 1.0f;
}

void encode_nvfp4_modelopt(const EncodeArgs& args) {
  const float global = args.stored_global;
  encode_blocks(
      args,
      [&](float amax) {
        float scale = amax / (kFp4Largest * global);
        if (scale == 0.0f) scale = 1.0f;
        return encode_fp8_e4m3(std::clamp(scale, kSmallestScale, kFp8Largest));
      },
      [&](uint8_t scale) { return decode_fp8_e4m3(scale) * global; },
      [](float x) { return uint32_t{x < 0.0f ? encode_fp4_signed(x) : encode_fp4_e2m1(x)}; });
}

void encode_nvfp4_quark(const EncodeArgs& args) {
  const float global = args.stored_global;
  encode_blocks(
      args,
      [&](float amax) {
        const float scale = amax / kFp4Largest;
        return encode_fp8_e4m3((scale == 0.0f ? kQuarksZero : scale) / global);
      },
      [&](uint8_t scale) {
        const float divisor = decode_fp8_e4m3(scale) * global;
        return divisor > 0.0f ? divisor : kQuarksZero;
      },
      [](float x) { return uint32_t{encode_fp4_e2m1(x)}; });
}

void encode_nvfp4_compressed_tensors(const EncodeArgs& args) {
  constexpr float kInsteadOfZero = 0.125f;
  const float global = args.stored_global;
  encode_blocks(
      args,
      [&](float amax) {
        const float scale = global * rounded_to(args.source, amax / kFp4Largest);
        const uint8_t bits = encode_fp8_e4m3(scale);
        return bits != 0 ? bits : encode_fp8_e4m3(kInsteadOfZero);
      },
      [&](uint8_t scale) { return decode_fp8_e4m3(scale) / global; },
      [](float x) { return uint32_t{encode_fp4_signed(x)}; });
}

const WeightFormat kNvfp4 = {
    .name = "nvfp4",
    .summary =
        "NVFP4 (E2M1, one E4M3 scale per 16 inputs, one float32 per tensor), 4.5 bits a "
        "weight",
    .data_dtype = DType::kU8,
    .scale_dtype = DType::kF8E4M3,
    .bits_per_element = 4,
    .block_in = kBlock,
    .activation = ActivationRounding::kNvfp4,
    .has_global_scale = true,
    .decode_row = decode_row,
    .encode_row = encode_row,
};

}  // namespace eyrie::formats
