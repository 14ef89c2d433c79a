#include "ops/observe.h"

#include <cmath>
#include <cstring>

#include "base/check.h"

namespace eyrie::ops {
namespace {

void watched_linear(const Ctx& ctx, const LinearArgs& a) {
  ctx.observer->see(*a.weight, a.x);
  ctx.observer->base().linear(ctx, a);
}

// x's rows that chose the expert, one below the other in the arena.
Tensor rows_of_expert(const Ctx& ctx, const ExpertsArgs& a, int32_t expert) {
  const int64_t num_tokens = a.x.dim(0), top_k = a.ids.dim(1), hidden = a.x.dim(1);
  const int32_t* ids = a.ids.data<int32_t>();
  auto* chosen = ctx.arena->array<int64_t>(num_tokens);
  int64_t count = 0;
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t slot = 0; slot < top_k; ++slot) {
      if (ids[t * top_k + slot] != expert) continue;
      chosen[count++] = t;
      break;
    }
  }
  const Tensor rows = ctx.arena->f32({count, hidden});
  for (int64_t r = 0; r < count; ++r) {
    std::memcpy(rows.data<float>() + r * hidden, a.x.data<float>() + chosen[r] * a.x.stride(0),
                static_cast<size_t>(hidden) * sizeof(float));
  }
  return rows;
}

void watched_experts(const Ctx& ctx, const ExpertsArgs& a) {
  ActivationObserver& observer = *ctx.observer;
  for (size_t e = 0; e < a.down.size(); ++e) {
    const ArenaScope scratch(*ctx.arena);
    const Tensor x = rows_of_expert(ctx, a, static_cast<int32_t>(e));
    if (x.dim(0) == 0) continue;
    const Tensor gate_up = ctx.arena->f32({x.dim(0), a.gate_up[e].out});
    const Tensor hidden = ctx.arena->f32({x.dim(0), a.down[e].in});
    observer.see(a.gate_up[e], x);
    observer.base().linear(ctx, {.out = gate_up, .x = x, .weight = &a.gate_up[e]});
    observer.base().silu_mul(ctx, {.out = hidden, .gate_up = gate_up});
    observer.see(a.down[e], hidden);
  }
  observer.base().experts(ctx, a);
}

}  // namespace

float largest_magnitude(const Tensor& rows, float largest) {
  for (int64_t t = 0; t < rows.dim(0); ++t) {
    const float* row = rows.data<float>() + t * rows.stride(0);
    for (int64_t i = 0; i < rows.dim(1); ++i) {
      const float x = std::fabs(row[i]);
      if (x > largest || std::isnan(x)) largest = x;
    }
  }
  return largest;
}

ActivationObserver::ActivationObserver(const OpTable& base) : base_(base), table_(base) {
  table_.linear = watched_linear;
  table_.experts = watched_experts;
}

Ctx ActivationObserver::watched(Ctx ctx) {
  CHECK(ctx.table == &base_, "an observer of {} cannot watch {}", base_.name,
        ctx.table == nullptr ? "nothing" : ctx.table->name);
  ctx.table = &table_;
  ctx.observer = this;
  return ctx;
}

float ActivationObserver::largest(const PreparedWeight& weight) const {
  const auto found = largest_.find(&weight);
  return found == largest_.end() ? 0.0f : found->second;
}

void ActivationObserver::see(const PreparedWeight& weight, const Tensor& rows) {
  float& largest = largest_[&weight];
  largest = largest_magnitude(rows, largest);
}

}  // namespace eyrie::ops
