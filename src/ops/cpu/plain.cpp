#include <algorithm>

#include "ops/cpu/backend.h"
#include "ops/cpu/kernels.h"

namespace eyrie::ops::cpu {
namespace {

// choice[e] = -inf for experts outside the topk_group best groups; a group's score is the sum of
// its two best choices.
void mask_groups(const RouteArgs& a, int64_t num_experts, float* choice) {
  constexpr float kOut = -std::numeric_limits<float>::infinity();
  constexpr int kMaxGroups = 64;
  CHECK_LE(a.n_group, kMaxGroups);
  const int64_t size = num_experts / a.n_group;
  float score[kMaxGroups];
  for (int32_t g = 0; g < a.n_group; ++g) {
    float first = kOut, second = kOut;
    for (int64_t i = g * size; i < (g + 1) * size; ++i) {
      if (choice[i] > first) {
        second = first;
        first = choice[i];
      } else if (choice[i] > second) {
        second = choice[i];
      }
    }
    score[g] = size > 1 ? first + second : first;
  }
  for (int32_t g = 0; g < a.n_group; ++g) {
    int32_t better = 0;
    for (int32_t other = 0; other < a.n_group; ++other) {
      better += score[other] > score[g] || (score[other] == score[g] && other < g);
    }
    if (better >= a.topk_group) std::fill_n(choice + g * size, size, kOut);
  }
}

void route_row(const RouteArgs& a, int64_t t, float* score, float* choice) {
  const int64_t num_experts = a.logits.dim(1), top_k = a.ids.dim(1);
  constexpr float kTaken = -std::numeric_limits<float>::infinity();
  vector_kernels().sigmoid(a.logits.data<float>() + t * a.logits.stride(0), num_experts, score);
  for (int64_t e = 0; e < num_experts; ++e) choice[e] = score[e] + a.bias.data<float>()[e];
  if (a.n_group > 1) mask_groups(a, num_experts, choice);
  int32_t* ids = a.ids.data<int32_t>() + t * top_k;
  float* weights = a.weights.data<float>() + t * top_k;
  float sum = 0.0f;
  for (int64_t k = 0; k < top_k; ++k) {
    int64_t best = 0;
    for (int64_t e = 1; e < num_experts; ++e) {
      if (choice[e] > choice[best]) best = e;
    }
    ids[k] = static_cast<int32_t>(best);
    weights[k] = score[best];
    sum += score[best];
    choice[best] = kTaken;
  }
  const float factor = a.norm_topk_prob ? sum + 1e-20f : 1.0f;
  for (int64_t k = 0; k < top_k; ++k) weights[k] = weights[k] / factor * a.routed_scaling_factor;
}

}  // namespace

void embedding(const Ctx& ctx, const EmbeddingArgs& a) {
  const formats::Weight& table = *a.table;
  const auto num_rows = static_cast<int64_t>(a.ids.size());
  for_rows(ctx, num_rows, static_cast<double>(table.in) * 0.2, [&](int64_t t) {
    float* out = a.out.data<float>() + t * a.out.stride(0);
    const int64_t id = a.ids[static_cast<size_t>(t)];
    if (table.format == &formats::kBF16) {
      vector_kernels().from_bf16(formats::row_of<bf16>(table.data, id), table.in, out);
    } else {
      table.format->decode_row(table, id, {out, static_cast<size_t>(table.in)});
    }
  });
}

void rms_norm(const Ctx& ctx, const RmsNormArgs& a) {
  const int64_t width = a.x.dim(1);
  for_rows(ctx, a.x.dim(0), static_cast<double>(width) * 0.1, [&](int64_t t) {
    vector_kernels().rms_norm(a.x.data<float>() + t * a.x.stride(0), a.weight.data<float>(), width,
                              a.eps, a.out.data<float>() + t * a.out.stride(0));
  });
}

void add(const Ctx& ctx, const AddArgs& a) {
  const int64_t width = a.x.dim(1);
  for_rows(ctx, a.x.dim(0), static_cast<double>(width) * 0.1, [&](int64_t t) {
    vector_kernels().add(a.x.data<float>() + t * a.x.stride(0), width,
                         a.residual.data<float>() + t * a.residual.stride(0));
  });
}

void silu_mul(const Ctx& ctx, const SiluMulArgs& a) {
  const int64_t width = a.out.dim(1);
  for_rows(ctx, a.out.dim(0), static_cast<double>(width) * 0.5, [&](int64_t t) {
    const float* gate = a.gate_up.data<float>() + t * a.gate_up.stride(0);
    vector_kernels().silu_mul(gate, gate + width, width, a.out.data<float>() + t * a.out.stride(0));
  });
}

void rope(const Ctx& ctx, const RopeArgs& a) {
  const auto half = static_cast<int64_t>(a.inv_freq.size());
  const int64_t num_rows = a.x.dim(0), num_heads = a.x.dim(1);
  ArenaScope scope(*ctx.arena);
  auto* tables = ctx.arena->array<float>(num_rows * 2 * half);
  for_rows(ctx, num_rows, static_cast<double>(half * (num_heads + 4)) * 1.0, [&](int64_t t) {
    float* cosines = tables + t * 2 * half;
    float* sines = cosines + half;
    vector_kernels().rope_table(a.positions[static_cast<size_t>(t)], a.inv_freq.data(), half,
                                a.magnitude, cosines, sines);
    for (int64_t h = 0; h < num_heads; ++h) {
      float* x = a.x.data<float>() + t * a.x.stride(0) + h * a.x.stride(1);
      const bool interleaved = a.style == RopeStyle::kInterleaved;
      float* first = x;
      float* second = interleaved ? x + 1 : x + half;
      const int64_t step = interleaved ? 2 : 1;
      for (int64_t i = 0; i < half; ++i) {
        const float u = first[i * step], v = second[i * step];
        first[i * step] = u * cosines[i] - v * sines[i];
        second[i * step] = v * cosines[i] + u * sines[i];
      }
    }
  });
}

void route(const Ctx& ctx, const RouteArgs& a) {
  const int64_t num_rows = a.logits.dim(0), num_experts = a.logits.dim(1);
  ArenaScope scope(*ctx.arena);
  auto* scratch = ctx.arena->array<float>(num_rows * 2 * num_experts);
  for_rows(ctx, num_rows, static_cast<double>(num_experts * a.ids.dim(1)) * 0.7, [&](int64_t t) {
    float* score = scratch + t * 2 * num_experts;
    route_row(a, t, score, score + num_experts);
  });
}

void argmax(const Ctx& ctx, const ArgmaxArgs& a) {
  const int64_t width = a.logits.dim(1);
  for_rows(ctx, a.logits.dim(0), static_cast<double>(width) * 0.1, [&](int64_t t) {
    a.ids[static_cast<size_t>(t)] =
        vector_kernels().argmax(a.logits.data<float>() + t * a.logits.stride(0), width);
  });
}

}  // namespace eyrie::ops::cpu
