// The cpu backend's ops: each cuts its work into tasks for the pool and calls the kernels. How work
// is cut depends on shapes and thread count, results do not.
#pragma once

#include "ops/ops.h"

namespace eyrie::ops::cpu {

void linear(const Ctx& ctx, const LinearArgs& args);
void head_linear(const Ctx& ctx, const HeadLinearArgs& args);
void experts(const Ctx& ctx, const ExpertsArgs& args);

void mla_attention(const Ctx& ctx, const MlaAttentionArgs& args);
void gqa_attention(const Ctx& ctx, const GqaAttentionArgs& args);
void cache_write(const Ctx& ctx, const CacheWriteArgs& args);

void embedding(const Ctx& ctx, const EmbeddingArgs& args);
void rms_norm(const Ctx& ctx, const RmsNormArgs& args);
void add(const Ctx& ctx, const AddArgs& args);
void silu_mul(const Ctx& ctx, const SiluMulArgs& args);
void rope(const Ctx& ctx, const RopeArgs& args);
void route(const Ctx& ctx, const RouteArgs& args);
void argmax(const Ctx& ctx, const ArgmaxArgs& args);

// Whether round_row() does anything for the weight's activations; int8 codes and bfloat16 are their
// kernels' own.
inline bool is_rounded_first(const PreparedWeight& weight) {
  return weight.activation != formats::ActivationRounding::kNone &&
         weight.activation != formats::ActivationRounding::kInt8 &&
         weight.activation != formats::ActivationRounding::kBf16;
}

// One row as the arithmetic of the weight's format would see it (kernels.h); out may alias x.
void round_row(const PreparedWeight& weight, const float* x, int64_t n, float* out);

// Rows of x rounded into scratch, or x itself when nothing is to be rounded.
Tensor rounded_rows(const Ctx& ctx, const PreparedWeight& weight, const Tensor& x);

// fn(row) for all rows; over the pool when the rows together cost enough.
template <typename Fn>
void for_rows(const Ctx& ctx, int64_t num_rows, double ns_per_row, const Fn& fn) {
  constexpr double kWorthwhileNs = 10000;
  const double total = ns_per_row * static_cast<double>(num_rows);
  if (total < kWorthwhileNs || ctx.pool->size() == 1) {
    for (int64_t row = 0; row < num_rows; ++row) fn(row);
    return;
  }
  const int64_t chunks = std::min<int64_t>(num_rows, 4 * ctx.pool->size());
  ctx.pool->run(chunks, [&](int64_t chunk, int) {
    for (int64_t row = num_rows * chunk / chunks; row < num_rows * (chunk + 1) / chunks; ++row) {
      fn(row);
    }
  });
}

}  // namespace eyrie::ops::cpu
