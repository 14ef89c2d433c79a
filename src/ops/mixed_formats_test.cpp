// Weights whose scales span rows, and matrices fused or gathered from different formats.
#include <gtest/gtest.h>

#include "formats/recipe.h"
#include "ops/test_support.h"

namespace eyrie::ops {
namespace {

constexpr double kTolerance = 2e-5;  // as in conformance_test.cpp: float32 against double

formats::EncodedMatrix encoded(const formats::WeightFormat& format, int64_t out, int64_t in,
                               uint32_t seed) {
  const Matrix values = Matrix::random(out, in, seed);
  const std::span<const float> all(values.tensor().data<float>(), static_cast<size_t>(out * in));
  return formats::encode_matrix(*formats::find_recipe(format), all, out, in);
}

PreparedWeight prepared(Backend& backend, std::span<const formats::Weight> weights,
                        ActivationQuantization activation = ActivationQuantization::kOff) {
  return prepare(backend.ctx(), weights, activation);
}

TEST(MixedFormatsTest, BlocksOfRowsAreRightInAnySlice) {
  Backend cpu(cpu_ops()), reference(reference_ops());
  const formats::EncodedMatrix matrix = encoded(formats::kFp8Block, 300, 160, 1);
  const formats::Weight slice = formats::weight_rows(matrix.weight, 100, 157);
  for (const auto activation : {ActivationQuantization::kOff, ActivationQuantization::kEmulate}) {
    const PreparedWeight mine = prepared(cpu, {&slice, 1}, activation);
    const PreparedWeight oracle = prepared(reference, {&slice, 1}, activation);
    const Matrix x = Matrix::random(3, 160, 2);
    Matrix got(3, 157), want(3, 157);
    linear(cpu.ctx(), {.out = got.tensor(), .x = x.tensor(), .weight = &mine});
    linear(reference.ctx(), {.out = want.tensor(), .x = x.tensor(), .weight = &oracle});
    EXPECT_LE(normalised_error(got, want), kTolerance);
  }
}

TEST(MixedFormatsTest, FusedWeightsMayDiffer) {
  Backend cpu(cpu_ops()), reference(reference_ops());
  const formats::EncodedMatrix gate = encoded(formats::kMxfp4, 33, 64, 1);
  const formats::EncodedMatrix up = encoded(formats::kNvfp4, 40, 64, 2);
  const formats::Weight both[] = {gate.weight, up.weight};
  const PreparedWeight mine = prepared(cpu, both, ActivationQuantization::kEmulate);
  const PreparedWeight oracle = prepared(reference, both);  // activations are left alone
  const Matrix x = Matrix::random(4, 64, 3);
  Matrix got(4, 73), want(4, 73);
  linear(cpu.ctx(), {.out = got.tensor(), .x = x.tensor(), .weight = &mine});
  linear(reference.ctx(), {.out = want.tensor(), .x = x.tensor(), .weight = &oracle});
  EXPECT_LE(normalised_error(got, want), kTolerance);
}

// Every expert has its own format and its own static input scale.
class MixedExperts : public testing::TestWithParam<ActivationQuantization> {};
INSTANTIATE_TEST_SUITE_P(Activations, MixedExperts,
                         testing::Values(ActivationQuantization::kEmulate,
                                         ActivationQuantization::kAuto));

TEST_P(MixedExperts, MayDiffer) {
  constexpr int64_t kHidden = 96, kWidth = 64, kRows = 9, kTopK = 2;
  Backend cpu(cpu_ops()), reference(reference_ops());
  const formats::WeightFormat* all[] = {&formats::kNvfp4, &formats::kBF16, &formats::kNvfp4,
                                        &formats::kMxfp4, &formats::kInt4G32};
  std::vector<formats::EncodedMatrix> memory;
  std::vector<Buffer> plain;
  std::vector<PreparedWeight> up_cpu, down_cpu, up_ref, down_ref;
  for (uint32_t e = 0; e < 5; ++e) {
    const auto add = [&](int64_t out, int64_t in, uint32_t seed, auto& mine, auto& oracle) {
      formats::Weight weight;
      if (all[e]->block_in == 0) {
        const Matrix values = Matrix::random(out, in, seed);
        Buffer& buffer = plain.emplace_back(static_cast<size_t>(out * in) * sizeof(bf16));
        for (int64_t i = 0; i < out * in; ++i) {
          buffer.as<bf16>()[i] = to_bf16(values.tensor().template data<float>()[i]);
        }
        weight = formats::plain_weight(Tensor(buffer.data(), DType::kBF16, {out, in}));
      } else {
        weight = memory.emplace_back(encoded(*all[e], out, in, seed)).weight;
        if (e == 2) weight.input_scale = 0.002f;
      }
      mine.push_back(prepared(cpu, {&weight, 1}, GetParam()));
      oracle.push_back(prepared(reference, {&weight, 1}, GetParam()));
    };
    add(2 * kWidth, kHidden, 10 + e, up_cpu, up_ref);
    add(kHidden, kWidth, 20 + e, down_cpu, down_ref);
  }
  const Matrix x = Matrix::random(kRows, kHidden, 3), weights = Matrix::random(kRows, kTopK, 4);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kRows * kTopK; ++i) ids.push_back((i * 3 + 1) % 5);
  Matrix got(kRows, kHidden), want(kRows, kHidden);
  ExpertsArgs args{.out = got.tensor(),
                   .x = x.tensor(),
                   .ids = Tensor::of(ids.data(), {kRows, kTopK}),
                   .weights = weights.tensor(),
                   .gate_up = up_cpu,
                   .down = down_cpu};
  experts(cpu.ctx(), args);
  args.out = want.tensor();
  args.gate_up = up_ref;
  args.down = down_ref;
  experts(reference.ctx(), args);
  // Sums differ in their last bits, so a value near a rounding boundary of the second quantization
  // may fall on its other side: a code of one element in hundreds.
  EXPECT_LE(normalised_error(got, want), 0.02);
}

}  // namespace
}  // namespace eyrie::ops
