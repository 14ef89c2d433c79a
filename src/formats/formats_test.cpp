#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "formats/weight.h"

namespace eyrie::formats {
namespace {

// A Weight with its memory, encoded from rows of float32.
struct Encoded {
  std::vector<std::byte> data, scales;
  Weight weight;
};

Encoded encode(const WeightFormat& format, const std::vector<float>& values, int64_t out,
               int64_t in) {
  Encoded result;
  const size_t data_row =
      static_cast<size_t>(format.data_columns(in)) * dtype_bytes(format.data_dtype);
  const size_t scale_row =
      static_cast<size_t>(format.scale_columns(in)) * dtype_bytes(format.scale_dtype);
  result.data.resize(data_row * static_cast<size_t>(out));
  result.scales.resize(scale_row * static_cast<size_t>(out));
  for (size_t row = 0; row < static_cast<size_t>(out); ++row) {
    format.encode_row({&values[row * static_cast<size_t>(in)], static_cast<size_t>(in)},
                      {&result.data[row * data_row], data_row},
                      {result.scales.data() + row * scale_row, scale_row});
  }
  result.weight = {&format, out, in,
                   Tensor(result.data.data(), format.data_dtype, {out, format.data_columns(in)}),
                   scale_row == 0 ? Tensor{}
                                  : Tensor(result.scales.data(), format.scale_dtype,
                                           {out, format.scale_columns(in)})};
  return result;
}

std::vector<float> decode(const Weight& weight) {
  std::vector<float> values(static_cast<size_t>(weight.out * weight.in));
  for (int64_t row = 0; row < weight.out; ++row) {
    weight.format->decode_row(
        weight, row,
        {&values[static_cast<size_t>(row * weight.in)], static_cast<size_t>(weight.in)});
  }
  return values;
}

std::vector<float> noise(size_t count, float scale) {
  const NoiseStream stream(7);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const double uniform = uniform_open(stream.block(i, 0)[0], stream.block(i, 0)[1]);
    values[i] = scale * static_cast<float>(2.0 * uniform - 1.0);
  }
  return values;
}

TEST(FormatsTest, TableFindsEveryRowByName) {
  for (const WeightFormat* format : all_formats()) {
    EXPECT_EQ(find_format(format->name), format);
    EXPECT_NE(format->decode_row, nullptr);
    EXPECT_FALSE(format->summary.empty());
  }
  EXPECT_EQ(find_format("int3"), nullptr);
}

TEST(FormatsTest, SizesAreThoseOfTheFiles) {
  EXPECT_EQ(kMxfp4.data_columns(7168), 3584);
  EXPECT_EQ(kMxfp4.scale_columns(7168), 224);
  EXPECT_EQ(kFp8.data_columns(14336), 14336);
  EXPECT_EQ(kFp8.scale_columns(14336), 1);
  EXPECT_EQ(kBF16.data_columns(100), 100);
  EXPECT_EQ(kBF16.scale_columns(100), 0);
  const Encoded mx = encode(kMxfp4, noise(3 * 64, 1), 3, 64);
  EXPECT_EQ(weight_bytes(mx.weight), 3u * (32 + 2));
  const Encoded plain = encode(kBF16, noise(3 * 5, 1), 3, 5);
  EXPECT_EQ(weight_bytes(plain.weight), 30u);
}

// What a format can represent, it keeps: decoded values come back from a second encoding.
TEST(FormatsTest, DecodedValuesSurviveASecondEncoding) {
  for (const WeightFormat* format : all_formats()) {
    const Encoded first = encode(*format, noise(5 * 96, 0.05f), 5, 96);
    const std::vector<float> values = decode(first.weight);
    const Encoded second = encode(*format, values, 5, 96);
    EXPECT_EQ(decode(second.weight), values) << format->name;
  }
}

TEST(FormatsTest, ErrorStaysWithinHalfAStep) {
  const std::vector<float> x = noise(4 * 128, 0.03f);
  const std::vector<float> mx = decode(encode(kMxfp4, x, 4, 128).weight);
  const std::vector<float> fp8 = decode(encode(kFp8, x, 4, 128).weight);
  for (size_t i = 0; i < x.size(); ++i) {
    // Per block, the widest E2M1 step is 2 scales and amax < 7 scales, clipped by less than one.
    EXPECT_NEAR(mx[i], x[i], 0.03f / 3.5f);
    EXPECT_NEAR(fp8[i], x[i], std::fabs(x[i]) * 0x1.0p-4f + 0.03f / 448 * 0x1.0p-9f);
  }
}

// The worked block of the MXFP4 rule, by hand: amax 7.5 has mantissa 1.875, so the scale is 2.
TEST(Mxfp4Test, WorkedBlock) {
  const std::vector<float> x = {0,     .5f,   -.5f, 1,    -1,   1.25f, -1.75f, 2.5f,
                                3,     -3.5f, 5,    -5,   6,    .25f,  -.2f,   .75f,
                                7.5f,  -4.4f, 2.2f, -.1f, .3f,  1.6f,  -2.9f,  4.9f,
                                -6.5f, .05f,  -.9f, 3.3f, 1.1f, -1.4f, .7f,    -7};
  const Encoded block = encode(kMxfp4, x, 1, 32);
  EXPECT_EQ(block.scales[0], std::byte{0x80});
  const std::vector<float> expected = {0, 0,  0, 1, -1, 1, -2, 2, 3,  -4, 4,  -4, 6, 0,  0, 1,
                                       8, -4, 2, 0, 0,  2, -3, 4, -6, 0,  -1, 3,  1, -1, 1, -8};
  EXPECT_EQ(decode(block.weight), expected);
  EXPECT_EQ(block.data[1], std::byte{0x10});  // -0.5 / 2 rounds to +0, then 1 / 2 is code 1
}

TEST(Mxfp4Test, ScaleFollowsTheEvenRule) {
  const std::vector<std::pair<float, int>> cases = {
      {0.0f, 0},      {0.75f, 124},   {0.875f, 125}, {1.0f, 125},
      {1.74f, 125},   {1.75f, 126},   {2.0f, 126},   {3.5f, 127},
      {6.99f, 127},   {7.0f, 128},    {8.0f, 128},   {448.0f, 134},
      {0x1p-120f, 5}, {0x1p-125f, 0}, {1e-45f, 0},   {std::numeric_limits<float>::max(), 253}};
  for (const auto& [amax, expected] : cases) EXPECT_EQ(mxfp4_scale(amax), expected) << amax;
}

TEST(Mxfp4Test, TiesGoToTheEvenCode) {
  const std::vector<std::pair<float, int>> cases = {{.25f, 0}, {.75f, 2}, {1.25f, 2}, {1.75f, 4},
                                                    {2.5f, 4}, {3.5f, 6}, {5.0f, 6},  {5.01f, 7},
                                                    {1e9f, 7}, {0.26f, 1}};
  for (const auto& [value, expected] : cases) {
    EXPECT_EQ(encode_fp4_e2m1(value), expected) << value;
    EXPECT_EQ(encode_fp4_e2m1(-value), expected == 0 ? 0 : expected + 8) << value;
  }
  for (uint8_t code = 0; code < 16; ++code) {
    EXPECT_EQ(encode_fp4_e2m1(decode_fp4_e2m1(code)), code == 8 ? 0 : code);
  }
}

TEST(Mxfp4Test, E8m0IsAPowerOfTwoForEveryByte) {
  for (int bits = 0; bits < 255; ++bits) {
    EXPECT_EQ(decode_e8m0(static_cast<uint8_t>(bits)), std::ldexp(1.0f, bits - 127)) << bits;
  }
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
}

TEST(Mxfp4Test, NanScalePoisonsItsBlockOnly) {
  Encoded row = encode(kMxfp4, noise(64, 1), 1, 64);
  row.scales[1] = std::byte{255};
  const std::vector<float> values = decode(row.weight);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(std::isnan(values[i]), i >= 32) << i;
}

TEST(Fp8Test, WorkedRow) {
  const std::vector<float> x = {.11f, -.45f, .9f, -.02f, .3f, 0, .0007f, -.9f};
  const Encoded row = encode(kFp8, x, 1, 8);
  const std::vector<int> expected = {0x66, 0xF6, 0x7E, 0xD2, 0x71, 0x00, 0x2B, 0xFE};
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(static_cast<int>(row.data[i]), expected[i]) << i;
}

TEST(Fp8Test, RowOfZerosHasTheProducersScale) {
  const Encoded row = encode(kFp8, {0, 0, 0}, 1, 3);
  EXPECT_EQ(*reinterpret_cast<const float*>(row.scales.data()), 0x1p-23f);
  EXPECT_EQ(decode(row.weight), (std::vector<float>{0, 0, 0}));
}

TEST(Fp8Test, EveryFiniteCodeSurvivesARoundTrip) {
  for (int bits = 0; bits < 256; ++bits) {
    const auto code = static_cast<uint8_t>(bits);
    EXPECT_EQ(encode_fp8_e4m3(decode_fp8_e4m3(code)), code);  // NaN keeps its sign too
  }
  EXPECT_EQ(encode_fp8_e4m3(std::numeric_limits<float>::infinity()), 0x7E);
}

// A view into rows of a bigger matrix decodes the rows it names.
TEST(FormatsTest, DecodesThroughARowView) {
  Encoded all = encode(kMxfp4, noise(4 * 32, 1), 4, 32);
  const std::vector<float> whole = decode(all.weight);
  const Weight part = {&kMxfp4, 2, 32, all.weight.data.rows(1, 2), all.weight.scales.rows(1, 2)};
  EXPECT_EQ(decode(part), std::vector<float>(whole.begin() + 32, whole.begin() + 96));
}

TEST(FormatsTest, FiniteCheckSeesInfAndNan) {
  EXPECT_TRUE(all_finite(std::vector<float>{0, -1, 3e38f, 1e-45f}));
  EXPECT_TRUE(all_finite({}));
  EXPECT_FALSE(all_finite(std::vector<float>{0, std::numeric_limits<float>::infinity()}));
  EXPECT_FALSE(all_finite(std::vector<float>{std::numeric_limits<float>::quiet_NaN()}));
}

TEST(FormatsDeathTest, NonFiniteBlocksAreABug) {
  const std::vector<float> x(32, std::numeric_limits<float>::infinity());
  EXPECT_DEATH(encode(kMxfp4, x, 1, 32), "finite");
  EXPECT_DEATH(encode(kFp8, x, 1, 32), "finite");
}

}  // namespace
}  // namespace eyrie::formats
