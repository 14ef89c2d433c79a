// The table of the GPU's ops, and the glue behind its slots: from ops' arguments to what kernels
// take. Contexts of this table have a device stream and an arena of device memory (gpu/device.h).
// Glue only enqueues: it reads no contents, and launch shapes follow from the arguments' shapes.
#pragma once

#include "ops/op_table.h"
#include "ops/ops.h"

namespace eyrie::ops {

// Error when this program has no GPU backend. The device's own state is GpuDevice's.
const OpTable& gpu_ops();

namespace gpu {

PreparedWeight prepare(const Ctx& ctx, std::span<const formats::Weight> rows_concatenated,
                       ActivationQuantization activation);
Buffer stack(const Ctx& ctx, std::span<const PreparedWeight> weights);
PlacedTensor place(const Ctx& ctx, const Tensor& host);
void embedding(const Ctx& ctx, const EmbeddingArgs& args);
void rms_norm(const Ctx& ctx, const RmsNormArgs& args);
void add(const Ctx& ctx, const AddArgs& args);
void add_rms_norm(const Ctx& ctx, const AddRmsNormArgs& args);
void gather_rows(const Ctx& ctx, const GatherRowsArgs& args);
void copy_rows(const Ctx& ctx, const CopyRowsArgs& args);
void scale_rows(const Ctx& ctx, const ScaleRowsArgs& args);
void linear(const Ctx& ctx, const LinearArgs& args);
void head_linear(const Ctx& ctx, const HeadLinearArgs& args);
void silu_mul(const Ctx& ctx, const SiluMulArgs& args);
void rope(const Ctx& ctx, const RopeArgs& args);
void cache_write(const Ctx& ctx, const CacheWriteArgs& args);
void mla_cache_write(const Ctx& ctx, const MlaCacheWriteArgs& args);
void mla_queries(const Ctx& ctx, const MlaQueriesArgs& args);
void mla_attention(const Ctx& ctx, const MlaAttentionArgs& args);
void gqa_attention(const Ctx& ctx, const GqaAttentionArgs& args);
void route(const Ctx& ctx, const RouteArgs& args);
void experts(const Ctx& ctx, const ExpertsArgs& args);
void moe(const Ctx& ctx, const MoeArgs& args);
void argmax(const Ctx& ctx, const ArgmaxArgs& args);
void sample(const Ctx& ctx, const SampleArgs& args);

}  // namespace gpu
}  // namespace eyrie::ops
