#include "ops/observe.h"

#include "ops/test_support.h"

namespace eyrie::ops {
namespace {

struct Layer {
  Layer(const Ctx& ctx, int64_t out, int64_t in, uint32_t seed)
      : values(Matrix::random(out, in, seed)) {
    const formats::Weight plain = formats::plain_weight(values.tensor());
    weight = prepare(ctx, {&plain, 1});
  }
  Matrix values;
  PreparedWeight weight;
};

float largest_of(const Matrix& x) {
  float largest = 0.0f;
  for (int64_t r = 0; r < x.rows(); ++r) {
    for (int64_t c = 0; c < x.columns(); ++c) largest = std::max(largest, std::fabs(x.at(r, c)));
  }
  return largest;
}

TEST(ActivationObserverTest, LinearsKeepTheirLargestInput) {
  Backend cpu(cpu_ops());
  const Layer one(cpu.ctx(), 5, 24, 1), other(cpu.ctx(), 7, 24, 2), idle(cpu.ctx(), 7, 24, 3);
  ActivationObserver observer(cpu_ops());
  const Ctx watched = observer.watched(cpu.ctx());
  Matrix small = Matrix::random(3, 24, 4, 32), large = Matrix::random(4, 24, 5), none(0, 24);
  large.at(3, 23) = -50.0f;
  for (const Matrix* x : {&large, &small, &none}) {
    Matrix got(x->rows(), 5), want(x->rows(), 5);
    linear(watched, {.out = got.tensor(), .x = x->tensor(), .weight = &one.weight});
    linear(cpu.ctx(), {.out = want.tensor(), .x = x->tensor(), .weight = &one.weight});
    for (int64_t r = 0; r < x->rows(); ++r) {
      for (int64_t c = 0; c < 5; ++c) EXPECT_EQ(got.at(r, c), want.at(r, c));
    }
  }
  Matrix out(3, 7);
  linear(watched, {.out = out.tensor(), .x = small.tensor(), .weight = &other.weight});
  EXPECT_EQ(observer.largest(one.weight), 50.0f);
  EXPECT_EQ(observer.largest(other.weight), largest_of(small));
  EXPECT_EQ(observer.largest(idle.weight), 0.0f);
}

TEST(ActivationObserverTest, WhatIsNotFiniteStays) {
  Matrix x = Matrix::random(2, 3, 1);
  x.at(0, 1) = std::nanf("");
  EXPECT_TRUE(std::isnan(largest_magnitude(x.tensor())));
  x.at(0, 1) = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(largest_magnitude(x.tensor()), std::numeric_limits<float>::infinity());
}

// Each expert sees the rows that chose it, and its down projection silu(gate) · up of those rows,
// found here expert by expert with plain loops.
TEST(ActivationObserverTest, ExpertsKeepTheirOwn) {
  constexpr int64_t kHidden = 24, kWidth = 10, kRows = 7, kTopK = 2, kExperts = 5;
  Backend cpu(cpu_ops());
  std::vector<Layer> gate_up_layers, down_layers;
  std::vector<PreparedWeight> gate_up, down;
  for (uint32_t e = 0; e < kExperts; ++e) {
    gate_up_layers.emplace_back(cpu.ctx(), 2 * kWidth, kHidden, 10 + e);
    down_layers.emplace_back(cpu.ctx(), kHidden, kWidth, 20 + e);
    gate_up.push_back(std::move(gate_up_layers.back().weight));
    down.push_back(std::move(down_layers.back().weight));
  }
  const Matrix x = Matrix::random(kRows, kHidden, 30, kHidden + 8);
  std::vector<int32_t> ids;  // expert 4 gets nothing
  for (int32_t t = 0; t < kRows; ++t) ids.insert(ids.end(), {t % 4, (t * 3 + 1) % 4});
  std::vector<float> weights(ids.size(), 0.5f);
  Matrix got(kRows, kHidden), want(kRows, kHidden);
  ExpertsArgs args = {.out = got.tensor(),
                      .x = x.tensor(),
                      .ids = Tensor::of(ids.data(), {kRows, kTopK}),
                      .weights = Tensor::of(weights.data(), {kRows, kTopK}),
                      .gate_up = gate_up,
                      .down = down};
  ActivationObserver observer(cpu_ops());
  experts(observer.watched(cpu.ctx()), args);
  args.out = want.tensor();
  experts(cpu.ctx(), args);
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t h = 0; h < kHidden; ++h) EXPECT_EQ(got.at(t, h), want.at(t, h));
  }

  for (size_t e = 0; e < kExperts; ++e) {
    double in = 0, hidden = 0;
    for (int64_t t = 0; t < kRows; ++t) {
      const auto slot = ids.begin() + t * kTopK;
      if (std::find(slot, slot + kTopK, static_cast<int32_t>(e)) == slot + kTopK) continue;
      for (int64_t i = 0; i < kHidden; ++i) in = std::max<double>(in, std::fabs(x.at(t, i)));
      const auto dot = [&](int64_t row) {
        double sum = 0;
        for (int64_t i = 0; i < kHidden; ++i) {
          sum += static_cast<double>(gate_up_layers[e].values.at(row, i)) * x.at(t, i);
        }
        return sum;
      };
      for (int64_t i = 0; i < kWidth; ++i) {
        const double gate = dot(i);
        hidden = std::max(hidden, std::fabs(gate / (1 + std::exp(-gate)) * dot(kWidth + i)));
      }
    }
    EXPECT_EQ(observer.largest(gate_up[e]), static_cast<float>(in)) << e;
    EXPECT_NEAR(observer.largest(down[e]), hidden, 1e-5 * hidden) << e;
  }
  EXPECT_EQ(observer.largest(down[4]), 0.0f);
}

}  // namespace
}  // namespace eyrie::ops
