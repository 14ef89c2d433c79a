// Four-bit weights × int8 activations against the same sums in 64-bit integers, bit for bit: every
// code under every scale, the largest sums, odd shapes; how far rounding moves a result; what is
// not finite; experts whose columns are dealt out to threads.
#include "base/error.h"
#include "ops/weight_test_support.h"

namespace eyrie::ops {
namespace {

using formats::WeightFormat;
constexpr auto kInt8 = ActivationQuantization::kAuto;

const WeightFormat* const kFormats[] = {&formats::kMxfp4, &formats::kNvfp4, &formats::kInt4G32};

class Int8 : public EveryIsa {
 protected:
  bool fuses() const { return GetParam() != "SSE4"; }
  Backend cpu_{cpu_ops(), 2};
  Backend one_{cpu_ops(), 1};
  Backend reference_{reference_ops()};
};
INSTANTIATE_TEST_SUITE_P(Isa, Int8, testing::ValuesIn(cpu::available_isas()), isa_name);

// ---- the oracle: what cpu/int8_layout.h says, one value at a time
// --------------------------------

const float* row_of(const Matrix& x, int64_t row) {
  return x.tensor().data<float>() + row * x.tensor().stride(0);
}

struct Group {
  std::vector<int64_t> q;
  float scale = 0;
};

Group rounded(const float* x, int n) {
  float largest = 0;
  for (int i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  Group group{.q = std::vector<int64_t>(static_cast<size_t>(n)), .scale = largest / 127.0f};
  if (largest < 0x1p-100f) return {.q = group.q, .scale = 0};
  const float inverse = 127.0f / largest;
  for (int i = 0; i < n; ++i) {
    group.q[static_cast<size_t>(i)] = static_cast<int64_t>(std::nearbyint(x[i] * inverse));
  }
  return group;
}

// Twice the value of an FP4 code, the value of an INT4 one.
int64_t integer_of(const formats::Weight& w, int64_t row, int64_t k) {
  const auto* bytes = static_cast<const uint8_t*>(w.data.raw()) + row * (w.in / 2);
  const int nibble = bytes[k / 2] >> (k % 2 * 4) & 15;
  if (w.format == &formats::kInt4G32) return nibble - 8;
  return static_cast<int64_t>(2 * formats::decode_fp4_e2m1(static_cast<uint8_t>(nibble)));
}

float scale_of(const formats::Weight& w, int64_t row, int64_t group) {
  if (w.format == &formats::kInt4G32) {
    return to_float(formats::row_of<bf16>(w.scales, row)[group]);
  }
  const uint8_t code = formats::row_of<uint8_t>(w.scales, row)[group];
  return w.format == &formats::kMxfp4 ? formats::decode_e8m0(code) : formats::decode_fp8_e4m3(code);
}

float exact(const formats::Weight& w, int64_t row, const float* x, bool fuses) {
  const int block = w.format->block_in;
  const float unit = w.format == &formats::kInt4G32 ? 1.0f : 0.5f;
  float result = 0;
  for (int64_t group = 0; group < w.in / block; ++group) {
    const Group rounded_x = rounded(x + group * block, block);
    int64_t sum = 0;
    for (int i = 0; i < block; ++i) {
      sum += integer_of(w, row, group * block + i) * rounded_x.q[static_cast<size_t>(i)];
    }
    const float scale = scale_of(w, row, group) * (rounded_x.scale * unit);
    const auto s = static_cast<float>(sum);
    result = fuses ? std::fma(s, scale, result) : result + s * scale;
  }
  return w.format->has_global_scale ? result * w.global_scale : result;
}

void expect_exact(const Backend& backend, const Owned& weight, const Matrix& x, bool fuses) {
  const Matrix got = multiply(backend, weight, x, kInt8);
  for (int64_t r = 0; r < x.rows(); ++r) {
    for (int64_t o = 0; o < weight.weight.out; ++o) {
      ASSERT_EQ(got.at(r, o), exact(weight.weight, o, row_of(x, r), fuses))
          << weight.weight.format->name << " row " << r << " of " << x.rows() << ", output " << o;
    }
  }
}

// ---- bit for bit --------------------------------------------------------------------------------

TEST_P(Int8, EveryCodeUnderEveryScale) {
  for (const WeightFormat* format : kFormats) {
    Owned weight(*format, 256, 3 * format->block_in);
    for (size_t i = 0; i < weight.data.size(); ++i) {
      weight.data[i] = static_cast<std::byte>(i * 37 + i / 16 + i / 256);
    }
    if (format == &formats::kInt4G32) {
      const float scales[] = {1.0f, 0.00933837890625f, 0x1p-100f, -3.0f, 0.0f, 0x1p90f};
      for (size_t i = 0; i < weight.scales.size() / 2; ++i) {
        weight.scales_as<bf16>()[i] = to_bf16(scales[i % 6]);
      }
    } else {
      // E8M0 up to 2^101, so that sums stay finite; its 0 reads as 0 (kernel_codes_test.cpp).
      for (size_t i = 0; i < weight.scales.size(); ++i) {
        auto scale = static_cast<int>(i / 3 + i % 3 * 5) % 256;
        if (format == &formats::kMxfp4) scale = 1 + scale % 228;
        if (format == &formats::kNvfp4 && (scale & 0x7f) == 0x7f) scale = 0;
        weight.scales[i] = static_cast<std::byte>(scale);
      }
    }
    expect_exact(cpu_, weight, Matrix::random(3, weight.weight.in, 2), fuses());
  }
}

TEST_P(Int8, OddShapes) {
  for (const WeightFormat* format : kFormats) {
    for (const int64_t groups : {1, 2, 3, 4, 5, 17}) {
      for (const int64_t out : {1, 15, 16, 17, 100}) {
        const Owned weight = encoded(*format, out, groups * format->block_in, 1);
        for (const int64_t rows : {0, 1, 2, 7, 17}) {
          expect_exact(cpu_, weight,
                       Matrix::random(rows, weight.weight.in, 2, weight.weight.in + 3), fuses());
        }
      }
    }
  }
}

// The largest products of either sign side by side: nothing saturates on the way.
TEST_P(Int8, LargestSums) {
  for (const WeightFormat* format : kFormats) {
    const bool int4 = format == &formats::kInt4G32;
    for (const int code : {int4 ? 0xff : 0x77, int4 ? 0x00 : 0xff, int4 ? 0xf0 : 0x7f}) {
      Owned weight = encoded(*format, 16, 4 * format->block_in, 1);
      weight.fill_data(static_cast<uint8_t>(code));
      Matrix x(4, weight.weight.in);
      for (int64_t k = 0; k < x.columns(); ++k) {
        x.at(0, k) = 1.0f;
        x.at(1, k) = -1.0f;
        x.at(2, k) = k % 2 == 0 ? 1.0f : -1.0f;
        x.at(3, k) = k % 8 < 4 ? 1.0f : -1.0f;
      }
      expect_exact(cpu_, weight, x, fuses());
    }
  }
}

TEST_P(Int8, ActivationsOfAllSizes) {
  for (const WeightFormat* format : kFormats) {
    const Owned weight = encoded(*format, 20, 256, 1);
    Matrix x = Matrix::random(40, 256, 2);
    for (int64_t r = 0; r < x.rows(); ++r) {
      for (int64_t k = 0; k < 256; ++k) {
        x.at(r, k) *= std::ldexp(1.0f, static_cast<int>(r) * 5 - 110);
        if (k / 16 % 5 == r % 5) x.at(r, k) = 0.0f;  // groups of zeros
        if (k / 16 % 5 == (r + 1) % 5) x.at(r, k) *= 0x1p-40f;
      }
      x.at(r, r) = 0.5f * x.at(r, 255);
    }
    expect_exact(cpu_, weight, x, fuses());
  }
}

// ---- what rounding costs ------------------------------------------------------------------------

// A step of a group is its largest |x| / 127, so an activation moves by half of that at most.
TEST_P(Int8, RoundingMovesAResultByHalfAStepAtMost) {
  for (const WeightFormat* format : kFormats) {
    const Owned weight = encoded(*format, 100, 512, 1);
    const formats::Weight& w = weight.weight;
    const Matrix x = Matrix::random(5, 512, 2);
    const Matrix got = multiply(cpu_, weight, x, kInt8), want = multiply(reference_, weight, x);
    std::vector<float> row(512);
    for (int64_t o = 0; o < w.out; ++o) {
      w.format->decode_row(w, o, row);
      for (int64_t r = 0; r < x.rows(); ++r) {
        double bound = 0;
        for (int64_t k = 0; k < w.in; ++k) {
          const Group group =
              rounded(row_of(x, r) + k / format->block_in * format->block_in, format->block_in);
          const double size = std::fabs(double{row[static_cast<size_t>(k)]});
          bound += size * (0.5 * double{group.scale} + 1e-6 * std::fabs(double{x.at(r, k)}));
        }
        ASSERT_LE(std::fabs(double{got.at(r, o)} - double{want.at(r, o)}), bound) << format->name;
      }
    }
    // In the whole the errors are as large as independent ones: under a percent of the result.
    EXPECT_LE(normalised_error(got, want), 0.01) << format->name;
  }
}

TEST_P(Int8, TheReferenceRoundsAlike) {
  for (const WeightFormat* format : kFormats) {
    const Owned weight = encoded(*format, 100, 512, 1);
    Matrix x = Matrix::random(5, 512, 2);
    for (int64_t k = 0; k < 32; ++k) x.at(1, k) *= 0x1p-110f;
    EXPECT_LE(
        normalised_error(multiply(cpu_, weight, x, kInt8), multiply(reference_, weight, x, kInt8)),
        2e-6)
        << format->name;
    x.at(2, 40) = INFINITY;
    const Matrix spoilt = multiply(reference_, weight, x, kInt8);
    EXPECT_TRUE(std::isnan(spoilt.at(2, 0)) && !std::isnan(spoilt.at(1, 0))) << format->name;
  }
}

// ---- faults stay faults -------------------------------------------------------------------------

TEST_P(Int8, WhatIsNotFiniteMakesItsRowNan) {
  for (const WeightFormat* format : kFormats) {
    const Owned weight = encoded(*format, 33, 256, 1);
    for (const float wrong : {std::nanf(""), -std::nanf(""), INFINITY, -INFINITY}) {
      for (const int64_t rows : {1, 3}) {
        Matrix x = Matrix::random(rows, 256, 2);
        x.at(0, 100) = wrong;
        const Matrix got = multiply(cpu_, weight, x, kInt8);
        for (int64_t o = 0; o < 33; ++o) {
          ASSERT_TRUE(std::isnan(got.at(0, o))) << format->name;
          ASSERT_TRUE(rows == 1 || std::isfinite(got.at(1, o))) << format->name;
        }
      }
    }
  }
}

TEST_P(Int8, NanScalesAreRefusedByTheirRow) {
  const auto refused = [&](const WeightFormat& format, size_t at, std::vector<uint8_t> bytes) {
    Owned weight = encoded(format, 40, 128, 1);
    std::memcpy(weight.scales.data() + at, bytes.data(), bytes.size());
    try {
      (void)prepare(cpu_.ctx(), {&weight.weight, 1}, kInt8);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(refused(formats::kMxfp4, 33 * 4, {255}), "an mxfp4 weight holds a NaN scale in row 33");
  EXPECT_EQ(refused(formats::kMxfp4, 5 * 4, std::vector<uint8_t>(100, 255)),
            "an mxfp4 weight holds a NaN scale in row 5");
  EXPECT_EQ(refused(formats::kNvfp4, 33 * 8 + 7, {0x7f}),
            "an nvfp4 weight holds a NaN scale in row 33");
  EXPECT_EQ(refused(formats::kInt4G32, 2 * 4 + 4, {0x80, 0x7f}),  // infinity
            "an int4-g32 weight holds a scale that is not finite in row 1");
}

// ---- company ------------------------------------------------------------------------------------

TEST_P(Int8, FusedAndSlicedRowsAreTheSameBits) {
  for (const WeightFormat* format : kFormats) {
    Owned a = encoded(*format, 33, 256, 1), b = encoded(*format, 70, 256, 2);
    b.weight.global_scale *= 3.0f;  // only nvfp4 looks at it
    const formats::Weight both[] = {a.weight, formats::weight_rows(b.weight, 5, 60)};
    const Matrix x = Matrix::random(5, 256, 3);
    const Matrix fused = multiply(cpu_, both, x, kInt8);
    const Matrix first = multiply(cpu_, a, x, kInt8), second = multiply(cpu_, b, x, kInt8);
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t o = 0; o < 33; ++o) ASSERT_EQ(fused.at(r, o), first.at(r, o));
      for (int64_t o = 0; o < 60; ++o) ASSERT_EQ(fused.at(r, 33 + o), second.at(r, 5 + o));
    }
  }
}

struct ExpertShape {
  int64_t hidden, width, top_k;
};

Matrix run_experts(const Backend& backend, const WeightFormat& format, const ExpertShape& s,
                   const Matrix& x, int64_t first, int64_t rows) {
  constexpr uint32_t kExperts = 8;
  std::vector<Owned> memory;
  std::vector<PreparedWeight> gate_up, down;
  for (uint32_t e = 0; e < kExperts; ++e) {
    memory.push_back(encoded(format, 2 * s.width, s.hidden, 2 * e));
    gate_up.push_back(prepare(backend.ctx(), {&memory.back().weight, 1}, kInt8));
    memory.push_back(encoded(format, s.hidden, s.width, 2 * e + 1));
    down.push_back(prepare(backend.ctx(), {&memory.back().weight, 1}, kInt8));
  }
  const Matrix weights = Matrix::random(x.rows(), s.top_k, 4);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < x.rows(); ++t) {
    for (int64_t k = 0; k < s.top_k; ++k) {
      ids.push_back(static_cast<int32_t>(t % 3 == 0 ? k : (t * 5 + k * 3) % kExperts));
    }
  }
  Matrix out(rows, s.hidden);
  experts(backend.ctx(), {.out = out.tensor(),
                          .x = x.tensor().rows(first, rows),
                          .ids = Tensor::of(ids.data(), {x.rows(), s.top_k}).rows(first, rows),
                          .weights = weights.tensor().rows(first, rows),
                          .gate_up = gate_up,
                          .down = down});
  return out;
}

// A token alone on many threads has its experts' columns dealt out; a batch has not.
TEST_P(Int8, ExpertsRowAloneOnManyThreadsIsTheRowInABatch) {
  const Backend many(cpu_ops(), 9);
  for (const WeightFormat* format : kFormats) {
    const ExpertShape shape{.hidden = 512, .width = 224, .top_k = 2};
    const Matrix x = Matrix::random(40, shape.hidden, 3);
    const Matrix all = run_experts(one_, *format, shape, x, 0, 40);
    EXPECT_TRUE(same_bits(all, run_experts(many, *format, shape, x, 0, 40))) << format->name;
    for (const int64_t t : {0, 1, 39}) {
      EXPECT_TRUE(same_bits(run_experts(many, *format, shape, x, t, 1), 0, all, t)) << format->name;
    }
    // Silu's result is rounded again: where float sums differ in their last bits, a code in
    // hundreds falls on its other side.
    EXPECT_LE(normalised_error(all, run_experts(reference_, *format, shape, x, 0, 40)), 0.002)
        << format->name;
  }
}

}  // namespace
}  // namespace eyrie::ops
