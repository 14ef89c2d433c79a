// MXFP4 (OCP Microscaling): E2M1 elements, 32 along the input dimension share one E8M0 scale byte.
// Element 2i lies in the low nibble of byte i, element 2i+1 in the high one.
//
// Scale rule: AMD Quark's default ("even"). The largest magnitude is rounded to E2M1's own
// precision (one mantissa bit) before its exponent is taken, so a mantissa of 1.75 or more moves
// the scale up: amax / scale lies in [3.5, 7) and at most 1/7 of the largest element is clipped.
// Elements round to nearest, ties to even. A block of zeros has scale byte 1 in Quark's files (0.13
// takes the logarithm of the smallest normal float instead of zero), 0 in compressed-tensors'.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "formats/encoders.h"

namespace eyrie::formats {
namespace {

constexpr int kBlock = 32;
constexpr int kLargestExponent = 2;  // of E2M1: 6 = 1.5 · 2^2
constexpr uint8_t kQuarksSmallestScale = 1;
constexpr uint32_t kHalfOfLastBit = 0x200000;  // 1 << (23 - 1 mantissa bit - 1)

constexpr std::array<float, 16> kTable = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// Code of a magnitude: how many of the rounding boundaries lie below. A boundary belongs to its
// even neighbour: with `>` to the code below it, with `>=` to the one above.
inline uint32_t magnitude_code(float a) {
  return static_cast<uint32_t>(a > 0.25f) + static_cast<uint32_t>(a >= 0.75f) +
         static_cast<uint32_t>(a > 1.25f) + static_cast<uint32_t>(a >= 1.75f) +
         static_cast<uint32_t>(a > 2.5f) + static_cast<uint32_t>(a >= 3.5f) +
         static_cast<uint32_t>(a > 5.0f);
}

inline uint32_t code_of(float value) {
  const uint32_t magnitude = magnitude_code(std::fabs(value));
  const uint32_t sign = (std::bit_cast<uint32_t>(value) >> 28) & 8u;
  return magnitude | (magnitude != 0 ? sign : 0u);  // Quark writes +0 for what rounds to zero
}

inline uint32_t signed_code_of(float value) {  // hardware and compressed-tensors keep -0
  return magnitude_code(std::fabs(value)) | ((std::bit_cast<uint32_t>(value) >> 28) & 8u);
}

template <typename CodeOf>
void encode_block(const float* x, std::byte* packed, std::byte* scale, uint8_t smallest_scale,
                  CodeOf&& to_code) {
  uint32_t amax_bits = 0;  // magnitudes order like their bit patterns
  for (int i = 0; i < kBlock; ++i) {
    amax_bits = std::max(amax_bits, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  }
  CHECK(amax_bits < 0x7f800000u, "a block to encode as mxfp4 must be finite");
  const uint8_t scale_bits = std::max(smallest_scale, mxfp4_scale(std::bit_cast<float>(amax_bits)));
  // 1 / scale is a power of two, so the product is exact (2^-127 is subnormal but representable).
  const float inverse = decode_e8m0(static_cast<uint8_t>(254 - scale_bits));
  std::array<uint32_t, kBlock> codes{};
  for (size_t i = 0; i < kBlock; ++i) codes[i] = to_code(x[i] * inverse);
  for (size_t i = 0; i < kBlock / 2; ++i) {
    packed[i] = static_cast<std::byte>(codes[2 * i] | (codes[2 * i + 1] << 4));
  }
  *scale = std::byte{scale_bits};
}

void decode_row(const Weight& weight, int64_t row, std::span<float> out) {
  const uint8_t* packed = row_of<uint8_t>(weight.data, row);
  const uint8_t* scales = row_of<uint8_t>(weight.scales, row);
  for (size_t i = 0; i < out.size(); i += 2) {
    const float scale = decode_e8m0(scales[i / kBlock]);
    out[i] = kTable[packed[i / 2] & 15u] * scale;
    out[i + 1] = kTable[packed[i / 2] >> 4] * scale;
  }
}

template <typename CodeOf>
void encode(std::span<const float> row, std::span<std::byte> data, std::span<std::byte> scales,
            uint8_t smallest_scale, CodeOf&& to_code) {
  CHECK_EQ(row.size() % kBlock, 0u);
  for (size_t block = 0; block < row.size() / kBlock; ++block) {
    encode_block(&row[block * kBlock], &data[block * kBlock / 2], &scales[block], smallest_scale,
                 to_code);
  }
}

void encode_row(std::span<const float> row, std::span<std::byte> data,
                std::span<std::byte> scales) {
  encode(row, data, scales, kQuarksSmallestScale, code_of);
}

}  // namespace

void encode_mxfp4(const EncodeArgs& args) { encode_row(args.rows, args.data, args.scales); }

void encode_mxfp4_signed(const EncodeArgs& args) {
  encode(args.rows, args.data, args.scales, 0, signed_code_of);
}

float decode_fp4_e2m1(uint8_t nibble) { return kTable[nibble & 15u]; }

uint8_t encode_fp4_e2m1(float value) { return static_cast<uint8_t>(code_of(value)); }

uint8_t encode_fp4_signed(float value) { return static_cast<uint8_t>(signed_code_of(value)); }

float decode_e8m0(uint8_t bits) {
  if (bits == 255) return std::numeric_limits<float>::quiet_NaN();
  if (bits == 0) return 0x1.0p-127f;  // a float32 subnormal: the shift below would give 0
  return std::bit_cast<float>(uint32_t{bits} << 23);
}

uint8_t mxfp4_scale(float amax) {
  const uint32_t rounded = (std::bit_cast<uint32_t>(amax) & 0x7fffffffu) + kHalfOfLastBit;
  const int biased = static_cast<int>(rounded >> 23) - kLargestExponent;
  return static_cast<uint8_t>(std::clamp(biased, 0, 254));
}

const WeightFormat kMxfp4 = {
    .name = "mxfp4",
    .summary = "OCP MXFP4 (E2M1, one E8M0 scale per 32 inputs), 4.25 bits a weight",
    .data_dtype = DType::kU8,
    .scale_dtype = DType::kU8,
    .bits_per_element = 4,
    .block_in = kBlock,
    .activation = ActivationRounding::kMxfp4,
    .decode_row = decode_row,
    .encode_row = encode_row,
};

}  // namespace eyrie::formats
