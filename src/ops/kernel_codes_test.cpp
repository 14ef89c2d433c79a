// What the kernels of every format read and round: each code under each kind of scale exactly, the
// ends of a scale's range, NaN, blocks of zeros, emulated activations.
#include "base/error.h"
#include "ops/cpu/backend.h"
#include "ops/reference/reference.h"
#include "ops/weight_test_support.h"

namespace eyrie::ops {
namespace {

using formats::WeightFormat;

class KernelCodes : public EveryIsa {
 protected:
  Backend cpu_{cpu_ops(), 2};
  Backend reference_{reference_ops()};
};
INSTANTIATE_TEST_SUITE_P(Isa, KernelCodes, testing::ValuesIn(cpu::available_isas()), isa_name);

// Column k of the weight comes out for the k-th unit vector.
Matrix unit_vectors(int64_t n) {
  Matrix x(n, n);
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t c = 0; c < n; ++c) x.at(r, c) = r == c ? 1.0f : 0.0f;
  }
  return x;
}

void expect_exact(const Backend& backend, const Owned& weight) {
  const formats::Weight& w = weight.weight;
  const Matrix out = multiply(backend, weight, unit_vectors(w.in));
  std::vector<float> row(static_cast<size_t>(w.in));
  for (int64_t o = 0; o < w.out; ++o) {
    w.format->decode_row(w, o, row);
    for (int64_t k = 0; k < w.in; ++k) {
      ASSERT_EQ(out.at(k, o), row[static_cast<size_t>(k)])
          << w.format->name << " " << o << " " << k;
    }
  }
}

// ---- codes and scales ---------------------------------------------------------------------------

TEST_P(KernelCodes, EveryWeightIsReadExactly) {
  for (const WeightFormat* format : formats::all_formats()) {
    for (const auto& [out, in] :
         {std::pair{67, 160}, {1, 1}, {15, 33}, {33, 131}, {17, 48}, {48, 32}, {31, 96}}) {
      if (!format->fits(in)) continue;
      Owned weight = encoded(*format, out, in, 1);
      // A power of two: the kernel multiplies by it last, the reference first.
      if (format->has_global_scale) weight.weight.global_scale = 0x1p-9f;
      expect_exact(cpu_, weight);
    }
  }
}

// All 16 nibbles of each place of a block, all scale bytes that are numbers: a row each.
TEST_P(KernelCodes, EveryNibbleUnderEveryScaleByte) {
  for (const WeightFormat* format : {&formats::kMxfp4, &formats::kNvfp4}) {
    const int64_t in = 2 * format->block_in;
    const int least = format == &formats::kMxfp4 ? 1 : 0;  // 2^-127 is read as 0: ScaleOfZeros
    Owned weight(*format, 256, in);
    for (size_t i = 0; i < weight.data.size(); ++i) {
      weight.data[i] = static_cast<std::byte>(i * 37 + i / 16 + i / 256);
    }
    for (size_t i = 0; i < weight.scales.size(); ++i) {
      auto scale = static_cast<int>(i / 2 + i % 2 * 3) % 253;  // 6 · 2^126 is still a float
      if (format == &formats::kNvfp4 && (scale & 0x7f) == 0x7f) scale = 0;
      weight.scales[i] = static_cast<std::byte>(std::max(least, scale));
    }
    expect_exact(cpu_, weight);
  }
}

TEST_P(KernelCodes, EveryFp8CodeUnderScalesOfAllSizes) {
  for (const WeightFormat* format : {&formats::kFp8, &formats::kFp8Block}) {
    Owned weight(*format, 260, 254);
    for (size_t i = 0; i < weight.data.size(); ++i) {
      const auto code = static_cast<uint8_t>(i % 254);
      weight.data[i] = std::byte{code >= 0x7f ? static_cast<uint8_t>(code + 1) : code};
    }
    const float scales[] = {1.0f, 0.0020089287f, 0x1p-23f, 3.0f, -0.5f, 0.0f, 1e9f};
    for (size_t i = 0; i < weight.scales.size() / sizeof(float); ++i) {
      weight.scales_as<float>()[i] = scales[i % 7];
    }
    expect_exact(cpu_, weight);
  }
}

