// What the router's kernels share: scores, and how a choice is written down.
#pragma once

#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_plain.h"

namespace eyrie::ops::gpu {

constexpr uint32_t kTaken = 0;  // below every number's ordered_bits
constexpr uint32_t kNobody = 0xffffffffu;

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ __forceinline__ bool is_filler(const Route& a, int64_t row) {
  return a.num_valid != nullptr && row >= *a.num_valid;
}
__device__ __forceinline__ void write_choice(const Route& a, int64_t place, int32_t expert,
                                             float score, float sum) {
  const float divisor = a.norm_topk_prob ? sum + 1e-20f : 1.0f;
  a.ids[place] = expert;
  a.weights[place] = score / divisor * a.routed_scaling_factor;
}
__device__ __forceinline__ void write_nobody(const Route& a, int64_t place) {
  a.ids[place] = -1;
  a.weights[place] = 0.0f;
}

// The k-th best choice, of lane k: the best of all lanes is one reduction and its lowest expert
// another. A lane holds the experts lane, lane + kWarpSize, …; `order` is used up.
struct Chosen {
  uint32_t expert;
  float score;
  float sum;  // of all chosen, in the order of choice
};
template <int kSlots>
__device__ __forceinline__ Chosen choose(const float (&score)[kSlots], uint32_t (&order)[kSlots],
                                         int top_k, int lane) {
  Chosen mine{0, 0.0f, 0.0f};
  for (int k = 0; k < top_k; ++k) {
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
    const auto my_best = static_cast<uint32_t>(best_slot * kWarpSize + lane);
    const uint32_t expert = warp_min(best == top ? my_best : kNobody);
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
    mine.sum += chosen;
    if (lane == k) {
      mine.expert = expert;
      mine.score = chosen;
    }
  }
  return mine;
}

}  // namespace eyrie::ops::gpu
