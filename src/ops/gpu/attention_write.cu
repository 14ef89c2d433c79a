#include "ops/gpu/attention_math.cuh"

// What happens to queries, keys and values before attention: rotation, normalisation, the write
// into the cache. Each costs a launch more than its bytes, so MLA's three are one kernel.
namespace eyrie::ops::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxHalf = 256;  // pairs of a rotated head

struct Turn {
  float cosine, sine;
};

// The angle is float64, and so is its reduction to (-π, π]: what float32 then adds is 2e-7.
__device__ __forceinline__ Turn turn_of(const Rotation& r, int64_t t, int pair) {
  constexpr double kPerPi = 0.31830988618379067154;
  const double half_turns = static_cast<double>(r.positions[t]) * r.inv_freq[pair] * kPerPi;
  Turn turn;
  sincospif(static_cast<float>(half_turns - 2.0 * rint(0.5 * half_turns)), &turn.sine,
            &turn.cosine);
  turn.cosine *= r.magnitude;
  turn.sine *= r.magnitude;
  return turn;
}

template <typename T>
__device__ __forceinline__ void rotate(T* x, const Rotation& r, int pair, Turn turn) {
  T* first = x + (r.is_interleaved ? 2 * pair : pair);
  T* second = r.is_interleaved ? first + 1 : first + r.half;
  const float u = to_float(*first), v = to_float(*second);
  *first = from_float<T>(u * turn.cosine - v * turn.sine);
  *second = from_float<T>(v * turn.cosine + u * turn.sine);
}

// Heads [first_head, …) of row t by the whole block; `turns` is shared.
template <typename T>
__device__ __forceinline__ void rotate_heads(const Heads& x, const Rotation& r, int64_t t,
                                             int first_head, int end_head, Turn* turns) {
  for (int i = static_cast<int>(threadIdx.x); i < r.half; i += kThreads) {
    turns[i] = turn_of(r, t, i);
  }
  __syncthreads();
  T* row = static_cast<T*>(x.data) + t * x.row_stride;
  for (int i = static_cast<int>(threadIdx.x); i < (end_head - first_head) * r.half; i += kThreads) {
    const int head = i / r.half, pair = i - head * r.half;
    rotate(row + (first_head + head) * x.head_stride, r, pair, turns[pair]);
  }
}

constexpr int kHeadsPerBlock = 16;

template <typename T>
__global__ void __launch_bounds__(kThreads) rope_kernel(Rope a) {
  start_dependents();
  wait_for_inputs();
  __shared__ Turn turns[kMaxHalf];
  const int first_head = static_cast<int>(blockIdx.y) * kHeadsPerBlock;
  const int end_head = min(first_head + kHeadsPerBlock, a.num_heads);
  rotate_heads<T>(a.x, a.rotation, blockIdx.x, first_head, end_head, turns);
}

// Where a value is stored in a cache.
__device__ __forceinline__ void store(const Cache& cache, int64_t i, float x) {
  if (cache.is_fp8) {
    static_cast<uint8_t*>(cache.data)[i] = to_e4m3(x / cache.scale);
  } else {
    static_cast<bf16*>(cache.data)[i] = from_float<bf16>(x);
  }
}

// Eight elements a thread where they lie at 16-byte steps, or one.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads) cache_write_kernel(CacheWrite a) {
  start_dependents();
  wait_for_inputs();
  __shared__ int found;
  const auto t = static_cast<int32_t>(blockIdx.x);
  const int s = find_sequence(a.batch, t, &found);
  if (s < 0) return;
  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kCount;
  if (column >= a.cache.width) return;
  const Sequence sequence = a.batch.sequences[s];
  const int64_t slot = slot_of(sequence.block_table, a.cache.block_size,
                               sequence.first_position + (t - sequence.first_row));
  float x[kCount];
  load_floats(static_cast<const T*>(a.x.data) + t * a.x.stride + column, x);
  const int64_t to = slot * a.cache.width + column;
  if (a.cache.is_fp8) {
    Pack<uint8_t, kCount> codes;
#pragma unroll
    for (int i = 0; i < kCount; ++i) codes.value[i] = to_e4m3(x[i] / a.cache.scale);
    *reinterpret_cast<Pack<uint8_t, kCount>*>(static_cast<uint8_t*>(a.cache.data) + to) = codes;
  } else {
    store_floats(static_cast<bf16*>(a.cache.data) + to, x);
  }
}

