#include <cstring>
#include <vector>

#include "base/error.h"
#include "ops/gpu/backend.h"
#include "ops/gpu/device.h"
#include "ops/gpu/kernels_plain.h"
#include "ops/gpu/plain.h"

// Glue of the plain ops, the router and sampling.
namespace eyrie::ops::gpu {
namespace {

Type type_of(const Tensor& t) {
  switch (t.dtype()) {
    case DType::kF32:
      return Type::kF32;
    case DType::kBF16:
      return Type::kBF16;
    case DType::kF16:
      return Type::kF16;
    default:
      CHECK(false, "rows of {}", t.shape_string());
      return Type::kF32;
  }
}

Rows rows_of(const Tensor& t) { return {t.raw(), t.stride(0), type_of(t)}; }

}  // namespace

PlacedTensor place(const Ctx& ctx, const Tensor& host) {
  CHECK(host.is_contiguous() && host.rank() >= 1, "place: {}", host.shape_string());
  PlacedTensor placed{.storage = Buffer(host.bytes(), device_memory()), .view = host};
  Tensor flat(placed.storage.data(), host.dtype(), {host.num_elements()});
  switch (host.rank()) {
    case 1:
      placed.view = flat;
      break;
    case 2:
      placed.view = flat.reshape({host.dim(0), host.dim(1)});
      break;
    case 3:
      placed.view = flat.reshape({host.dim(0), host.dim(1), host.dim(2)});
      break;
    default:
      placed.view = flat.reshape({host.dim(0), host.dim(1), host.dim(2), host.dim(3)});
  }
  upload(placed.storage.data(), host.raw(), host.bytes(), ctx.stream, ctx.pool);
  return placed;
}

void embedding(const Ctx& ctx, const EmbeddingArgs& a) {
  const Tensor& table = a.table->data;
  if (a.table->format->block_in != 0) {
    fail("an embedding in {} cannot be read on a GPU: bf16, f16 and f32 can",
         a.table->format->name);
  }
  launch_copy_rows({.to = rows_of(a.out),
                    .from = rows_of(table),
                    .index = a.ids.data(),
                    .otherwise_first = true,
                    .num_rows = a.out.dim(0),
                    .num_from_rows = table.dim(0),
                    .width = a.out.dim(1)},
                   ctx.stream);
}

void rms_norm(const Ctx& ctx, const RmsNormArgs& a) {
  launch_rms_norm({.out = rows_of(a.out),
                   .x = rows_of(a.x),
                   .residual = {},
                   .weight = a.weight.data<float>(),
                   .eps = a.eps,
                   .num_rows = a.x.dim(0),
                   .width = a.x.dim(1)},
                  ctx.stream);
}

void add(const Ctx& ctx, const AddArgs& a) {
  launch_add({.x = rows_of(a.residual),
              .y = rows_of(a.x),
              .factor = 1.0F,
              .num_rows = a.x.dim(0),
              .width = a.x.dim(1)},
             ctx.stream);
}

void add_rms_norm(const Ctx& ctx, const AddRmsNormArgs& a) {
  launch_rms_norm({.out = rows_of(a.out),
                   .x = rows_of(a.x),
                   .residual = rows_of(a.residual),
                   .weight = a.weight.data<float>(),
                   .eps = a.eps,
                   .num_rows = a.x.dim(0),
                   .width = a.x.dim(1)},
                  ctx.stream);
}

void gather_rows(const Ctx& ctx, const GatherRowsArgs& a) {
  launch_copy_rows({.to = rows_of(a.out),
                    .from = rows_of(a.x),
                    .index = a.rows.data(),
                    .otherwise_first = false,
                    .num_rows = a.out.dim(0),
                    .num_from_rows = a.x.dim(0),
                    .width = a.x.dim(1)},
                   ctx.stream);
}

void copy_rows(const Ctx& ctx, const CopyRowsArgs& a) {
  launch_copy_rows({.to = rows_of(a.out),
                    .from = rows_of(a.x),
                    .index = nullptr,
                    .otherwise_first = false,
                    .num_rows = a.x.dim(0),
                    .num_from_rows = a.x.dim(0),
                    .width = a.x.dim(1)},
                   ctx.stream);
}

void scale_rows(const Ctx& ctx, const ScaleRowsArgs& a) {
  launch_scale(
      {.x = rows_of(a.x), .y = {}, .factor = a.factor, .num_rows = a.x.dim(0), .width = a.x.dim(1)},
      ctx.stream);
}

void silu_mul(const Ctx& ctx, const SiluMulArgs& a) {
  launch_silu_mul({.out = rows_of(a.out),
                   .gate_up = rows_of(a.gate_up),
                   .num_rows = a.out.dim(0),
                   .width = a.out.dim(1)},
                  ctx.stream);
}

Route route_of(const RouteArgs& a) {
  const int64_t num_experts = a.logits.dim(1), top_k = a.ids.dim(1);
  CHECK(num_experts <= kMaxRoutedExperts && top_k <= kMaxTopK && a.n_group <= kMaxRoutedExperts,
        "route: {} of {} experts in {} groups; the GPU's router takes {} of {}", top_k, num_experts,
        a.n_group, kMaxTopK, kMaxRoutedExperts);
  return {.ids = a.ids.data<int32_t>(),
          .weights = a.weights.data<float>(),
          .logits = a.logits.data<float>(),
          .logits_stride = a.logits.stride(0),
          .bias = a.bias.data<float>(),
          .num_experts = static_cast<int32_t>(num_experts),
          .top_k = static_cast<int32_t>(top_k),
          .n_group = a.n_group,
          .topk_group = a.topk_group,
          .norm_topk_prob = a.norm_topk_prob,
          .routed_scaling_factor = a.routed_scaling_factor,
          .num_valid = a.num_valid,
          .num_rows = a.logits.dim(0)};
}

void route(const Ctx& ctx, const RouteArgs& a) { launch_route(route_of(a), ctx.stream); }

namespace {

void select(const Ctx& ctx, const Tensor& logits, Select a) {
  a.logits = logits.data<float>();
  a.logits_stride = logits.stride(0);
  a.num_rows = logits.dim(0);
  a.width = logits.dim(1);
  ArenaScope scope(*ctx.arena);
  a.scratch = ctx.arena->array<Candidate>(a.num_rows * select_splits(a.num_rows, a.width));
  launch_select(a, ctx.stream);
}

}  // namespace

void argmax(const Ctx& ctx, const ArgmaxArgs& a) {
  Select args{};
  args.ids = a.ids.data();
  args.ids_stride = 1;
  select(ctx, a.logits, args);
}

void sample(const Ctx& ctx, const SampleArgs& a) {
  static_assert(sizeof(SampleParams) == sizeof(SampleRow) &&
                offsetof(SampleParams, temperature) == offsetof(SampleRow, temperature) &&
                offsetof(SampleParams, position) == offsetof(SampleRow, position));
  Select args{};
  args.ids = a.ids.data();
  args.ids_stride = a.ids_stride;
  args.rows = reinterpret_cast<const SampleParams*>(a.rows.data());
  args.id_map = a.id_map.empty() ? nullptr : a.id_map.data();
  select(ctx, a.logits, args);
}

}  // namespace eyrie::ops::gpu
