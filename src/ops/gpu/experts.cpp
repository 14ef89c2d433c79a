#include <algorithm>

#include "ops/gpu/backend.h"
#include "ops/gpu/kernels_linear.h"
#include "ops/gpu/linear.h"
#include "ops/gpu/weights.h"

// Four launches: pairs (token, slot) are sorted by expert, gate and up with SiLU, down, and the
// weighted sum over a token's slots. A shared expert of the routed ones' format and width goes
// along as one more that every token visits; another one takes two launches more.
namespace eyrie::ops::gpu {
namespace {

// Rows of one pass: what lies between the products takes (top_k + 1) · (H + I) · 2 bytes a token.
constexpr int64_t kPassTokens = 4096;

// How many tokens of an expert are multiplied at once. More share a pass over its weights; fewer
// cost less arithmetic where most experts have one or two.
int32_t tile_tokens(int64_t num_pairs, int64_t num_experts, int64_t num_tokens, bool fixed_order) {
  if (!fixed_order && (num_tokens <= 8 || num_pairs <= 2 * num_experts)) return 8;
  if (fixed_order || num_pairs <= 12 * num_experts) return 16;
  return kMaxTokenTile;
}

bool is_like(const PreparedWeight& shared, const PreparedWeight& routed) {
  return shared.format == routed.format && shared.out == routed.out && shared.in == routed.in;
}

void experts_pass(const Ctx& ctx, const ExpertsArgs& a) {
  const ArenaScope scope(*ctx.arena);
  Arena& arena = *ctx.arena;
  const auto T = static_cast<int32_t>(a.x.dim(0)), top_k = static_cast<int32_t>(a.ids.dim(1));
  const auto num_experts = static_cast<int32_t>(a.down.size());
  const int64_t hidden = a.x.dim(1), width = a.down[0].in;
  const int32_t num_pairs = T * top_k;
  const bool has_shared = a.shared_down != nullptr;
  const bool shared_goes_along =
      has_shared && is_like(*a.shared_gate_up, a.gate_up[0]) && is_like(*a.shared_down, a.down[0]);
  const int64_t num_positions = num_pairs + (shared_goes_along ? T : 0);

  Tensor x = a.x;
  if (x.dtype() != DType::kBF16) {
    x = arena.empty(DType::kBF16, {T, hidden});
    gpu::copy_rows(ctx, {.out = x, .x = a.x});
  }
  const int32_t tile = tile_tokens(num_pairs, num_experts, T, ctx.deterministic);
  const int64_t max_tiles = std::min<int64_t>(num_pairs, num_experts + num_pairs / tile) +
                            (shared_goes_along ? T / tile + 1 : 0);
  auto* const counters = arena.array<int32_t>(4);  // next task of either product, tiles
  auto* const tiles = arena.array<TokenTile>(max_tiles);
  auto* const token_of = arena.array<int32_t>(num_positions);
  auto* const position_of = arena.array<int32_t>(num_pairs);
  launch_sort(
      {.ids = a.ids.data<int32_t>(),
       .num_tokens = T,
       .top_k = top_k,
       .num_experts = num_experts,
       .gate_up = reinterpret_cast<const PackedMatrix*>(a.gate_up.table),
       .down = reinterpret_cast<const PackedMatrix*>(a.down.table),
       .has_shared = shared_goes_along,
       .shared_gate_up = shared_goes_along ? packed_matrix(*a.shared_gate_up) : PackedMatrix{},
       .shared_down = shared_goes_along ? packed_matrix(*a.shared_down) : PackedMatrix{},
       .tile_tokens = tile,
       .tiles = tiles,
       .num_tiles = counters + 2,
       .next_task = counters,
       .token_of = token_of,
       .position_of = position_of},
      ctx.stream);

  const auto product = [&](const PreparedWeight& like, int32_t which) {
    Multiply m = multiply_of(like);
    m.tiles = tiles;
    m.which = which;
    m.num_tiles = counters + 2;
    m.next_task = counters + which;
    m.max_tiles = max_tiles;
    m.tile_tokens = tile;
    m.fixed_order = ctx.deterministic;
    return m;
  };
  const Tensor act = arena.empty(DType::kBF16, {num_positions, width});
  const Tensor y = arena.empty(DType::kBF16, {num_positions, hidden});
  Multiply gate_up = product(a.gate_up[0], 0);
  gate_up.paired = true;
  gate_up.x = x.raw();
  gate_up.x_stride = x.stride(0);
  gate_up.x_rows = token_of;
  gate_up.out = act.raw();
  gate_up.out_stride = width;
  multiply(gate_up, ctx.stream);
  Multiply down = product(a.down[0], 1);
  down.x = act.raw();
  down.x_stride = width;
  down.out = y.raw();
  down.out_stride = hidden;
  multiply(down, ctx.stream);

  Tensor shared;
  if (shared_goes_along) {
    shared = y.rows(num_pairs, T);
  } else if (has_shared) {
    const Tensor shared_act = arena.empty(DType::kBF16, {T, a.shared_down->in});
    shared = arena.empty(DType::kBF16, {T, hidden});
    Multiply m = multiply_of(*a.shared_gate_up);
    m.paired = true;
    m.x = x.raw();
    m.x_stride = x.stride(0);
    m.out = shared_act.raw();
    m.out_stride = shared_act.dim(1);
    m.num_tokens = T;
    m.fixed_order = ctx.deterministic;
    multiply(m, ctx.stream);
    gpu::linear(ctx, {.out = shared, .x = shared_act, .weight = a.shared_down});
  }
  launch_combine({.out = a.out.raw(),
                  .out_is_f32 = a.out.dtype() == DType::kF32,
                  .out_stride = a.out.stride(0),
                  .y = y.raw(),
                  .y_stride = hidden,
                  .position_of = position_of,
                  .weights = a.weights.data<float>(),
                  .shared = shared.raw(),
                  .shared_stride = hidden,
                  .num_tokens = T,
                  .top_k = top_k,
                  .width = hidden},
                 ctx.stream);
}

}  // namespace

void experts(const Ctx& ctx, const ExpertsArgs& a) {
  CHECK(a.gate_up.table != nullptr && a.down.table != nullptr,
        "experts: weights on a GPU come as stacks");
  CHECK(a.down.size() <= static_cast<size_t>(kMaxSortedExperts), "experts: {} of at most {}",
        a.down.size(), kMaxSortedExperts);
  for (int64_t begin = 0; begin < a.x.dim(0); begin += kPassTokens) {
    const int64_t count = std::min(kPassTokens, a.x.dim(0) - begin);
    ExpertsArgs pass = a;
    pass.out = a.out.rows(begin, count);
    pass.x = a.x.rows(begin, count);
    pass.ids = a.ids.rows(begin, count);
    pass.weights = a.weights.rows(begin, count);
    experts_pass(ctx, pass);
  }
}

}  // namespace eyrie::ops::gpu
