// The router against the reference: Kimi's shape, nano's, groups, ties, rows that only fill a
// batch.
#include "ops/gpu/gpu_test_support.h"

namespace eyrie::ops::gpu {
namespace {

using RouteTest = GpuTest;

struct Case {
  int64_t rows, experts, top_k;
  int32_t n_group = 1, topk_group = 1;
  bool norm = true;
};

struct Routed {
  std::vector<int32_t> ids;
  Matrix weights;
};

Routed on_gpu(const Ctx& ctx, const Case& c, const Matrix& logits, const Matrix& bias,
              const int32_t* num_valid = nullptr) {
  const DeviceArray<int32_t> ids(std::vector<int32_t>(static_cast<size_t>(c.rows * c.top_k), -7));
  const DeviceMatrix weights(c.rows, c.top_k, DType::kF32);
  const DeviceMatrix logits_gpu(logits, DType::kF32, c.experts + 5), bias_gpu(bias, DType::kF32);
  ops::route(ctx, {.ids = Tensor::of(ids.data(), {c.rows, c.top_k}),
                   .weights = weights.tensor(),
                   .logits = logits_gpu.tensor(),
                   .bias = bias_gpu.tensor().reshape({c.experts}),
                   .n_group = c.n_group,
                   .topk_group = c.topk_group,
                   .norm_topk_prob = c.norm,
                   .routed_scaling_factor = 2.827f,
                   .num_valid = num_valid});
  return {ids.to_host(), weights.to_host()};
}

Routed by_reference(const Ctx& ctx, const Case& c, const Matrix& logits, const Matrix& bias) {
  Routed r{std::vector<int32_t>(static_cast<size_t>(c.rows * c.top_k)), Matrix(c.rows, c.top_k)};
  ops::route(ctx, {.ids = Tensor::of(r.ids.data(), {c.rows, c.top_k}),
                   .weights = r.weights.tensor(),
                   .logits = logits.tensor(),
                   .bias = bias.tensor().reshape({c.experts}),
                   .n_group = c.n_group,
                   .topk_group = c.topk_group,
                   .norm_topk_prob = c.norm,
                   .routed_scaling_factor = 2.827f});
  return r;
}

TEST_F(RouteTest, ChoosesAsTheReferenceDoes) {
  const Case cases[] = {
      {0, 16, 4},          {1, 16, 4},  {3, 384, 8},        {65, 384, 8}, {7, 384, 8, 1, 1, false},
      {9, 256, 8, 8, 4},   {5, 33, 32}, {4, 1024, 3, 4, 1}, {2, 1, 1},    {6, 40, 6, 20, 5},
      {300, 64, 6, 64, 10}};
  for (const Case& c : cases) {
    const Matrix logits = Matrix::random(c.rows, c.experts, 1);
    Matrix bias = Matrix::random(1, c.experts, 2);
    for (int64_t e = 0; e < c.experts; ++e) bias.at(0, e) *= 0.1f;
    const Routed got = on_gpu(ctx(), c, logits, bias);
    const Routed want = by_reference(reference().ctx(), c, logits, bias);
    EXPECT_EQ(got.ids, want.ids) << c.experts << " experts, " << c.top_k;
    expect_close("route", got.weights, want.weights, DType::kF32);
  }
}

TEST_F(RouteTest, TiesGoToTheLowerExpert) {
  const Case c{2, 384, 8};
  const Matrix zeros = [] {
    Matrix m(2, 384);
    for (int64_t e = 0; e < 384; ++e) m.at(0, e) = m.at(1, e) = e % 3 == 1 ? 1.0f : 0.0f;
    return m;
  }();
  Matrix bias(1, 384);
  for (int64_t e = 0; e < 384; ++e) bias.at(0, e) = 0.0f;
  const Routed got = on_gpu(ctx(), c, zeros, bias);
  for (int32_t k = 0; k < 8; ++k) EXPECT_EQ(got.ids[static_cast<size_t>(k)], 3 * k + 1);
}

TEST_F(RouteTest, RowsThatFillABatchGetNoExpert) {
  const Case c{6, 384, 8};
  const Matrix logits = Matrix::random(6, 384, 1), bias = Matrix::random(1, 384, 2);
  const DeviceArray<int32_t> num_valid({4});
  const Routed got = on_gpu(ctx(), c, logits, bias, num_valid.data());
  const Routed want = by_reference(reference().ctx(), c, logits, bias);
  for (size_t i = 0; i < 6 * 8; ++i) EXPECT_EQ(got.ids[i], i < 4 * 8 ? want.ids[i] : -1);
}

TEST_F(RouteTest, ANaNReachesTheWeights) {
  const Case c{1, 384, 8};
  Matrix logits = Matrix::random(1, 384, 1);
  logits.at(0, 300) = std::nanf("");
  const Routed got = on_gpu(ctx(), c, logits, Matrix::random(1, 384, 2));
  for (int64_t k = 0; k < 8; ++k) {
    EXPECT_TRUE(std::isnan(got.weights.at(0, k)));
    EXPECT_LT(got.ids[static_cast<size_t>(k)], 384);
    EXPECT_GE(got.ids[static_cast<size_t>(k)], 0);
  }
}

}  // namespace
}  // namespace eyrie::ops::gpu
