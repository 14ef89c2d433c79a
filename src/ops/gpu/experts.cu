#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_linear.h"

// What stands around the products of experts: sorting the pairs (token, slot) by expert, and the
// weighted sum over a token's slots.
namespace eyrie::ops::gpu {
namespace {

constexpr int kSortThreads = 1024;

// Exclusive sum over the block of one value a thread; `total` gets the sum of all.
__device__ __forceinline__ int32_t scan(int32_t value, int32_t* warps, int32_t* total) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  int32_t sum = value;
#pragma unroll
  for (int step = 1; step < kWarpSize; step *= 2) {
    const int32_t before = shuffle(sum, lane - step < 0 ? 0 : lane - step);
    if (lane >= step) sum += before;
  }
  if (lane == kWarpSize - 1) warps[warp] = sum;
  __syncthreads();
  int32_t before = 0, all = 0;
  for (int w = 0; w < kSortThreads / kWarpSize; ++w) {
    if (w == warp) before = all;
    all += warps[w];
  }
  __syncthreads();
  *total = all;
  return before + sum - value;
}

// One block. Where a pair comes to lie among its expert's is left to chance: no sum depends on it.
__global__ void __launch_bounds__(kSortThreads) sort_kernel(Sort a) {
  __shared__ int32_t counts[kMaxSortedExperts];
  __shared__ int32_t places[kMaxSortedExperts];
  __shared__ int32_t warps[kSortThreads / kWarpSize];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  start_dependents();
  if (thread < kMaxSortedExperts) counts[thread] = 0;
  PackedMatrix gate_up{}, down{};  // the thread's expert's
  if (thread < a.num_experts) {
    gate_up = a.gate_up[thread];
    down = a.down[thread];
  }
  __syncthreads();
  wait_for_inputs();
  if (thread < 2) a.next_task[thread] = 0;
  const int32_t num_pairs = a.num_tokens * a.top_k;
  for (int32_t i = thread; i < num_pairs; i += kSortThreads) {
    const int32_t expert = a.ids[i];
    if (expert >= 0 && expert < a.num_experts) atomicAdd(&counts[expert], 1);
  }
  __syncthreads();
  const int32_t count = thread < a.num_experts ? counts[thread] : 0;
  int32_t total, num_tiles;
  const int32_t first = scan(count, warps, &total);
  const int32_t shared_tiles =
      a.has_shared ? (a.num_tokens + a.tile_tokens - 1) / a.tile_tokens : 0;
  const int32_t tile =
      shared_tiles + scan((count + a.tile_tokens - 1) / a.tile_tokens, warps, &num_tiles);
  if (thread < kMaxSortedExperts) places[thread] = first;
  for (int32_t i = 0; i * a.tile_tokens < count; ++i) {
    const int32_t left = count - i * a.tile_tokens;
    a.tiles[tile + i] = {
        first + i * a.tile_tokens, left < a.tile_tokens ? left : a.tile_tokens, {gate_up, down}};
    a.tiles_done[tile + i] = 0;
  }
  // The shared expert first: its tiles are the fullest.
  for (int32_t i = thread; i < shared_tiles; i += kSortThreads) {
    const int32_t left = a.num_tokens - i * a.tile_tokens;
    a.tiles[i] = {num_pairs + i * a.tile_tokens,
                  left < a.tile_tokens ? left : a.tile_tokens,
                  {a.shared_gate_up, a.shared_down}};
    a.tiles_done[i] = 0;
  }
  if (thread == 0) *a.num_tiles = shared_tiles + num_tiles;
  __syncthreads();
  for (int32_t i = thread; i < num_pairs; i += kSortThreads) {
    const int32_t expert = a.ids[i];
    int32_t place = -1;
    if (expert >= 0 && expert < a.num_experts) {
      place = atomicAdd(&places[expert], 1);
      a.token_of[place] = i / a.top_k;
    }
    a.position_of[i] = place;
  }
  if (a.has_shared) {
    for (int32_t t = thread; t < a.num_tokens; t += kSortThreads) a.token_of[num_pairs + t] = t;
  }
}

constexpr int kCombineThreads = 128;

template <int kCount, typename Out>
__global__ void combine_kernel(Combine a) {
  start_dependents();
  wait_for_inputs();
  const int64_t token = blockIdx.y;
  const int64_t column =
      (static_cast<int64_t>(blockIdx.x) * kCombineThreads + threadIdx.x) * kCount;
  if (column >= a.width) return;
  float sums[kCount] = {};
  const auto add = [&](const void* rows, int64_t row, int64_t stride, float weight) {
    float values[kCount];
    load_floats(static_cast<const bf16*>(rows) + row * stride + column, values);
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] += weight * values[i];
  };
#pragma unroll 8
  for (int slot = 0; slot < a.top_k; ++slot) {
    const int32_t position = a.position_of[token * a.top_k + slot];
    if (position >= 0) add(a.y, position, a.y_stride, a.weights[token * a.top_k + slot]);
  }
  if (a.shared != nullptr) add(a.shared, token, a.shared_stride, 1.0f);
  store_floats(static_cast<Out*>(a.out) + token * a.out_stride + column, sums);
}

template <int kCount>
void combine(const Combine& a, void* stream) {
  const int64_t threads = (a.width + kCount - 1) / kCount;
  const dim3 grid(static_cast<unsigned>((threads + kCombineThreads - 1) / kCombineThreads),
                  static_cast<unsigned>(a.num_tokens));
  launch("summing experts",
         a.out_is_f32 ? combine_kernel<kCount, float> : combine_kernel<kCount, bf16>, grid,
         dim3(kCombineThreads), 0, stream, a);
}

bool is_packed(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}
bool is_all_packed(const Combine& a) {
  return a.width % 8 == 0 && is_packed(a.y, a.y_stride) && is_packed(a.out, a.out_stride) &&
         (a.shared == nullptr || is_packed(a.shared, a.shared_stride));
}

}  // namespace

void launch_sort(const Sort& args, void* stream) {
  launch("sorting by expert", sort_kernel, dim3(1), dim3(kSortThreads), 0, stream, args);
}

void launch_combine(const Combine& a, void* stream) {
  if (is_all_packed(a)) {
    combine<8>(a, stream);
  } else {
    combine<1>(a, stream);
  }
}

}  // namespace eyrie::ops::gpu
