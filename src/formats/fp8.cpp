// FP8 E4M3 (the OCP "fn" variant: no Inf, NaN is 0x7F/0xFF, largest 448) with one float32 scale per
// output row, as AMD Quark's ptpc_fp8 checkpoints store it: weight = e4m3 · scale[row].
//
// Scale rule (Quark): max|row| / 448 in float32, and 2^-23 for a row of zeros. Codes are the row
// divided by that scale in float32. Quark itself divides in the weight's own dtype by a scale
// rounded to it, which for BF16 input adds up to 2^-8 of error that its stored scale does not undo;
// scales are equal, codes may differ by a step. compressed-tensors computes and stores the scale in
// the weight's dtype and divides in it.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/encoders.h"

namespace eyrie::formats {
namespace {

constexpr float kLargest = 448.0f;
constexpr float kZeroRowScale = 0x1.0p-23f;

constexpr float power_of_two(int exponent) {  // normal range only
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

constexpr std::array<float, 256> make_table() {
  std::array<float, 256> table{};
  for (uint32_t bits = 0; bits < 128; ++bits) {
    const uint32_t exponent = bits >> 3;
    const auto mantissa = static_cast<float>(bits & 7u);
    float value = exponent == 0 ? mantissa * power_of_two(-9)
                                : (8.0f + mantissa) * power_of_two(static_cast<int>(exponent) - 10);
    if (bits == 0x7f) value = std::bit_cast<float>(0x7fc00000u);
    table[bits] = value;
    table[bits | 0x80u] = -value;
  }
  return table;
}

constexpr std::array<float, 256> kTable = make_table();

void decode_row(const Weight& weight, int64_t row, std::span<float> out) {
  const uint8_t* codes = row_of<uint8_t>(weight.data, row);
  const float scale = *row_of<float>(weight.scales, row);
  for (size_t i = 0; i < out.size(); ++i) out[i] = kTable[codes[i]] * scale;
}

float largest_of(std::span<const float> row) {
  float amax = 0.0f;
  for (const float x : row) amax = std::max(amax, std::fabs(x));
  CHECK(std::isfinite(amax), "a row to encode as fp8 must be finite");
  return amax;
}

void encode_row(std::span<const float> row, std::span<std::byte> data,
                std::span<std::byte> scales) {
  float scale = largest_of(row) / kLargest;
  if (scale == 0.0f) scale = kZeroRowScale;
  for (size_t i = 0; i < row.size(); ++i) data[i] = std::byte{encode_fp8_e4m3(row[i] / scale)};
  std::memcpy(scales.data(), &scale, sizeof scale);
}

// Codes by a division in the source's dtype.
void divide(const EncodeArgs& args, float scale) {
  for (size_t i = 0; i < args.rows.size(); ++i) {
    args.data[i] = std::byte{encode_fp8_e4m3(rounded_to(args.source, args.rows[i] / scale))};
  }
}

}  // namespace

void encode_fp8(const EncodeArgs& args) { encode_row(args.rows, args.data, args.scales); }

void encode_fp8_quark(const EncodeArgs& args) {
  float scale = largest_of(args.rows) / kLargest;
  if (scale == 0.0f) scale = kZeroRowScale;
  divide(args, rounded_to(args.source, scale));
  std::memcpy(args.scales.data(), &scale, sizeof scale);
}

void encode_fp8_compressed_tensors(const EncodeArgs& args) {
  bf16 stored = to_bf16(rounded_to(args.source, largest_of(args.rows) / kLargest));
  if (to_float(stored) == 0.0f) stored = to_bf16(epsilon_of(DType::kBF16));
  divide(args, to_float(stored));
  std::memcpy(args.scales.data(), &stored, sizeof stored);
}

float decode_fp8_e4m3(uint8_t bits) { return kTable[bits]; }

uint8_t encode_fp8_e4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;   // NaN
  if (magnitude >= 0x43e00000u) return sign | 0x7eu;  // ≥ 448 saturates
  if (magnitude < 0x3c800000u) {                      // < 2^-6: subnormal
    // 2^14 has a last bit of 2^-9, so the addition rounds to it.
    const float rounded = std::fabs(value) + 0x1.0p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x46800000u));
  }
  const uint32_t odd = (magnitude >> 20) & 1u;
  const uint32_t rounded = magnitude + 0x7ffffu + odd - ((127u - 7u) << 23);
  return static_cast<uint8_t>(sign | (rounded >> 20));
}

const WeightFormat kFp8 = {
    .name = "fp8",
    .summary = "FP8 E4M3, one float32 scale per output row, 8 bits a weight",
    .data_dtype = DType::kF8E4M3,
    .scale_dtype = DType::kF32,
    .bits_per_element = 8,
    .block_in = -1,
    .activation = ActivationRounding::kFp8PerToken,
    .decode_row = decode_row,
    .encode_row = encode_row,
};

}  // namespace eyrie::formats
