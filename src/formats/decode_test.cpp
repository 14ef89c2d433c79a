// Every format of the table against its definition, written down here once more in float64: all
// codes under all scales where there are few enough of them, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "formats/weight.h"

namespace eyrie::formats {
namespace {

// s e…e m…m with that many bits; biased exponent 0 is subnormal. NaN and infinity are the caller's.
double mini_float(uint32_t bits, int exponent_bits, int mantissa_bits, int bias) {
  const auto mantissa = static_cast<double>(bits & ((1u << mantissa_bits) - 1));
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const double one = std::ldexp(1.0, mantissa_bits);
  const double value = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                     : std::ldexp(one + mantissa, exponent - bias - mantissa_bits);
  return (bits >> (mantissa_bits + exponent_bits)) & 1 ? -value : value;
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double e2m1(uint32_t nibble) { return mini_float(nibble, 2, 1, 1); }
double e4m3(uint32_t byte) { return (byte & 0x7f) == 0x7f ? kNan : mini_float(byte, 4, 3, 7); }
double e8m0(uint32_t byte) {
  return byte == 255 ? kNan : std::ldexp(1.0, static_cast<int>(byte) - 127);
}
double half(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const uint32_t all_ones = (1u << exponent_bits) - 1;
  if (((bits >> mantissa_bits) & all_ones) == all_ones) {
    const double infinity = std::numeric_limits<double>::infinity();
    if (bits & ((1u << mantissa_bits) - 1)) return kNan;
    return bits >> (mantissa_bits + exponent_bits) ? -infinity : infinity;
  }
  return mini_float(bits, exponent_bits, mantissa_bits, (1 << (exponent_bits - 1)) - 1);
}

// Same number, sign of zero included, or both NaN.
::testing::AssertionResult same(float got, double want) {
  const auto rounded = static_cast<float>(want);
  if (std::isnan(got) && std::isnan(rounded)) return ::testing::AssertionSuccess();
  if (std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(rounded)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << got << " instead of " << rounded;
}

std::vector<float> decoded_row(const Weight& weight, int64_t row = 0) {
  std::vector<float> values(static_cast<size_t>(weight.in));
  weight.format->decode_row(weight, row, values);
  return values;
}

template <typename T>
Tensor tensor_of(std::vector<T>& values, DType dtype, int64_t rows) {
  return Tensor(values.data(), dtype, {rows, static_cast<int64_t>(values.size()) / rows});
}

// All 65536 codes of a 16-bit float.
void check_halves(const WeightFormat& format, int exponent_bits, int mantissa_bits) {
  std::vector<uint16_t> codes(65536);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
  const Weight weight = {.format = &format,
                         .out = 1,
                         .in = 65536,
                         .data = tensor_of(codes, format.data_dtype, 1),
                         .scales = {}};
  const std::vector<float> values = decoded_row(weight);
  for (uint32_t i = 0; i < 65536; ++i) {
    ASSERT_TRUE(same(values[i], half(i, exponent_bits, mantissa_bits))) << i;
  }
}

void check_f32() {
  std::vector<float> values = {0.0f, -0.0f, 1e-45f, -3e38f, 0.1f};
  const Weight weight = {
      .format = &kF32, .out = 1, .in = 5, .data = tensor_of(values, DType::kF32, 1), .scales = {}};
  EXPECT_EQ(decoded_row(weight), values);
}

const std::vector<float> kFloatScales = {1.0f, 0x1p-23f, 0.0020089287f, 3.0f, 1e-30f, 0.0f};

// All 256 codes under scales of a row, a row each.
void check_fp8() {
  std::vector<uint8_t> codes;
  for (size_t i = 0; i < kFloatScales.size() * 256; ++i) codes.push_back(static_cast<uint8_t>(i));
  std::vector<float> scales = kFloatScales;
  const auto rows = static_cast<int64_t>(scales.size());
  const Weight weight = {.format = &kFp8,
                         .out = rows,
                         .in = 256,
                         .data = tensor_of(codes, DType::kF8E4M3, rows),
                         .scales = tensor_of(scales, DType::kF32, rows)};
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<float> values = decoded_row(weight, row);
    for (uint32_t i = 0; i < 256; ++i) {
      ASSERT_TRUE(same(values[i], e4m3(i) * scales[static_cast<size_t>(row)])) << i;
    }
  }
}

// Rows 127 and 128 belong to different blocks, columns 127 and 128 too.
void check_fp8_block() {
  constexpr int64_t kRows = 130, kColumns = 256;
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < kRows * kColumns; ++i) codes.push_back(static_cast<uint8_t>(i * 7));
  std::vector<float> scales = {1.0f, 0.0020089287f, 0x1p-23f, 3.0f};
  const Weight weight = {.format = &kFp8Block,
                         .out = kRows,
                         .in = kColumns,
                         .data = tensor_of(codes, DType::kF8E4M3, kRows),
                         .scales = tensor_of(scales, DType::kF32, 2)};
  for (int64_t row = 0; row < kRows; ++row) {
    const std::vector<float> values = decoded_row(weight, row);
    for (int64_t i = 0; i < kColumns; ++i) {
      const double scale = scales[static_cast<size_t>(row / 128 * 2 + i / 128)];
      const double code = e4m3(codes[static_cast<size_t>(row * kColumns + i)]);
      ASSERT_TRUE(same(values[static_cast<size_t>(i)], code * scale)) << row << " " << i;
    }
  }
}

// One block for each scale byte: all 16 codes under all 256 scales, in both nibbles of a byte.
void check_nibbles(const WeightFormat& format, float global,
                   const std::function<double(uint32_t)>& scale_of) {
  const auto block = static_cast<size_t>(format.block_in);
  std::vector<uint8_t> data, scales;
  for (uint32_t scale = 0; scale < 256; ++scale) {
    scales.push_back(static_cast<uint8_t>(scale));
    for (uint32_t i = 0; i < block / 2; ++i) {  // codes 0…15, then (blocks of 32) 15…0
      const uint32_t low = i < 8 ? 2 * i : 31 - 2 * i, high = i < 8 ? 2 * i + 1 : 30 - 2 * i;
      data.push_back(static_cast<uint8_t>(low | (high << 4)));
    }
  }
  const Weight weight = {.format = &format,
                         .out = 1,
                         .in = static_cast<int64_t>(256 * block),
                         .data = tensor_of(data, format.data_dtype, 1),
                         .scales = tensor_of(scales, format.scale_dtype, 1),
                         .global_scale = global};
  const std::vector<float> values = decoded_row(weight);
  for (uint32_t i = 0; i < values.size(); ++i) {
    const uint32_t place = i % static_cast<uint32_t>(block);
    const uint32_t code = place < 16 ? place : 31 - place;
    const auto scale = static_cast<uint32_t>(i / block);
    // The two scales are multiplied first, in float32.
    const double both = static_cast<float>(scale_of(scale) * global);
    ASSERT_TRUE(same(values[i], e2m1(code) * both)) << "code " << code << " scale " << scale;
  }
}

// All 16 codes under every bfloat16 there is.
void check_int4() {
  std::vector<int32_t> data;
  std::vector<uint16_t> scales;
  for (uint32_t scale = 0; scale < 65536; ++scale) {
    scales.push_back(static_cast<uint16_t>(scale));
    data.insert(data.end(), {0x76543210, static_cast<int32_t>(0xfedcba98u), 0x76543210,
                             static_cast<int32_t>(0xfedcba98u)});
  }
  const Weight weight = {.format = &kInt4G32,
                         .out = 1,
                         .in = 65536 * 32,
                         .data = tensor_of(data, DType::kI32, 1),
                         .scales = tensor_of(scales, DType::kBF16, 1)};
  const std::vector<float> values = decoded_row(weight);
  for (uint32_t i = 0; i < values.size(); ++i) {
    const double code = static_cast<double>(i % 16) - 8;
    ASSERT_TRUE(same(values[i], code * half(i / 32, 8, 7))) << i;
  }
}

TEST(DecodeTest, EveryFormatOfTheTableIsItsDefinition) {
  const std::map<const WeightFormat*, std::function<void()>> checks = {
      {&kF32, check_f32},
      {&kBF16, [] { check_halves(kBF16, 8, 7); }},
      {&kF16, [] { check_halves(kF16, 5, 10); }},
      {&kFp8, check_fp8},
      {&kFp8Block, check_fp8_block},
      {&kMxfp4, [] { check_nibbles(kMxfp4, 1.0f, e8m0); }},
      {&kNvfp4,
       [] {
         for (const float global : {1.0f, 2.7901787e-4f, 0x1p-20f}) {
           check_nibbles(kNvfp4, global, e4m3);
         }
       }},
      {&kInt4G32, check_int4}};
  for (const WeightFormat* format : all_formats()) {
    SCOPED_TRACE(format->name);
    const auto check = checks.find(format);
    ASSERT_NE(check, checks.end()) << "a format without a definition here";
    check->second();
  }
}

}  // namespace
}  // namespace eyrie::formats
