#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "formats/recipe.h"

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
  result.weight = {
      .format = &format,
      .out = out,
      .in = in,
      .data = Tensor(result.data.data(), format.data_dtype, {out, format.data_columns(in)}),
      .scales = scale_row == 0 ? Tensor{}
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

// What a format can represent, it keeps: decoded values come back from a second encoding. (Not so
// nvfp4 and int4-g32, whose scale moves when the largest element is clipped or rounded to 4.)
TEST(FormatsTest, DecodedValuesSurviveASecondEncoding) {
  for (const WeightFormat* format : {&kF32, &kBF16, &kF16, &kFp8, &kMxfp4}) {
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
  EXPECT_EQ(decode(weight_rows(all.weight, 1, 2)),
            std::vector<float>(whole.begin() + 32, whole.begin() + 96));
}

// Blocks of rows are the exception: the view remembers where in its blocks it begins.
TEST(FormatsTest, BlocksOfRowsDecodeThroughARowView) {
  const EncodedMatrix all = encode_matrix(*find_recipe(kFp8Block), noise(300 * 130, 1), 300, 130);
  EXPECT_EQ(all.weight.scales.shape_string(), "[3, 2] F32");
  const std::vector<float> whole = decode(all.weight);
  const Weight part = weight_rows(weight_rows(all.weight, 100, 160), 20, 140);  // rows 120…259
  EXPECT_EQ(decode(part), std::vector<float>(whole.begin() + 120 * 130, whole.begin() + 260 * 130));
}

TEST(Fp8BlockTest, WorkedTile) {
  std::vector<float> x(128 * 128, 0.0f);
  x[0] = 0.5f, x[1] = -1, x[129] = 0.25f, x[128 * 127] = 0.125f;
  const EncodedMatrix tile = encode_matrix(*find_recipe(kFp8Block), x, 128, 128);
  EXPECT_EQ(std::bit_cast<uint32_t>(tile.scales.as<float>()[0]), 0x3B124925u);
  const auto code = [&](size_t i) { return static_cast<int>(tile.data.data()[i]); };
  EXPECT_EQ(code(0), 0x76);
  EXPECT_EQ(code(1), 0xFE);
  EXPECT_EQ(code(129), 0x6E);
  EXPECT_EQ(code(128 * 127), 0x66);
}

// Edges of the matrix are blocks of what is left; a block of zeros has scale 1.
TEST(Fp8BlockTest, EveryShapeKeepsItsValues) {
  for (const int64_t out : {1, 127, 128, 129}) {
    for (const int64_t in : {1, 128, 200}) {
      const std::vector<float> x = noise(static_cast<size_t>(out * in), 0.03f);
      const std::vector<float> y =
          decode(encode_matrix(*find_recipe(kFp8Block), x, out, in).weight);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(y[i], x[i], std::fabs(x[i]) * 0x1.0p-4f + 0.03f / 448 * 0x1.0p-9f);
      }
    }
  }
  const EncodedMatrix zero =
      encode_matrix(*find_recipe(kFp8Block), std::vector<float>(6, 0.0f), 2, 3);
  EXPECT_EQ(zero.scales.as<float>()[0], 1);
}

// The worked block: tensor amax 0.75, so the global scale is 0.75 / 2688.
TEST(Nvfp4Test, WorkedBlock) {
  std::vector<float> w = {.02f,  -.035f, 0,      .011f, .06f,  -.048f, .005f,  .03f, -.0175f,
                          .041f, .0082f, -.022f, 0,     .015f, -.055f, .0333f, .75f};
  w.resize(32, 0.0f);
  const EncodedMatrix row = encode_matrix(*find_recipe(kNvfp4), w, 1, 32);
  EXPECT_EQ(std::bit_cast<uint32_t>(row.weight.global_scale), 0x39924925u);
  EXPECT_EQ(row.scales.data()[0], std::byte{0x61});
  const std::vector<int> expected = {0xD4, 0x20, 0xE7, 0x51, 0x6B, 0xC2, 0x30, 0x5F};
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(static_cast<int>(row.data.data()[i]), expected[i]) << i;
  const std::vector<float> values = decode(row.weight);
  EXPECT_NEAR(values[0], .020089f, 1e-6f);
  EXPECT_NEAR(values[14], -.060268f, 1e-6f);
  EXPECT_EQ(values[16], .75f);
}

// Every E2M1 code under every E4M3 scale, in double: code · scale · global.
TEST(Nvfp4Test, DecodesEveryCodeUnderEveryScale) {
  const std::vector<double> codes = {0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6};
  std::vector<uint8_t> data = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};
  for (int bits = 0; bits < 127; ++bits) {
    auto scale = static_cast<uint8_t>(bits);
    const Weight weight = {.format = &kNvfp4,
                           .out = 1,
                           .in = 16,
                           .data = Tensor(data.data(), DType::kU8, {1, 8}),
                           .scales = Tensor(&scale, DType::kF8E4M3, {1, 1}),
                           .global_scale = 0.125f};
    const std::vector<float> values = decode(weight);
    const double exact = bits < 8 ? std::ldexp(bits, -9) : std::ldexp(8 + bits % 8, bits / 8 - 10);
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(values[i], codes[i] * exact * 0.125) << bits;
  }
}