// blockIdx.y 0: the row's keys; 1: its queries.
template <typename Kv, typename Query>
__global__ void __launch_bounds__(kThreads) mla_cache_write_kernel(MlaCacheWrite a) {
  start_dependents();
  wait_for_inputs();
  __shared__ Turn turns[kMaxHalf];
  __shared__ float sums[kMaxBlock / kWarpSize];
  __shared__ int found;
  const auto t = static_cast<int32_t>(blockIdx.x);
  if (blockIdx.y == 1) {
    rotate_heads<Query>(a.q_rope, a.rotation, t, 0, a.num_heads, turns);
    return;
  }
  const int s = find_sequence(a.batch, t, &found);
  int64_t slot = -1;
  if (s >= 0) {
    const Sequence sequence = a.batch.sequences[s];
    slot = slot_of(sequence.block_table, a.cache.block_size,
                   sequence.first_position + (t - sequence.first_row));
  }
  Kv* row = static_cast<Kv*>(a.kv.data) + t * a.kv.stride;
  const int64_t to = slot * a.cache.width;
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < a.latent; i += kThreads) {
    const float x = to_float(row[i]);
    sum += x * x;
  }
  const float factor = 1.0f / sqrtf(block_sum(sum, sums) / static_cast<float>(a.latent) + a.eps);
  for (int i = static_cast<int>(threadIdx.x); i < a.latent; i += kThreads) {
    const float x = to_float(row[i]) * factor * a.norm_weight[i];
    row[i] = from_float<Kv>(x);
    if (slot >= 0) store(a.cache, to + i, x);
  }
  for (int pair = static_cast<int>(threadIdx.x); pair < a.rotation.half; pair += kThreads) {
    const Turn turn = turn_of(a.rotation, t, pair);
    const int first = a.rotation.is_interleaved ? 2 * pair : pair;
    const int second = a.rotation.is_interleaved ? first + 1 : first + a.rotation.half;
    Kv* x = row + a.latent;
    const float u = to_float(x[first]), v = to_float(x[second]);
    const float turned_u = u * turn.cosine - v * turn.sine;
    const float turned_v = v * turn.cosine + u * turn.sine;
    x[first] = from_float<Kv>(turned_u);
    x[second] = from_float<Kv>(turned_v);
    if (slot >= 0) {
      store(a.cache, to + a.latent + first, turned_u);
      store(a.cache, to + a.latent + second, turned_v);
    }
  }
}

unsigned blocks(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

template <typename T>
void launch_cache_write_of(const CacheWrite& a, void* stream) {
  const bool is_packed = a.cache.width % 8 == 0 && a.x.stride % 8 == 0 &&
                         reinterpret_cast<uintptr_t>(a.x.data) % 16 == 0;
  const auto rows = static_cast<unsigned>(a.batch.num_rows);
  if (is_packed) {
    launch("cache_write", cache_write_kernel<T, 8>, dim3(rows, blocks(a.cache.width, kThreads * 8)),
           dim3(kThreads), 0, stream, a);
  } else {
    launch("cache_write", cache_write_kernel<T, 1>, dim3(rows, blocks(a.cache.width, kThreads)),
           dim3(kThreads), 0, stream, a);
  }
}

}  // namespace

void launch_rope(const Rope& a, void* stream) {
  const dim3 grid(static_cast<unsigned>(a.num_rows), blocks(a.num_heads, kHeadsPerBlock));
  const auto kernel = a.x.type == Type::kF32 ? rope_kernel<float> : rope_kernel<bf16>;
  launch("rope", kernel, grid, dim3(kThreads), 0, stream, a);
}

void launch_cache_write(const CacheWrite& a, void* stream) {
  if (a.batch.num_sequences == 0) return;
  if (a.x.type == Type::kF32) {
    launch_cache_write_of<float>(a, stream);
  } else {
    launch_cache_write_of<bf16>(a, stream);
  }
}

void launch_mla_cache_write(const MlaCacheWrite& a, void* stream) {
  const bool is_kv_f32 = a.kv.type == Type::kF32, is_q_f32 = a.q_rope.type == Type::kF32;
  const auto kernel =
      is_kv_f32
          ? (is_q_f32 ? mla_cache_write_kernel<float, float> : mla_cache_write_kernel<float, bf16>)
          : (is_q_f32 ? mla_cache_write_kernel<bf16, float> : mla_cache_write_kernel<bf16, bf16>);
  launch("mla_cache_write", kernel, dim3(static_cast<unsigned>(a.batch.num_rows), 2),
         dim3(kThreads), 0, stream, a);
}

}  // namespace eyrie::ops::gpu
