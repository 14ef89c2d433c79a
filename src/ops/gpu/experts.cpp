#include <algorithm>

#include "ops/gpu/backend.h"
#include "ops/gpu/kernels_linear.h"
#include "ops/gpu/linear.h"
#include "ops/gpu/plain.h"
#include "ops/gpu/weights.h"

// Pairs (token, slot) are sorted by expert; gate and up with SiLU; down; the weighted sum over a
// token's slots. Four launches, or three where there is a kernel for both products; for few tokens
// the router's choice and the sorting are one. A shared expert of the routed ones' format and width
// goes along as one more that every token visits; another one takes two launches more.
namespace eyrie::ops::gpu {
namespace {

// Rows of one pass: what lies between the products takes (top_k + 1) · (H + I) · 2 bytes a token.
constexpr int64_t kPassTokens = 4096;

// How many tokens of an expert are multiplied at once: by blocks of few rows, so that a token or
// two keep all of the device busy; by what most experts have; or, in long prompts, as many as
// possible.
int32_t tile_tokens(int64_t num_pairs, int64_t num_experts, int64_t num_tokens, bool fixed_order) {
  if (num_tokens <= 2 && !fixed_order) return 8;
  if (num_pairs <= 16 * num_experts || fixed_order) return 16;
  return kMaxTokenTile;
}

bool is_like(const PreparedWeight& shared, const PreparedWeight& routed) {
  return shared.format == routed.format && shared.out == routed.out && shared.in == routed.in;
}

bool route_and_sort(const RouteArgs& route, const Sort& sort, void* stream) {
  const Route r = route_of(route);
  if (are_products_generic() || !can_route_and_sort(r, sort)) return false;
  launch_route_and_sort(r, sort, stream);
  return true;
}

// route: computed here, or nullptr where ids and weights are there.
void experts_pass(const Ctx& ctx, const ExpertsArgs& a, const RouteArgs* route) {
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
  const bool fixed_order = is_order_fixed(ctx, multiply_of(a.gate_up[0]));
  const int32_t tile = tile_tokens(num_pairs, num_experts, T, fixed_order);
  const int64_t max_tiles = std::min<int64_t>(num_pairs, num_experts + num_pairs / tile) +
                            (shared_goes_along ? T / tile + 1 : 0);
  auto* const counters = arena.array<int32_t>(4);  // next task of either product, tiles
  auto* const tiles = arena.array<TokenTile>(max_tiles);
  auto* const tiles_done = arena.array<int32_t>(max_tiles);
  auto* const token_of = arena.array<int32_t>(num_positions);
  auto* const position_of = arena.array<int32_t>(num_pairs);
  const Sort sort{
      .ids = a.ids.data<int32_t>(),
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
      .tiles_done = tiles_done,
      .next_task = counters,
      .token_of = token_of,
      .position_of = position_of};
  if (route == nullptr || !route_and_sort(*route, sort, ctx.stream)) {
    if (route != nullptr) gpu::route(ctx, *route);
    launch_sort(sort, ctx.stream);
  }

  const auto product = [&](const PreparedWeight& like, int32_t which) {
    Multiply m = multiply_of(like);
    m.tiles = tiles;
    m.which = which;
    m.num_tiles = counters + 2;
    m.next_task = counters + which;
    m.max_tiles = max_tiles;
    m.tile_tokens = tile;
    m.fixed_order = fixed_order;
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
  Multiply down = product(a.down[0], 1);
  down.x = act.raw();
  down.x_stride = width;
  down.out = y.raw();
  down.out_stride = hidden;
  multiply_chain(gate_up, {.m = down, .tiles_done = tiles_done}, ctx.stream);

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
    m.fixed_order = is_order_fixed(ctx, m);
    multiply(m, ctx.stream);
    gpu::linear(ctx, {.out = shared, .x = shared_act, .weight = a.shared_down});
  }
  const Combine combine{.out = a.out.raw(),
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
                        .width = hidden};
  launch_combine(combine, ctx.stream);
}

void moe_passes(const Ctx& ctx, const ExpertsArgs& a, const RouteArgs* route) {
  CHECK(a.gate_up.table != nullptr && a.down.table != nullptr,
        "experts: weights on a GPU come as stacks");
  CHECK(a.down.size() <= static_cast<size_t>(kMaxSortedExperts), "experts: {} of at most {}",
        a.down.size(), kMaxSortedExperts);
  const int64_t T = a.x.dim(0);
  if (T <= kPassTokens) {
    if (T > 0) experts_pass(ctx, a, route);
    return;
  }
  if (route != nullptr) gpu::route(ctx, *route);
  for (int64_t begin = 0; begin < T; begin += kPassTokens) {
    const int64_t count = std::min(kPassTokens, T - begin);
    ExpertsArgs pass = a;
    pass.out = a.out.rows(begin, count);
    pass.x = a.x.rows(begin, count);
    pass.ids = a.ids.rows(begin, count);
    pass.weights = a.weights.rows(begin, count);
    experts_pass(ctx, pass, nullptr);
  }
}

}  // namespace

void experts(const Ctx& ctx, const ExpertsArgs& a) { moe_passes(ctx, a, nullptr); }

void moe(const Ctx& ctx, const MoeArgs& a) {
  gpu::linear(ctx, a.gate);
  moe_passes(ctx, a.experts, &a.route);
}

}  // namespace eyrie::ops::gpu
