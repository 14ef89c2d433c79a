// Encodings without scales: float32, bfloat16 and float16, as checkpoints store them.
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/weight.h"

namespace eyrie::formats {
namespace {

void decode_f32_row(const Weight& weight, int64_t row, std::span<float> out) {
  std::memcpy(out.data(), row_of<float>(weight.data, row), out.size_bytes());
}

void encode_f32_row(std::span<const float> row, std::span<std::byte> data, std::span<std::byte>) {
  std::memcpy(data.data(), row.data(), row.size_bytes());
}

void decode_bf16_row(const Weight& weight, int64_t row, std::span<float> out) {
  const bf16* source = row_of<bf16>(weight.data, row);
  for (size_t i = 0; i < out.size(); ++i) out[i] = to_float(source[i]);
}

void encode_bf16_row(std::span<const float> row, std::span<std::byte> data, std::span<std::byte>) {
  auto* target = reinterpret_cast<bf16*>(data.data());
  for (size_t i = 0; i < row.size(); ++i) target[i] = to_bf16(row[i]);
}

void decode_f16_row(const Weight& weight, int64_t row, std::span<float> out) {
  const uint16_t* source = row_of<uint16_t>(weight.data, row);
  for (size_t i = 0; i < out.size(); ++i) out[i] = decode_f16(source[i]);
}

void encode_f16_row(std::span<const float> row, std::span<std::byte> data, std::span<std::byte>) {
  auto* target = reinterpret_cast<uint16_t*>(data.data());
  for (size_t i = 0; i < row.size(); ++i) target[i] = encode_f16(row[i]);
}

}  // namespace

float decode_f16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // Inf, NaN: all exponent bits set
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude < 0x0400u) {  // subnormal: a count of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1.0p-24f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

uint16_t encode_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  }
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // ≥ 65520 rounds to infinity
  if (magnitude < 0x38800000u) {                        // < 2^-14: subnormal
    // 0.5 has a last bit of 2^-24, so the addition rounds to it.
    const float rounded = std::fabs(value) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t rounded = magnitude + 0xfffu + odd - ((127u - 15u) << 23);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

const WeightFormat kF32 = {
    .name = "f32",
    .summary = "float32, 32 bits a weight",
    .data_dtype = DType::kF32,
    .scale_dtype = DType::kF32,
    .bits_per_element = 32,
    .block_in = 0,
    .activation = ActivationRounding::kNone,
    .decode_row = decode_f32_row,
    .encode_row = encode_f32_row,
};

const WeightFormat kBF16 = {
    .name = "bf16",
    .summary = "bfloat16, 16 bits a weight",
    .data_dtype = DType::kBF16,
    .scale_dtype = DType::kF32,
    .bits_per_element = 16,
    .block_in = 0,
    .activation = ActivationRounding::kNone,
    .decode_row = decode_bf16_row,
    .encode_row = encode_bf16_row,
};

const WeightFormat kF16 = {
    .name = "f16",
    .summary = "float16, 16 bits a weight",
    .data_dtype = DType::kF16,
    .scale_dtype = DType::kF32,
    .bits_per_element = 16,
    .block_in = 0,
    .activation = ActivationRounding::kNone,
    .decode_row = decode_f16_row,
    .encode_row = encode_f16_row,
};

}  // namespace eyrie::formats