TEST(Int4Test, WorkedGroup) {
  std::vector<float> w = {.07f, -.07f, .035f, -.035f, 0, .01f, -.01f, .0525f};
  w.resize(32, 0.0f);
  const EncodedMatrix group = encode_matrix(*find_recipe(kInt4G32), w, 1, 32);
  EXPECT_EQ(group.scales.as<uint16_t>()[0], 0x3C19);
  EXPECT_EQ(group.data.as<int32_t>()[0], static_cast<int32_t>(0xE7984C1F));
}

TEST(Int4Test, DecodesEveryCode) {
  std::vector<int32_t> data = {0x76543210, static_cast<int32_t>(0xfedcba98), 0, 0};
  std::vector<bf16> scales = {to_bf16(0.375f)};
  const Weight weight = {.format = &kInt4G32,
                         .out = 1,
                         .in = 32,
                         .data = Tensor::of(data.data(), {1, 4}),
                         .scales = Tensor::of(scales.data(), {1, 1})};
  const std::vector<float> values = decode(weight);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], (i - 8) * 0.375f);
}

// The worked activation block: input scale 20 / 2688, block scale 144 of the wanted 138.88.
TEST(ActivationTest, Nvfp4WorkedBlock) {
  std::vector<float> x = {1.2f, -.3f, 2.4f,  .05f, -6.2f, .9f,  3.3f, -1.1f,
                          0,    .6f,  -2.2f, 4.8f, .1f,   -.7f, 1.9f, 5.5f};
  round_activation_nvfp4(x, 20.0f / 2688);
  const std::vector<float> codes = {1, -.5f, 2, 0, -6, 1, 3, -1, 0, .5f, -2, 4, 0, -.5f, 2, 5.5f};
  const float scale = 144 * (20.0f / 2688);
  for (size_t i = 0; i < 15; ++i) EXPECT_NEAR(x[i], codes[i] * scale, 1e-5f) << i;
  std::vector<float> zeros(16, 0.0f);
  round_activation_nvfp4(zeros, 0);
  EXPECT_EQ(zeros, std::vector<float>(16, 0.0f));
}

TEST(ActivationTest, Fp8BlocksHaveAScaleEach) {
  std::vector<float> x(200, 0.0f);
  x[0] = 3.3f, x[1] = 0.01f, x[128] = 1e-6f;
  std::vector<float> y = x;
  round_activation_fp8_blocks(y);
  EXPECT_FLOAT_EQ(y[0], 3.3f);
  EXPECT_NEAR(y[1], 0.01f, 0.01f / 16);
  EXPECT_FLOAT_EQ(y[128], 4.5f * (1e-4f / 448));  // the scale never falls below 1e-4 / 448
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
