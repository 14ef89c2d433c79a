// Bfloat16 weights × activations rounded to bfloat16, bit for bit on every instruction set: pairs
// of k, the second first, one fused multiply-add each, as the processors' own dot product does it.
#include <bit>
#include <cstring>

#include "ops/weight_test_support.h"

namespace eyrie::ops {
namespace {

constexpr auto kAuto = ActivationQuantization::kAuto;

class Bf16 : public EveryIsa {
 protected:
  bool fuses() const { return GetParam() != "SSE4"; }
  Backend cpu_{cpu_ops(), 2};
  Backend reference_{reference_ops()};
};
INSTANTIATE_TEST_SUITE_P(Isa, Bf16, testing::ValuesIn(cpu::available_isas()), isa_name);

float rounded(float x) { return to_float(to_bf16(x)); }

float exact(const formats::Weight& w, int64_t row, const Matrix& x, int64_t t, bool fuses) {
  const auto* weights = formats::row_of<bf16>(w.data, row);
  float sum = 0;
  const auto add = [&](int64_t k) {
    if (k >= w.in) return;
    const float weight = to_float(weights[k]), input = rounded(x.at(t, k));
    sum = fuses ? std::fma(input, weight, sum) : sum + input * weight;
  };
  for (int64_t k = 0; k < w.in; k += 2) {
    add(k + 1);
    add(k);
  }
  return sum;
}

TEST_P(Bf16, PairsAreAddedLastFirst) {
  for (const int64_t out : {1, 31, 33, 200}) {
    for (const int64_t in : {1, 2, 7, 34, 256}) {
      const Owned weight = encoded(formats::kBF16, out, in, 1);
      for (const int64_t rows : {1, 2, 3, 4, 5, 11, 12, 13, 29}) {
        const Matrix x = Matrix::random(rows, in, 2);
        const Matrix got = multiply(cpu_, weight, x, kAuto);
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t o = 0; o < out; ++o) {
            ASSERT_EQ(got.at(t, o), exact(weight.weight, o, x, t, fuses()))
                << "[" << out << ", " << in << "] row " << t << " of " << rows << ", output " << o;
          }
        }
      }
    }
  }
}

// Ties, the numbers around them, subnormals of what is rounded, and the largest.
TEST_P(Bf16, ActivationsRoundLikeTheReference) {
  constexpr int64_t kIn = 64;
  Owned ones(formats::kBF16, kIn, kIn);
  for (int64_t o = 0; o < kIn; ++o) {
    const bf16 one = to_bf16(1.0f);
    std::memcpy(ones.data.data() + (o * kIn + o) * 2, &one, sizeof one);
  }
  for (const int64_t rows : {1, 4, 6}) {
    Matrix x(rows, kIn);
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t k = 0; k < kIn; ++k) {
        const uint32_t tail[] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
        const auto head = static_cast<uint32_t>(0x3f80 + k * 509 % 0x4000) << 16;
        x.at(t, k) = std::bit_cast<float>(head | tail[(t + k) % 6]) * (k % 3 == 0 ? -1.0f : 1.0f);
      }
    }
    const Matrix got = multiply(cpu_, ones, x, kAuto), want = multiply(reference_, ones, x, kAuto);
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t o = 0; o < kIn; ++o) {
        ASSERT_EQ(got.at(t, o), want.at(t, o)) << x.at(t, o);
        ASSERT_EQ(want.at(t, o), rounded(x.at(t, o)));
      }
    }
  }
}

TEST_P(Bf16, WhatIsNotFiniteStaysInItsRow) {
  const Owned weight = encoded(formats::kBF16, 33, 256, 1);
  for (const float wrong : {std::nanf(""), std::bit_cast<float>(0x7f800001U), INFINITY}) {
    for (const int64_t rows : {1, 3, 5}) {
      Matrix x = Matrix::random(rows, 256, 2);
      x.at(0, 100) = wrong;
      const Matrix got = multiply(cpu_, weight, x, kAuto);
      for (int64_t o = 0; o < 33; ++o) {
        ASSERT_FALSE(std::isfinite(got.at(0, o)));
        ASSERT_TRUE(rows == 1 || std::isfinite(got.at(rows - 1, o)));
      }
    }
  }
}

// Rounding moves a result by parts in 2^9 of what was summed.
TEST_P(Bf16, RoundingMovesResultsLittle) {
  const Owned weight = encoded(formats::kBF16, 64, 1024, 1);
  const Matrix x = Matrix::random(9, 1024, 2);
  EXPECT_LT(normalised_error(multiply(cpu_, weight, x, kAuto), multiply(reference_, weight, x)),
            3e-3);
  EXPECT_LT(
      normalised_error(multiply(cpu_, weight, x, kAuto), multiply(reference_, weight, x, kAuto)),
      1e-6);
}

}  // namespace
}  // namespace eyrie::ops
