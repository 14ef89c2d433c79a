#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_plain.h"

// The router: one warp a token. A lane holds the choice scores of experts lane, lane + kWarpSize, …
// as unsigned integers in the order of the floats, so that the best of all lanes is one reduction,
// its lowest expert another, and a taken expert is a zero.
namespace eyrie::ops::gpu {
namespace {

constexpr int kWarpsPerBlock = 4;
constexpr uint32_t kTaken = 0;  // below every number's
constexpr uint32_t kNobody = 0xffffffffu;

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Experts outside the topk_group best groups become -infinity; a group's score is the sum of its
// two best choices. `choice` is this warp's, [num_experts]; group_score [n_group].
__device__ void mask_groups(const Route& a, int lane, float* choice, float* group_score) {
  const int size = a.num_experts / a.n_group;
  for (int g = lane; g < a.n_group; g += kWarpSize) {
    float first = -INFINITY, second = -INFINITY;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      const float x = choice[e];
      if (x > first) {
        second = first;
        first = x;
      } else if (x > second) {
        second = x;
      }
    }
    group_score[g] = size > 1 ? first + second : first;
  }
  sync_warp();
  for (int g = lane; g < a.n_group; g += kWarpSize) {
    int better = 0;
    for (int other = 0; other < a.n_group; ++other) {
      better += group_score[other] > group_score[g] ||
                (group_score[other] == group_score[g] && other < g);
    }
    if (better < a.topk_group) continue;
    for (int e = g * size; e < (g + 1) * size; ++e) choice[e] = -INFINITY;
  }
  sync_warp();
}

// kSlots · kWarpSize experts at most; kGroups: n_group > 1, and shared memory holds 2 · num_experts
// floats a warp.
template <int kSlots, bool kGroups>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarpSize) route_kernel(Route a) {
  extern __shared__ float group_scratch[];
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + warp;
  float bias[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int e = s * kWarpSize + lane;
    bias[s] = e < a.num_experts ? a.bias[e] : 0.0f;
  }
  start_dependents();
  wait_for_inputs();
  if (row >= a.num_rows) return;
  const int64_t place = row * a.top_k + lane;  // lane k writes the k-th choice
  if (a.num_valid != nullptr && row >= *a.num_valid) {
    if (lane < a.top_k) {
      a.ids[place] = -1;
      a.weights[place] = 0.0f;
    }
    return;
  }

  const float* const logits = a.logits + row * a.logits_stride;
  float score[kSlots], choice[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int e = s * kWarpSize + lane;
    score[s] = e < a.num_experts ? sigmoid(logits[e]) : 0.0f;
    choice[s] = score[s] + bias[s];
  }
  if (kGroups) {
    float* const mine = group_scratch + static_cast<int64_t>(warp) * 2 * a.num_experts;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      const int e = s * kWarpSize + lane;
      if (e < a.num_experts) mine[e] = choice[s];
    }
    sync_warp();
    mask_groups(a, lane, mine, mine + a.num_experts);
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      const int e = s * kWarpSize + lane;
      if (e < a.num_experts) choice[s] = mine[e];
    }
  }
  uint32_t order[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    order[s] = s * kWarpSize + lane < a.num_experts ? ordered_bits(choice[s]) : kTaken;
  }

  float sum = 0.0f, my_weight = 0.0f;
  uint32_t my_expert = 0;
  for (int k = 0; k < a.top_k; ++k) {
    uint32_t best = order[0];
    int best_slot = 0;
#pragma unroll
    for (int s = 1; s < kSlots; ++s) {
      if (order[s] > best) {
        best = order[s];
        best_slot = s;
      }
    }
    const uint32_t top = warp_max(best);
    const auto mine = static_cast<uint32_t>(best_slot * kWarpSize + lane);
    const uint32_t expert = warp_min(best == top ? mine : kNobody);
    // The owner takes it out and hands its score to all.
    float chosen = 0.0f;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      if (expert == static_cast<uint32_t>(s * kWarpSize + lane)) {
        chosen = score[s];
        order[s] = kTaken;
      }
    }
    chosen = shuffle(chosen, static_cast<int>(expert) % kWarpSize);
    sum += chosen;
    if (lane == k) {
      my_expert = expert;
      my_weight = chosen;
    }
  }
  if (lane >= a.top_k) return;
  const float divisor = a.norm_topk_prob ? sum + 1e-20f : 1.0f;
  a.ids[place] = static_cast<int32_t>(my_expert);
  a.weights[place] = my_weight / divisor * a.routed_scaling_factor;
}

template <int kSlots>
void launch_route_of(const Route& a, void* stream) {
  const dim3 grid(static_cast<unsigned>((a.num_rows + kWarpsPerBlock - 1) / kWarpsPerBlock));
  const dim3 block(kWarpsPerBlock * kWarpSize);
  if (a.n_group > 1) {
    const size_t shared = sizeof(float) * 2 * kWarpsPerBlock * static_cast<size_t>(a.num_experts);
    launch("route", route_kernel<kSlots, true>, grid, block, shared, stream, a);
  } else {
    launch("route", route_kernel<kSlots, false>, grid, block, 0, stream, a);
  }
}

}  // namespace

void launch_route(const Route& a, void* stream) {
  if (a.num_rows == 0 || a.top_k == 0) return;
  if (a.num_experts <= 2 * kWarpSize) {
    launch_route_of<2>(a, stream);
  } else if (a.num_experts <= 6 * kWarpSize) {
    launch_route_of<6>(a, stream);
  } else if (a.num_experts <= 12 * kWarpSize) {
    launch_route_of<12>(a, stream);
  } else {
    launch_route_of<kMaxRoutedExperts / kWarpSize>(a, stream);
  }
}

}  // namespace eyrie::ops::gpu
