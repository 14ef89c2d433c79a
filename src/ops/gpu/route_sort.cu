#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_linear.h"
#include "ops/gpu/route_math.cuh"

// The router of a few tokens and the sorting of their pairs by expert in one launch and one block:
// a warp a token at a time. Where a pair comes to lie among its expert's is what counting it gave.
namespace eyrie::ops::gpu {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / kWarpSize;
constexpr int kSlots = kThreads / kWarpSize;  // experts of a lane
constexpr int kRounds = 2;                    // tokens of a warp
constexpr int kCountBits = 16;                // a count below, a number of tiles above

// Exclusive sums over the block's threads of both halves.
__device__ __forceinline__ uint32_t scan(uint32_t value, uint32_t* warps, uint32_t* total) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize,
            lane = static_cast<int>(threadIdx.x) % kWarpSize;
  uint32_t sum = value;
#pragma unroll
  for (int step = 1; step < kWarpSize; step *= 2) {
    const uint32_t before = shuffle(sum, lane - step < 0 ? 0 : lane - step);
    if (lane >= step) sum += before;
  }
  if (lane == kWarpSize - 1) warps[warp] = sum;
  __syncthreads();
  uint32_t before = 0, all = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) before = all;
    all += warps[w];
  }
  *total = all;
  return before + sum - value;
}

__device__ __forceinline__ Chosen choose_experts(const Route& r, int64_t t,
                                                 const float (&bias)[kSlots], int lane) {
  const float* const logits = r.logits + t * r.logits_stride;
  float score[kSlots];
  uint32_t order[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int e = s * kWarpSize + lane;
    score[s] = e < r.num_experts ? logits[e] : 0.0f;
  }
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    score[s] = sigmoid(score[s]);
    order[s] = s * kWarpSize + lane < r.num_experts ? ordered_bits(score[s] + bias[s]) : kTaken;
  }
  return choose(score, order, r.top_k, lane);
}

__global__ void __launch_bounds__(kThreads) route_sort_kernel(Route r, Sort a) {
  __shared__ int32_t counts[kThreads];
  __shared__ int32_t places[kThreads];
  __shared__ uint32_t warps[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const auto expert = static_cast<int32_t>(threadIdx.x);
  start_dependents();
  counts[expert] = 0;
  float bias[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int e = s * kWarpSize + lane;
    bias[s] = e < r.num_experts ? r.bias[e] : 0.0f;
  }
  PackedMatrix gate_up{}, down{};  // the thread's expert's
  if (expert < a.num_experts) {
    gate_up = a.gate_up[expert];
    down = a.down[expert];
  }
  __syncthreads();
  wait_for_inputs();

  int32_t chosen[kRounds], place[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int32_t t = warp + kWarps * i;
    chosen[i] = -1;
    place[i] = -1;
    if (t >= a.num_tokens) continue;
    const int64_t at = int64_t{t} * r.top_k + lane;
    if (is_filler(r, t)) {
      if (lane < r.top_k) write_nobody(r, at);
      continue;
    }
    const Chosen mine = choose_experts(r, t, bias, lane);
    if (lane >= r.top_k) continue;
    chosen[i] = static_cast<int32_t>(mine.expert);
    place[i] = atomicAdd(counts + mine.expert, 1);
    write_choice(r, at, chosen[i], mine.score, mine.sum);
  }
  __syncthreads();

  const int32_t count = counts[expert];
  const int32_t num_tiles = (count + a.tile_tokens - 1) / a.tile_tokens;
  uint32_t total;
  const uint32_t sums = scan(static_cast<uint32_t>(count | num_tiles << kCountBits), warps, &total);
  const auto first = static_cast<int32_t>(sums & ((1u << kCountBits) - 1));
  places[expert] = first;
  const int32_t num_pairs = a.num_tokens * a.top_k;
  const int32_t shared_tiles =
      a.has_shared ? (a.num_tokens + a.tile_tokens - 1) / a.tile_tokens : 0;
  if (num_tiles > 0) {
    const int32_t tile = shared_tiles + static_cast<int32_t>(sums >> kCountBits);
    for (int32_t i = 0; i < num_tiles; ++i) {
      const int32_t left = count - i * a.tile_tokens;
      a.tiles[tile + i] = {
          first + i * a.tile_tokens, left < a.tile_tokens ? left : a.tile_tokens, {gate_up, down}};
      a.tiles_done[tile + i] = 0;
    }
  }
  // The shared expert first: its tiles are the fullest.
  if (expert < shared_tiles) {
    const int32_t left = a.num_tokens - expert * a.tile_tokens;
    a.tiles[expert] = {num_pairs + expert * a.tile_tokens,
                       left < a.tile_tokens ? left : a.tile_tokens,
                       {a.shared_gate_up, a.shared_down}};
    a.tiles_done[expert] = 0;
  }
  if (expert < 2) a.next_task[expert] = 0;
  if (expert == 0) *a.num_tiles = shared_tiles + static_cast<int32_t>(total >> kCountBits);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int32_t t = warp + kWarps * i;
    if (t >= a.num_tokens) continue;
    if (lane < a.top_k) {
      const int32_t position = chosen[i] < 0 ? -1 : places[chosen[i]] + place[i];
      a.position_of[t * a.top_k + lane] = position;
      if (position >= 0) a.token_of[position] = t;
    }
    if (lane == 0 && a.has_shared) a.token_of[num_pairs + t] = t;
  }
}

}  // namespace

bool can_route_and_sort(const Route& r, const Sort& a) {
  return r.n_group == 1 && r.num_experts <= kThreads && r.top_k <= kWarpSize &&
         a.num_tokens <= kWarps * kRounds;
}

void launch_route_and_sort(const Route& r, const Sort& a, void* stream) {
  launch("router and sorting", route_sort_kernel, dim3(1), dim3(kThreads), 0, stream, r, a);
}

}  // namespace eyrie::ops::gpu