TEST_P(KernelCodes, EveryFiniteFloat16) {
  Owned weight(formats::kF16, 248, 256);
  auto* codes = reinterpret_cast<uint16_t*>(weight.data.data());
  for (uint32_t i = 0; i < 248 * 256; ++i) {  // 31 of 32 exponents, both signs
    codes[i] = static_cast<uint16_t>(i < 0x7c00 ? i : 0x8000 + i - 0x7c00);
  }
  expect_exact(cpu_, weight);
}

TEST_P(KernelCodes, EveryInt4CodeUnderAllKindsOfScales) {
  Owned weight(formats::kInt4G32, 70, 96);
  for (size_t i = 0; i < weight.data.size(); ++i) weight.data[i] = static_cast<std::byte>(i * 37);
  const float scales[] = {1.0f, 0.00933837890625f, 0x1p-100f, -3.0f, 0.0f, 0x1p90f};
  for (size_t i = 0; i < weight.scales.size() / 2; ++i) {
    weight.scales_as<bf16>()[i] = to_bf16(scales[i % 6]);
  }
  expect_exact(cpu_, weight);
}

// ---- the ends of a scale's range ----------------------------------------------------------------

float single(const Backend& backend, const Owned& weight, float x) {
  Matrix input(1, weight.weight.in);
  for (int64_t k = 0; k < input.columns(); ++k) input.at(0, k) = k == 0 ? x : 0.0f;
  return multiply(backend, weight, input).at(0, 0);
}

TEST_P(KernelCodes, E8m0AtItsEnds) {
  Owned weight(formats::kMxfp4, 1, 32);
  weight.fill_data(0x22);  // 1.0
  weight.scales[0] = std::byte{254};
  EXPECT_EQ(single(cpu_, weight, 0x1p-100f), 0x1p27f);
  weight.scales[0] = std::byte{1};
  EXPECT_EQ(single(cpu_, weight, 0x1p100f), 0x1p-26f);
  // 2^-127, the scale of a block of zeros: 0, where the reference has 2^-127 at most six times.
  weight.scales[0] = std::byte{0};
  EXPECT_EQ(single(cpu_, weight, 1.0f), 0.0f);
  EXPECT_EQ(single(reference_, weight, 1.0f), 0x1p-127f);
}

TEST_P(KernelCodes, E4m3ScalesMayBeNegativeOrZero) {
  Owned weight(formats::kNvfp4, 1, 16);
  weight.fill_data(0x75);  // 3 and 6
  for (const auto& [scale, want] : {std::pair{0x00, 0.0f},
                                    {0x80, 0.0f},
                                    {0x01, 0x1p-9f * 3},
                                    {0x81, -0x1p-9f * 3},
                                    {0x7e, 1344.0f},
                                    {0xfe, -1344.0f}}) {
    weight.scales[0] = static_cast<std::byte>(scale);
    EXPECT_EQ(single(cpu_, weight, 1.0f), want) << scale;
    EXPECT_EQ(single(reference_, weight, 1.0f), want) << scale;
  }
}

