#include "ops/ops.h"

#include <algorithm>

#include "base/error.h"
#include "ops/op_table.h"

// The front: shapes are checked here once for every backend, then one slot of the table is called.
// A wrong shape is a bug of the caller, so it prints all operands and aborts.
namespace eyrie::ops {
namespace {

bool is_f32(const Tensor& t, int rank) {
  return t.rank() == rank && t.dtype() == DType::kF32 &&
         (t.dim(rank - 1) <= 1 || t.stride(rank - 1) == 1);
}

// What flows between ops: float32, or the backend's narrower type.
bool is_activation(const Ctx& ctx, const Tensor& t, int rank) {
  return t.rank() == rank &&
         (t.dtype() == DType::kF32 ||
          (ctx.table != nullptr && t.dtype() == ctx.table->activation_dtype)) &&
         (t.dim(rank - 1) <= 1 || t.stride(rank - 1) == 1);
}

bool same_shape(const Tensor& a, const Tensor& b) {
  if (a.rank() != b.rank()) return false;
  for (int i = 0; i < a.rank(); ++i) {
    if (a.dim(i) != b.dim(i)) return false;
  }
  return true;
}

template <typename Slot>
Slot slot(const Ctx& ctx, Slot OpTable::*member, const char* op) {
  CHECK(ctx.table != nullptr && ctx.pool != nullptr && ctx.arena != nullptr,
        "{}: incomplete context", op);
  const Slot fn = ctx.table->*member;
  CHECK(fn != nullptr, "op {} is not on backend {}", op, ctx.table->name);
  return fn;
}

template <typename Slot>
Slot slot_or_null(const Ctx& ctx, Slot OpTable::*member) {
  CHECK(ctx.table != nullptr, "an incomplete context");
  return ctx.table->*member;
}

// Rows of the sequences lie inside the batch and their positions are non-negative.
void check_sequences(const Ctx& ctx, const char* op, std::span<const SequenceRows> sequences,
                     int64_t num_rows) {
  if (!ctx.table->on_host) return;
  for (const SequenceRows& s : sequences) {
    CHECK(s.num_rows >= 0 && s.first_row >= 0 && s.first_row + s.num_rows <= num_rows &&
              s.first_position >= 0 && (s.num_rows == 0 || s.block_table != nullptr),
          "{}: sequence rows {}+{} at position {} of a batch of {} rows", op, s.first_row,
          s.num_rows, s.first_position, num_rows);
  }
}

bool is_cache(const CacheView& cache, int64_t width) {
  const DType dtype = cache.data.dtype();
  const bool has_type =
      dtype == DType::kBF16 ? cache.scale == 1.0f : dtype == DType::kF8E4M3 && cache.scale > 0.0f;
  return has_type && cache.data.rank() == 2 && cache.data.is_contiguous() &&
         cache.data.dim(1) == width && cache.block_size > 0 &&
         cache.block_size % kAttentionTile == 0;
}

}  // namespace

size_t PreparedWeight::bytes() const {
  if (storage.bytes() > 0) return storage.bytes();
  size_t total = 0;
  for (const formats::Weight& weight : source) total += formats::weight_bytes(weight);
  return total;
}

formats::ActivationRounding activation_rounding(const formats::WeightFormat& format,
                                                ActivationQuantization activation) {
  switch (activation) {
    case ActivationQuantization::kOff:
      break;
    case ActivationQuantization::kAuto:
      if (format.bits_per_element == 4) return formats::ActivationRounding::kInt8;
      if (&format == &formats::kBF16) return formats::ActivationRounding::kBf16;
      break;
    case ActivationQuantization::kEmulate:
      return format.activation;
  }
  return formats::ActivationRounding::kNone;
}

PreparedWeight prepare(const Ctx& ctx, std::span<const formats::Weight> rows_concatenated,
                       ActivationQuantization activation) {
  CHECK(!rows_concatenated.empty(), "prepare: no weight given");
  const formats::Weight& first = rows_concatenated.front();
  for (const formats::Weight& weight : rows_concatenated) {
    CHECK(!weight.empty() && weight.in == first.in,
          "prepare: weights that are fused need one input width: {} [{}, {}] beside {} [{}, {}]",
          first.format->name, first.out, first.in, weight.empty() ? "none" : weight.format->name,
          weight.out, weight.in);
    CHECK(weight.data.rank() == 2 && weight.data.is_contiguous() &&
              weight.data.dtype() == weight.format->data_dtype &&
              weight.data.dim(0) == weight.out &&
              weight.data.dim(1) == weight.format->data_columns(weight.in),
          "prepare: {} weight [{}, {}] holds data {}", weight.format->name, weight.out, weight.in,
          weight.data.shape_string());
  }
  PreparedWeight prepared =
      slot(ctx, &OpTable::prepare, "prepare")(ctx, rows_concatenated, activation);
  for (const formats::Weight& weight : rows_concatenated) {
    if (weight.format != first.format) prepared.activation = formats::ActivationRounding::kNone;
    prepared.input_scale = std::max(prepared.input_scale, weight.input_scale);
  }
  return prepared;
}

DType activation_dtype(const Ctx& ctx) { return ctx.table->activation_dtype; }

WeightStack stack(const Ctx& ctx, std::vector<PreparedWeight> weights) {
  WeightStack result{.weights = std::move(weights), .table = {}};
  if (slot_or_null(ctx, &OpTable::stack) != nullptr) {
    result.table = ctx.table->stack(ctx, result.weights);
  }
  return result;
}

PlacedTensor place(const Ctx& ctx, const Tensor& host) {
  if (slot_or_null(ctx, &OpTable::place) == nullptr) return {.storage = {}, .view = host};
  return ctx.table->place(ctx, host);
}

PlacedWeight place(const Ctx& ctx, const formats::Weight& host) {
  PlacedTensor data = place(ctx, host.data);
  PlacedTensor scales;
  if (!host.scales.empty()) scales = place(ctx, host.scales);
  PlacedWeight placed{
      .data = std::move(data.storage), .scales = std::move(scales.storage), .view = host};
  placed.view.data = data.view;
  placed.view.scales = scales.view;
  return placed;
}

void embedding(const Ctx& ctx, const EmbeddingArgs& a) {
  CHECK(a.table != nullptr && is_activation(ctx, a.out, 2) && a.out.dim(1) == a.table->in &&
            a.out.dim(0) == static_cast<int64_t>(a.ids.size()),
        "embedding: out {} for {} ids", a.out.shape_string(), a.ids.size());
  for (int32_t id : ctx.table->on_host ? a.ids : std::span<const int32_t>{}) {
    CHECK(id >= 0 && id < a.table->out, "embedding: id {} of a table of {} rows", id, a.table->out);
  }
  slot(ctx, &OpTable::embedding, "embedding")(ctx, a);
}

void rms_norm(const Ctx& ctx, const RmsNormArgs& a) {
  CHECK(is_activation(ctx, a.out, 2) && is_activation(ctx, a.x, 2) && is_f32(a.weight, 1) &&
            same_shape(a.out, a.x) && a.weight.dim(0) == a.x.dim(1),
        "rms_norm: out {} x {} weight {}", a.out.shape_string(), a.x.shape_string(),
        a.weight.shape_string());
  slot(ctx, &OpTable::rms_norm, "rms_norm")(ctx, a);
}

void add(const Ctx& ctx, const AddArgs& a) {
  CHECK(is_activation(ctx, a.residual, 2) && is_activation(ctx, a.x, 2) &&
            same_shape(a.residual, a.x),
        "add: residual {} x {}", a.residual.shape_string(), a.x.shape_string());
  slot(ctx, &OpTable::add, "add")(ctx, a);
}

void add_rms_norm(const Ctx& ctx, const AddRmsNormArgs& a) {
  if (slot_or_null(ctx, &OpTable::add_rms_norm) == nullptr) {
    add(ctx, {.residual = a.residual, .x = a.x});
    rms_norm(ctx, {.out = a.out, .x = a.residual, .weight = a.weight, .eps = a.eps});
    return;
  }
  CHECK(is_f32(a.residual, 2) && is_activation(ctx, a.x, 2) && is_activation(ctx, a.out, 2) &&
            is_f32(a.weight, 1) && same_shape(a.residual, a.x) && same_shape(a.residual, a.out) &&
            a.weight.dim(0) == a.x.dim(1),
        "add_rms_norm: residual {} x {} out {} weight {}", a.residual.shape_string(),
        a.x.shape_string(), a.out.shape_string(), a.weight.shape_string());
  ctx.table->add_rms_norm(ctx, a);
}

void gather_rows(const Ctx& ctx, const GatherRowsArgs& a) {
  CHECK(is_activation(ctx, a.out, 2) && is_activation(ctx, a.x, 2) && a.out.dim(1) == a.x.dim(1) &&
            a.out.dim(0) == static_cast<int64_t>(a.rows.size()),
        "gather_rows: out {} x {} and {} rows", a.out.shape_string(), a.x.shape_string(),
        a.rows.size());
  for (int32_t row : ctx.table->on_host ? a.rows : std::span<const int32_t>{}) {
    CHECK(row >= 0 && row < a.x.dim(0), "gather_rows: row {} of {}", row, a.x.shape_string());
  }
  slot(ctx, &OpTable::gather_rows, "gather_rows")(ctx, a);
}

void copy_rows(const Ctx& ctx, const CopyRowsArgs& a) {
  CHECK(is_activation(ctx, a.out, 2) && is_activation(ctx, a.x, 2) && same_shape(a.out, a.x),
        "copy_rows: out {} x {}", a.out.shape_string(), a.x.shape_string());
  slot(ctx, &OpTable::copy_rows, "copy_rows")(ctx, a);
}

void scale_rows(const Ctx& ctx, const ScaleRowsArgs& a) {
  CHECK(is_f32(a.x, 2), "scale_rows: x {}", a.x.shape_string());
  if (a.factor != 1.0f) slot(ctx, &OpTable::scale_rows, "scale_rows")(ctx, a);
}

static void check_linear(const Ctx& ctx, const LinearArgs& a) {
  CHECK(a.weight != nullptr && is_activation(ctx, a.out, 2) && is_activation(ctx, a.x, 2) &&
            a.out.dim(0) == a.x.dim(0) && a.out.dim(1) == a.weight->out &&
            a.x.dim(1) == a.weight->in,
        "linear: out {} x {} weight [{}, {}]", a.out.shape_string(), a.x.shape_string(),
        a.weight == nullptr ? 0 : a.weight->out, a.weight == nullptr ? 0 : a.weight->in);
}

void linear(const Ctx& ctx, const LinearArgs& a) {
  check_linear(ctx, a);
  slot(ctx, &OpTable::linear, "linear")(ctx, a);
}

void head_linear(const Ctx& ctx, const HeadLinearArgs& a) {
  CHECK(is_activation(ctx, a.out, 3) && is_activation(ctx, a.x, 3) && a.out.dim(0) == a.x.dim(0) &&
            a.out.dim(1) == a.x.dim(1) && a.x.dim(1) == static_cast<int64_t>(a.weights.size()),
        "head_linear: out {} x {} and {} heads", a.out.shape_string(), a.x.shape_string(),
        a.weights.size());
  for (const PreparedWeight& weight : a.weights) {
    CHECK(weight.in == a.x.dim(2) && weight.out == a.out.dim(2),
          "head_linear: out {} x {} head weight [{}, {}]", a.out.shape_string(), a.x.shape_string(),
          weight.out, weight.in);
  }
  slot(ctx, &OpTable::head_linear, "head_linear")(ctx, a);
}

void silu_mul(const Ctx& ctx, const SiluMulArgs& a) {
  CHECK(is_activation(ctx, a.out, 2) && is_activation(ctx, a.gate_up, 2) &&
            a.out.dim(0) == a.gate_up.dim(0) && 2 * a.out.dim(1) == a.gate_up.dim(1),
        "silu_mul: out {} gate_up {}", a.out.shape_string(), a.gate_up.shape_string());
  slot(ctx, &OpTable::silu_mul, "silu_mul")(ctx, a);
}

void rope(const Ctx& ctx, const RopeArgs& a) {
  CHECK(is_activation(ctx, a.x, 3) && a.x.dim(0) == static_cast<int64_t>(a.positions.size()) &&
            a.x.dim(2) == 2 * static_cast<int64_t>(a.inv_freq.size()),
        "rope: x {} for {} positions and {} frequencies", a.x.shape_string(), a.positions.size(),
        a.inv_freq.size());
  slot(ctx, &OpTable::rope, "rope")(ctx, a);
}

void cache_write(const Ctx& ctx, const CacheWriteArgs& a) {
  CHECK(is_activation(ctx, a.x, 2) && is_cache(a.cache, a.x.dim(1)),
        "cache_write: cache {} with blocks of {}, x {}", a.cache.data.shape_string(),
        a.cache.block_size, a.x.shape_string());
  check_sequences(ctx, "cache_write", a.sequences, a.x.dim(0));
  slot(ctx, &OpTable::cache_write, "cache_write")(ctx, a);
}

void mla_cache_write(const Ctx& ctx, const MlaCacheWriteArgs& a) {
  const int64_t latent = a.norm_weight.dim(0), width = a.kv.dim(1) - latent;
  CHECK(is_activation(ctx, a.kv, 2) && is_f32(a.norm_weight, 1) &&
            width == 2 * static_cast<int64_t>(a.inv_freq.size()) && is_cache(a.cache, a.kv.dim(1)),
        "mla_cache_write: cache {} kv {} norm weight {}, {} frequencies",
        a.cache.data.shape_string(), a.kv.shape_string(), a.norm_weight.shape_string(),
        a.inv_freq.size());
  CHECK(is_activation(ctx, a.q, 2) && a.q.dtype() == a.kv.dtype() && is_f32(a.q_norm_weight, 1) &&
            a.q.dim(0) == a.kv.dim(0) && a.q.dim(1) == a.q_norm_weight.dim(0),
        "mla_cache_write: kv {} q {} norm weight {}", a.kv.shape_string(), a.q.shape_string(),
        a.q_norm_weight.shape_string());
  if (slot_or_null(ctx, &OpTable::mla_cache_write) != nullptr) {
    ctx.table->mla_cache_write(ctx, a);
    return;
  }
  rms_norm(ctx, {.out = a.q, .x = a.q, .weight = a.q_norm_weight, .eps = a.q_eps});
  const Tensor normed = a.kv.columns(0, latent);
  rms_norm(ctx, {.out = normed, .x = normed, .weight = a.norm_weight, .eps = a.eps});
  rope(ctx, {.x = a.kv.columns(latent, width).split_last(1, width),
             .positions = a.positions,
             .inv_freq = a.inv_freq,
             .magnitude = a.magnitude,
             .style = a.style});
  cache_write(ctx, {.cache = a.cache, .x = a.kv, .sequences = a.sequences});
}

void mla_queries(const Ctx& ctx, const MlaQueriesArgs& a) {
  const int64_t width = 2 * static_cast<int64_t>(a.inv_freq.size());
  CHECK(is_activation(ctx, a.q, 3) && is_activation(ctx, a.q_latent, 3) &&
            a.q.dim(0) == a.q_latent.dim(0) && a.q.dim(1) == a.q_latent.dim(1) &&
            a.q.dim(2) > width && a.weights.size() == static_cast<size_t>(a.q.dim(1)) &&
            a.positions.size() == static_cast<size_t>(a.q.dim(0)),
        "mla_queries: q_latent {} q {}, {} heads' weights, {} frequencies, {} positions",
        a.q_latent.shape_string(), a.q.shape_string(), a.weights.size(), a.inv_freq.size(),
        a.positions.size());
  if (slot_or_null(ctx, &OpTable::mla_queries) != nullptr) {
    ctx.table->mla_queries(ctx, a);
    return;
  }
  const int64_t nope = a.q.dim(2) - width;
  rope(ctx, {.x = a.q.columns(nope, width),
             .positions = a.positions,
             .inv_freq = a.inv_freq,
             .magnitude = a.magnitude,
             .style = a.style});
  head_linear(ctx, {.out = a.q_latent, .x = a.q.columns(0, nope), .weights = a.weights});
}

void mla_attention(const Ctx& ctx, const MlaAttentionArgs& a) {
  CHECK(is_activation(ctx, a.out, 3) && is_activation(ctx, a.q_latent, 3) &&
            is_activation(ctx, a.q_rope, 3) && same_shape(a.out, a.q_latent) &&
            a.q_rope.dim(0) == a.out.dim(0) && a.q_rope.dim(1) == a.out.dim(1) &&
            is_cache(a.cache, a.q_latent.dim(2) + a.q_rope.dim(2)),
        "mla_attention: out {} q_latent {} q_rope {} cache {} with blocks of {}",
        a.out.shape_string(), a.q_latent.shape_string(), a.q_rope.shape_string(),
        a.cache.data.shape_string(), a.cache.block_size);
  check_sequences(ctx, "mla_attention", a.sequences, a.out.dim(0));
  slot(ctx, &OpTable::mla_attention, "mla_attention")(ctx, a);
}

void gqa_attention(const Ctx& ctx, const GqaAttentionArgs& a) {
  CHECK(is_activation(ctx, a.out, 3) && is_activation(ctx, a.q, 3) && same_shape(a.out, a.q) &&
            a.num_kv_heads > 0 && a.q.dim(1) % a.num_kv_heads == 0 &&
            is_cache(a.k_cache, a.num_kv_heads * a.q.dim(2)) &&
            is_cache(a.v_cache, a.num_kv_heads * a.q.dim(2)) &&
            a.k_cache.block_size == a.v_cache.block_size &&
            a.k_cache.data.dtype() == a.v_cache.data.dtype(),
        "gqa_attention: out {} q {} k {} v {} and {} kv heads", a.out.shape_string(),
        a.q.shape_string(), a.k_cache.data.shape_string(), a.v_cache.data.shape_string(),
        a.num_kv_heads);
  check_sequences(ctx, "gqa_attention", a.sequences, a.out.dim(0));
  slot(ctx, &OpTable::gqa_attention, "gqa_attention")(ctx, a);
}

static void check_route(const RouteArgs& a) {
  CHECK(a.ids.rank() == 2 && a.ids.dtype() == DType::kI32 && a.ids.is_contiguous() &&
            is_f32(a.weights, 2) && a.weights.is_contiguous() && is_f32(a.logits, 2) &&
            is_f32(a.bias, 1) && same_shape(a.ids, a.weights) && a.ids.dim(0) == a.logits.dim(0) &&
            a.bias.dim(0) == a.logits.dim(1) && a.ids.dim(1) <= a.logits.dim(1),
        "route: ids {} weights {} logits {} bias {}", a.ids.shape_string(),
        a.weights.shape_string(), a.logits.shape_string(), a.bias.shape_string());
  const int64_t num_experts = a.logits.dim(1);
  CHECK(a.n_group >= 1 && a.topk_group >= 1 && a.topk_group <= a.n_group &&
            num_experts % a.n_group == 0 &&
            a.ids.dim(1) <= a.topk_group * (num_experts / a.n_group),
        "route: {} of {} experts in {} of {} groups", a.ids.dim(1), num_experts, a.topk_group,
        a.n_group);
}

void route(const Ctx& ctx, const RouteArgs& a) {
  check_route(a);
  slot(ctx, &OpTable::route, "route")(ctx, a);
}

static void check_expert_ids(const Ctx& ctx, const ExpertsArgs& a) {
  if (!ctx.table->on_host) return;
  const std::span<const int32_t> ids(a.ids.data<int32_t>(),
                                     static_cast<size_t>(a.ids.num_elements()));
  for (int32_t id : ids) {
    CHECK(id >= 0 && static_cast<size_t>(id) < a.down.size(), "experts: expert {} of {}", id,
          a.down.size());
  }
}

static void check_experts(const Ctx& ctx, const ExpertsArgs& a) {
  CHECK(is_activation(ctx, a.out, 2) && is_activation(ctx, a.x, 2) && same_shape(a.out, a.x) &&
            a.ids.rank() == 2 && a.ids.dtype() == DType::kI32 && a.ids.is_contiguous() &&
            is_f32(a.weights, 2) && a.weights.is_contiguous() && same_shape(a.ids, a.weights) &&
            a.ids.dim(0) == a.x.dim(0) && !a.gate_up.empty() && a.gate_up.size() == a.down.size(),
        "experts: out {} x {} ids {} weights {}, {} gate_up and {} down", a.out.shape_string(),
        a.x.shape_string(), a.ids.shape_string(), a.weights.shape_string(), a.gate_up.size(),
        a.down.size());
  for (size_t e = 0; e < a.down.size(); ++e) {
    CHECK(a.gate_up[e].in == a.x.dim(1) && a.down[e].out == a.x.dim(1) &&
              a.gate_up[e].out == 2 * a.down[e].in && a.down[e].in == a.down[0].in,
          "experts: x {} gate_up[{}] [{}, {}] down [{}, {}]", a.x.shape_string(), e,
          a.gate_up[e].out, a.gate_up[e].in, a.down[e].out, a.down[e].in);
  }
  CHECK(a.shared_down == nullptr ||
            (a.shared_gate_up != nullptr && a.shared_gate_up->in == a.x.dim(1) &&
             a.shared_down->out == a.x.dim(1) && a.shared_gate_up->out == 2 * a.shared_down->in),
        "experts: x {} and shared experts of another shape", a.x.shape_string());
}

void experts(const Ctx& ctx, const ExpertsArgs& a) {
  check_experts(ctx, a);
  check_expert_ids(ctx, a);
  slot(ctx, &OpTable::experts, "experts")(ctx, a);
  if (a.shared_down == nullptr || ctx.table->experts_take_shared) return;
  const ArenaScope scratch(*ctx.arena);
  const auto rows_of = [&](int64_t width) {
    return ctx.arena->empty(ctx.table->activation_dtype, {a.x.dim(0), width});
  };
  const Tensor gate_up = rows_of(a.shared_gate_up->out), hidden = rows_of(a.shared_down->in);
  const Tensor out = rows_of(a.out.dim(1));
  linear(ctx, {.out = gate_up, .x = a.x, .weight = a.shared_gate_up});
  silu_mul(ctx, {.out = hidden, .gate_up = gate_up});
  linear(ctx, {.out = out, .x = hidden, .weight = a.shared_down});
  add(ctx, {.residual = a.out, .x = out});
}

void moe(const Ctx& ctx, const MoeArgs& a) {
  CHECK(a.gate.out.raw() == a.route.logits.raw() && a.route.ids.raw() == a.experts.ids.raw() &&
            a.route.weights.raw() == a.experts.weights.raw(),
        "moe: what one part writes is not what the next reads");
  if (slot_or_null(ctx, &OpTable::moe) == nullptr) {
    linear(ctx, a.gate);
    route(ctx, a.route);
    experts(ctx, a.experts);
    return;
  }
  check_linear(ctx, a.gate);
  check_route(a.route);
  check_experts(ctx, a.experts);
  ctx.table->moe(ctx, a);
}

void argmax(const Ctx& ctx, const ArgmaxArgs& a) {
  CHECK(is_f32(a.logits, 2) && a.logits.dim(0) == static_cast<int64_t>(a.ids.size()) &&
            a.logits.dim(1) > 0,
        "argmax: logits {} for {} ids", a.logits.shape_string(), a.ids.size());
  slot(ctx, &OpTable::argmax, "argmax")(ctx, a);
}

void sample(const Ctx& ctx, const SampleArgs& a) {
  CHECK(is_f32(a.logits, 2) && a.logits.dim(0) == static_cast<int64_t>(a.rows.size()) &&
            a.ids_stride >= 1 &&
            (a.rows.empty() ||
             a.ids.size() > (a.rows.size() - 1) * static_cast<size_t>(a.ids_stride)),
        "sample: logits {} for {} rows and {} ids", a.logits.shape_string(), a.rows.size(),
        a.ids.size());
  slot(ctx, &OpTable::sample, "sample")(ctx, a);
}

}  // namespace eyrie::ops
