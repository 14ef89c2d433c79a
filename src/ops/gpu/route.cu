#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_plain.h"
#include "ops/gpu/route_math.cuh"

// The router, twice. A plain one, a block a token and a thread an expert: the rank of an expert is
// the number of those before it, first among its 32 neighbours, then among the best of all
// neighbourhoods; no step waits for a reduction, which is what a chain of top_k maxima spends its
// time on. And one with groups: a warp a token.
//
// Scores are compared as unsigned integers in the order of the floats.
namespace eyrie::ops::gpu {
namespace {

constexpr int kWarpsPerBlock = 4;
constexpr int kNeighbours = 32;

// blockDim.x = num_experts rounded up to kNeighbours.
__global__ void __launch_bounds__(kMaxRoutedExperts) route_plain_kernel(Route a) {
  __shared__ __align__(16) uint32_t order[kMaxRoutedExperts];
  __shared__ float score[kMaxRoutedExperts];
  // The best of each neighbourhood: score in the upper half; below it what grows with a lower id.
  __shared__ __align__(16) uint64_t best[kMaxRoutedExperts];
  __shared__ float chosen[kMaxTopK];
  const int expert = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x;
  const bool exists = expert < a.num_experts;
  const float bias = exists ? a.bias[expert] : 0.0f;
  start_dependents();
  wait_for_inputs();
  if (is_filler(a, row)) {
    if (expert < a.top_k) write_nobody(a, row * a.top_k + expert);
    return;
  }
  uint32_t mine = kTaken;
  if (exists) {
    score[expert] = sigmoid(a.logits[row * a.logits_stride + expert]);
    mine = ordered_bits(score[expert] + bias);
  }
  order[expert] = mine;
  __syncthreads();

  const int neighbour = expert % kNeighbours, first = expert - neighbour;
  int rank = 0;
#pragma unroll
  for (int i = 0; i < kNeighbours; i += 4) {
    const uint4 other = *reinterpret_cast<const uint4*>(order + first + i);
    rank += other.x > mine || (other.x == mine && i + 0 < neighbour);
    rank += other.y > mine || (other.y == mine && i + 1 < neighbour);
    rank += other.z > mine || (other.z == mine && i + 2 < neighbour);
    rank += other.w > mine || (other.w == mine && i + 3 < neighbour);
  }
  if (rank < a.top_k) {
    best[first / kNeighbours * a.top_k + rank] =
        (uint64_t{mine} << 32) | (kNobody - static_cast<uint32_t>(expert));
  }
  __syncthreads();

  const int num_best = static_cast<int>(blockDim.x) / kNeighbours * a.top_k;
  int32_t my_expert = 0;
  float my_score = 0.0f;
  rank = a.top_k;
  if (expert < num_best) {
    const uint64_t candidate = best[expert];
    my_expert = static_cast<int32_t>(kNobody - static_cast<uint32_t>(candidate));
    rank = 0;
#pragma unroll 8
    for (int i = 0; i < num_best; ++i) rank += best[i] > candidate;
    if (rank < a.top_k) chosen[rank] = my_score = score[my_expert];
  }
  __syncthreads();
  if (rank >= a.top_k) return;
  float sum = 0.0f;
  for (int k = 0; k < a.top_k; ++k) sum += chosen[k];
  write_choice(a, row * a.top_k + rank, my_expert, my_score, sum);
}

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

// A lane holds the choice scores of experts lane, lane + kWarpSize, …, kSlots of them. Shared
// memory holds 2 · num_experts floats a warp.
template <int kSlots>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarpSize) route_groups_kernel(Route a) {
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
  if (is_filler(a, row)) {
    if (lane < a.top_k) write_nobody(a, place);
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
  uint32_t order[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    order[s] = s * kWarpSize + lane < a.num_experts ? ordered_bits(choice[s]) : kTaken;
  }

  const Chosen best = choose(score, order, a.top_k, lane);
  if (lane >= a.top_k) return;
  write_choice(a, place, static_cast<int32_t>(best.expert), best.score, best.sum);
}

template <int kSlots>
void launch_route_groups(const Route& a, void* stream) {
  const dim3 grid(static_cast<unsigned>((a.num_rows + kWarpsPerBlock - 1) / kWarpsPerBlock));
  const size_t shared = sizeof(float) * 2 * kWarpsPerBlock * static_cast<size_t>(a.num_experts);
  launch("route", route_groups_kernel<kSlots>, grid, dim3(kWarpsPerBlock * kWarpSize), shared,
         stream, a);
}

}  // namespace

void launch_route(const Route& a, void* stream) {
  if (a.num_rows == 0 || a.top_k == 0) return;
  if (a.n_group == 1) {
    const int threads = (a.num_experts + kNeighbours - 1) / kNeighbours * kNeighbours;
    launch("route", route_plain_kernel, dim3(static_cast<unsigned>(a.num_rows)),
           dim3(static_cast<unsigned>(threads)), 0, stream, a);
  } else if (a.num_experts <= 8 * kWarpSize) {
    launch_route_groups<8>(a, stream);
  } else {
    launch_route_groups<kMaxRoutedExperts / kWarpSize>(a, stream);
  }
}

}  // namespace eyrie::ops::gpu
