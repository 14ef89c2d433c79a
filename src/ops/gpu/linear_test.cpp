// Linear layers of every format against the reference, by every kernel that can run them. What the
// reference is given are the values a GPU sees: bf16 activations.
#include <cstdlib>

#include "ops/gpu/gpu_test_support.h"
#include "ops/gpu/weights.h"
#include "ops/weight_test_support.h"

namespace eyrie::ops::gpu {
namespace {

class GpuLinearTest : public GpuTest {};

const formats::WeightFormat* const kFormats[] = {
    &formats::kBF16,     &formats::kF32,   &formats::kF16,   &formats::kFp8,
    &formats::kFp8Block, &formats::kMxfp4, &formats::kNvfp4, &formats::kInt4G32};

struct Shape {
  int64_t out, in;
};

// Sums in float32 of products with weights that are exact in bf16 but for INT4's (bf16 code ·
// scale) and what had to be decoded to bf16: at load time, or, where many rows are multiplied, by
// the way, scales included.
double limit_of(const formats::WeightFormat& format, DType out, int64_t num_rows) {
  const bool rounds = &format == &formats::kInt4G32 || &format == &formats::kF32 ||
                      &format == &formats::kF16 || (&format != &formats::kBF16 && num_rows >= 128);
  return tolerance(out) + (rounds ? 4e-3 : 0.0);
}

Matrix product(const Ctx& ctx, std::span<const formats::Weight> weights, const Matrix& x,
               DType x_type, DType out_type) {
  const PreparedWeight w = ops::prepare(ctx, weights, ActivationQuantization::kOff);
  const DeviceMatrix x_device(x, x_type, x.columns() + 8);
  const DeviceMatrix out(x.rows(), w.out, out_type, w.out + 3);
  ops::linear(ctx, {.out = out.tensor(), .x = x_device.tensor(), .weight = &w});
  return out.to_host();
}

TEST_F(GpuLinearTest, AgreesWithTheReferenceInEveryFormat) {
  for (const formats::WeightFormat* format : kFormats) {
    for (const Shape shape : {Shape{96, 256}, Shape{256, 96}, Shape{40, 512}, Shape{1152, 1024}}) {
      const Owned weight = encoded(*format, shape.out, shape.in, 5);
      for (const int64_t T : {1, 9, 25, 140}) {
        const Matrix x = rounded(Matrix::random(T, shape.in, 3), DType::kBF16);
        const Matrix want = multiply(reference(), weight, x);
        for (const DType type : kActivationTypes) {
          SCOPED_TRACE(testing::Message()
                       << format->name << " [" << shape.out << ", " << shape.in << "] x " << T);
          expect_close("linear " + std::string(format->name),
                       product(ctx(), {&weight.weight, 1}, x, DType::kBF16, type), want,
                       limit_of(*format, type, T));
        }
      }
    }
  }
}

TEST_F(GpuLinearTest, TakesFloat32ActivationsAndOddWidths) {
  for (const Shape shape : {Shape{7, 13}, Shape{130, 77}, Shape{1, 8}, Shape{64, 40}}) {
    const Owned weight = encoded(formats::kBF16, shape.out, shape.in, 5);
    const Matrix x = rounded(Matrix::random(3, shape.in, 3), DType::kBF16);
    expect_close("linear odd", product(ctx(), {&weight.weight, 1}, x, DType::kF32, DType::kF32),
                 multiply(reference(), weight, x), tolerance(DType::kF32));
  }
}

TEST_F(GpuLinearTest, FusesRowsOfSeveralWeights) {
  for (const formats::WeightFormat* format : {&formats::kBF16, &formats::kFp8, &formats::kNvfp4}) {
    const Owned first = encoded(*format, 24, 256, 5), second = encoded(*format, 40, 256, 6);
    const std::vector<formats::Weight> weights = {first.weight, second.weight};
    const Matrix x = rounded(Matrix::random(5, 256, 3), DType::kBF16);
    expect_close("linear fused", product(ctx(), weights, x, DType::kBF16, DType::kF32),
                 multiply(reference(), weights, x), 2e-5);
  }
}

TEST_F(GpuLinearTest, FusesRowsOfDifferentFormatsInBF16) {
  const Owned first = encoded(formats::kFp8, 32, 256, 5);
  const Owned second = encoded(formats::kMxfp4, 32, 256, 6);
  const std::vector<formats::Weight> weights = {first.weight, second.weight};
  const Matrix x = rounded(Matrix::random(5, 256, 3), DType::kBF16);
  expect_close("linear mixed", product(ctx(), weights, x, DType::kBF16, DType::kF32),
               multiply(reference(), weights, x), 4e-3);
}

// More inputs than a block's stages hold, so that each is filled again; blocks for every number of
// tokens. By format, so that one of them is a short run under a sanitizer.
class GpuLinearStagesTest : public GpuLinearTest, public testing::WithParamInterface<int> {};
TEST_P(GpuLinearStagesTest, AreFilledAgain) {
  const formats::WeightFormat& format = *kFormats[GetParam()];
  for (const auto& [shape, rows] : {std::pair{Shape{160, 8192}, 1},
                                    {Shape{160, 8192}, 25},
                                    {Shape{160, 8192}, 40},
                                    {Shape{32, 8192}, 3}}) {
    const Owned weight = encoded(format, shape.out, shape.in, 5);
    const Matrix x = rounded(Matrix::random(rows, shape.in, 3), DType::kBF16);
    expect_close("linear stages", product(ctx(), {&weight.weight, 1}, x, DType::kBF16, DType::kF32),
                 multiply(reference(), weight, x), limit_of(format, DType::kF32, rows));
  }
}
INSTANTIATE_TEST_SUITE_P(Formats, GpuLinearStagesTest,
                         testing::Range(0, static_cast<int>(std::size(kFormats))),
                         [](const auto& test) {
                           std::string name(kFormats[test.param]->name);
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

TEST_F(GpuLinearTest, NoRowsAreNoWork) {
  const Owned weight = encoded(formats::kMxfp4, 32, 256, 5);
  EXPECT_EQ(product(ctx(), {&weight.weight, 1}, Matrix(0, 256), DType::kBF16, DType::kF32).rows(),
            0);
}

void expect_rows_apart(const Ctx& fixed, int64_t outputs) {
  for (const formats::WeightFormat* format : {&formats::kBF16, &formats::kMxfp4, &formats::kFp8}) {
    const Owned weight = encoded(*format, outputs, 2048, 5);
    const Matrix all = rounded(Matrix::random(130, 2048, 3), DType::kBF16);
    const Matrix together = product(fixed, {&weight.weight, 1}, all, DType::kBF16, DType::kF32);
    for (const int64_t row : {0, 8, 77, 129}) {
      Matrix one(1, 2048);
      for (int64_t k = 0; k < 2048; ++k) one.at(0, k) = all.at(row, k);
      const Matrix alone = product(fixed, {&weight.weight, 1}, one, DType::kBF16, DType::kF32);
      EXPECT_TRUE(same_bits(alone, 0, together, row)) << format->name << " row " << row;
    }
  }
}

TEST_F(GpuLinearTest, DeterministicRowsDoNotDependOnTheBatch) {
  Ctx fixed = ctx();
  fixed.deterministic = true;
  expect_rows_apart(fixed, 1024);
}

TEST_F(GpuLinearTest, RowsOfSmallMatricesNeverDependOnTheBatch) { expect_rows_apart(ctx(), 512); }

void check_heads(const Ctx& ctx, const Ctx& reference, int64_t num_heads) {
  constexpr int64_t T = 5, kIn = 64, kOut = 128;
  std::vector<Owned> owned;
  std::vector<PreparedWeight> device_weights, host_weights;
  for (int64_t h = 0; h < num_heads; ++h) {
    owned.push_back(encoded(formats::kBF16, kOut, kIn, static_cast<uint32_t>(h)));
    device_weights.push_back(
        ops::prepare(ctx, {&owned.back().weight, 1}, ActivationQuantization::kOff));
    host_weights.push_back(ops::prepare(reference, {&owned.back().weight, 1}));
  }
  const WeightStack stacked = ops::stack(ctx, std::move(device_weights));
  // Heads lie inside wider ones, as the nope part of queries does.
  const Matrix x = rounded(Matrix::random(T, num_heads * (kIn + 32), 3), DType::kBF16);
  Matrix want(T, num_heads * kOut);
  ops::head_linear(reference, {.out = want.tensor().split_last(num_heads, kOut),
                               .x = x.tensor().split_last(num_heads, kIn + 32).columns(0, kIn),
                               .weights = host_weights});
  for (const DType type : kActivationTypes) {
    const DeviceMatrix x_device(x, type);
    const DeviceMatrix out(T, num_heads * kOut, DType::kF32);
    ops::head_linear(ctx, {.out = out.tensor().split_last(num_heads, kOut),
                           .x = x_device.tensor().split_last(num_heads, kIn + 32).columns(0, kIn),
                           .weights = stacked});
    expect_close("head_linear", out.to_host(), want, tolerance(DType::kF32));
  }
}

// Few heads, whose matrices are small together, and many.
TEST_F(GpuLinearTest, HeadsHaveAMatrixEach) {
  for (const int64_t num_heads : {4, 160}) check_heads(ctx(), reference().ctx(), num_heads);
}

}  // namespace
}  // namespace eyrie::ops::gpu