// A NaN in a weight's bytes never becomes a number: the matrix is refused, its row named.
TEST_P(KernelCodes, NanIsRefusedByItsRow) {
  const auto refused = [&](const WeightFormat& format, auto&& spoil) {
    Owned weight = encoded(format, 40, 128, 1);
    spoil(weight);
    try {
      (void)prepare(cpu_.ctx(), {&weight.weight, 1});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto scale = [](size_t at, uint8_t byte) {
    return [=](Owned& w) { w.scales[at] = std::byte{byte}; };
  };
  EXPECT_EQ(refused(formats::kMxfp4, scale(33 * 4, 255)),
            "an mxfp4 weight holds a NaN scale in row 33");
  EXPECT_EQ(refused(formats::kNvfp4, scale(33 * 8 + 7, 0x7f)),
            "an nvfp4 weight holds a NaN scale in row 33");
  EXPECT_EQ(refused(formats::kNvfp4, scale(0, 0xff)), "an nvfp4 weight holds a NaN scale in row 0");
  for (const float wrong : {std::nanf(""), INFINITY}) {
    EXPECT_EQ(
        refused(formats::kInt4G32, [=](Owned& w) { w.scales_as<bf16>()[5] = to_bf16(wrong); }),
        "an int4-g32 weight holds a scale that is not finite in row 1");
    EXPECT_EQ(refused(formats::kFp8Block, [=](Owned& w) { w.scales_as<float>()[0] = wrong; }),
              "an fp8-block weight holds a scale that is NaN or beyond 2^72 in row 0");
  }
  for (const uint8_t high_byte : {0x7c, 0xff}) {  // infinity, NaN
    EXPECT_EQ(
        refused(formats::kF16, [=](Owned& w) { w.data[2 * 128 * 7 + 1] = std::byte{high_byte}; }),
        "an f16 weight holds a number that is not finite in row 7");
  }
  for (const WeightFormat* format : {&formats::kFp8, &formats::kFp8Block}) {
    EXPECT_EQ(refused(*format, [](Owned& w) { w.data[39 * 128] = std::byte{0x7f}; }),
              fmt::format("an {} weight holds a NaN in row 39", format->name));
  }
}

TEST_P(KernelCodes, BlocksOfZerosAreZeros) {
  for (const WeightFormat* format : formats::all_formats()) {
    Owned weight = encoded(*format, 33, 256, 1);
    // Zeros as the producers write them: the codes are zero, scales are what they are.
    const uint8_t zero = format == &formats::kInt4G32 ? 0x88 : 0;
    weight.fill_data(zero);
    const Matrix got = multiply(cpu_, weight, Matrix::random(3, 256, 2));
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t o = 0; o < 33; ++o) ASSERT_EQ(got.at(r, o), 0.0f) << format->name;
    }
  }
}

// Emulated activations: the kernels round as the reference does, bit for bit (a unit weight shows
// it), at the ends of the range too, and NaN is not rounded away.
TEST_P(KernelCodes, ActivationsRoundLikeTheReference) {
  for (const WeightFormat* format : formats::all_formats()) {
    if (format->activation == formats::ActivationRounding::kNone) continue;
    constexpr int64_t kIn = 256;
    Owned ones = encoded(*format, 1, kIn, 1);
    for (const float input_scale : {0.0f, 0.002f}) {
      ones.weight.input_scale = input_scale;
      Matrix x = Matrix::random(64, kIn, 2);
      for (int64_t r = 0; r < 64; ++r) {
        for (int64_t c = 0; c < kIn; ++c) {
          x.at(r, c) *= std::ldexp(1.0f, static_cast<int>(r % 16) * 3 - 24);
          if (c / 16 % 5 == r % 5) x.at(r, c) = 0.0f;  // blocks of zeros
          if (r == 63) x.at(r, c) = 0.0f;
        }
      }
      const auto emulate = ActivationQuantization::kEmulate;
      const PreparedWeight w = prepare(cpu_.ctx(), {&ones.weight, 1}, emulate);
      Matrix got(64, kIn), want(64, kIn);
      for (int64_t r = 0; r < 64; ++r) {
        cpu::round_row(w, &x.at(r, 0), kIn, &got.at(r, 0));
        std::copy_n(&x.at(r, 0), kIn, &want.at(r, 0));
        reference::round_activation(w.activation, w.input_scale,
                                    {&want.at(r, 0), static_cast<size_t>(kIn)});
        for (int64_t c = 0; c < kIn; ++c) {
          ASSERT_EQ(got.at(r, c), want.at(r, c)) << format->name << " " << x.at(r, c);
        }
      }
      x.at(0, 17) = std::nanf("");
      EXPECT_TRUE(std::isnan(multiply(cpu_, ones, x, emulate).at(0, 0))) << format->name;
    }
  }
}

}  // namespace
}  // namespace eyrie::ops
