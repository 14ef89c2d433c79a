#include "ops/gpu/backend.h"

namespace eyrie::ops {

const OpTable& gpu_ops() {
  static constexpr OpTable kTable{
      .name = "gpu",
      .on_host = false,
      .activation_dtype = DType::kBF16,
      .prepare = gpu::prepare,
      .embedding = gpu::embedding,
      .rms_norm = gpu::rms_norm,
      .add = gpu::add,
      .linear = gpu::linear,
      .head_linear = gpu::head_linear,
      .silu_mul = gpu::silu_mul,
      .rope = gpu::rope,
      .cache_write = gpu::cache_write,
      .mla_attention = gpu::mla_attention,
      .gqa_attention = gpu::gqa_attention,
      .route = gpu::route,
      .experts = gpu::experts,
      .argmax = gpu::argmax,
      .gather_rows = gpu::gather_rows,
      .copy_rows = gpu::copy_rows,
      .scale_rows = gpu::scale_rows,
      .place = gpu::place,
      .stack = gpu::stack,
      .add_rms_norm = gpu::add_rms_norm,
      .mla_cache_write = gpu::mla_cache_write,
      .mla_queries = gpu::mla_queries,
      .moe = gpu::moe,
      .sample = gpu::sample,
      .experts_take_shared = true,
  };
  return kTable;
}

}  // namespace eyrie::ops
