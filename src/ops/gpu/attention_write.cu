#include "ops/gpu/attention_math.cuh"
#include "ops/gpu/rotate.cuh"

// What happens to queries, keys and values before attention: rotation, normalisation, the write
// into the cache. Each costs a launch more than its bytes, so MLA's are one kernel.
namespace eyrie::ops::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxHalf = 256;  // pairs of a rotated head

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

constexpr int kNormedPieces = 8;  // values of a row that a thread holds: kMaxNormed of a block

// The values of a row that are a thread's: columns i, i + kThreads, …
template <typename T>
__device__ __forceinline__ void read_row(const T* row, int width, float (&x)[kNormedPieces]) {
#pragma unroll
  for (int i = 0; i < kNormedPieces; ++i) {
    const int column = i * kThreads + static_cast<int>(threadIdx.x);
    x[i] = column < width ? to_float(row[column]) : 0.0f;
  }
}
// The row's values are multiplied with this besides the norm's weight. Called by the whole block.
__device__ __forceinline__ float norm_factor(const float (&x)[kNormedPieces], int width, float eps,
                                             float* sums) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kNormedPieces; ++i) sum += x[i] * x[i];
  return 1.0f / sqrtf(block_sum(sum, sums) / static_cast<float>(width) + eps);
}

template <typename T>
__device__ __forceinline__ void norm_query(const MlaCacheWrite& a, int64_t t, float* sums) {
  float w[kNormedPieces], x[kNormedPieces];
  read_row(a.q_norm_weight, a.q_width, w);
  wait_for_inputs();
  T* const row = static_cast<T*>(a.q.data) + t * a.q.stride;
  read_row(row, a.q_width, x);
  const float factor = norm_factor(x, a.q_width, a.q_eps, sums);
#pragma unroll
  for (int i = 0; i < kNormedPieces; ++i) {
    const int column = i * kThreads + static_cast<int>(threadIdx.x);
    if (column < a.q_width) row[column] = from_float<T>(x[i] * factor * w[i]);
  }
}

// blockIdx.y 0: the row's latent and rope part; 1: what its queries are made of.
template <typename T>
__global__ void __launch_bounds__(kThreads) mla_cache_write_kernel(MlaCacheWrite a) {
  start_dependents();
  __shared__ float sums[kMaxBlock / kWarpSize];
  __shared__ int found;
  const auto t = static_cast<int32_t>(blockIdx.x);
  if (blockIdx.y == 1) return norm_query<T>(a, t, sums);
  float w[kNormedPieces], x[kNormedPieces];
  // Where the row belongs comes from the host, before the step: read and reckoned before the wait.
  read_row(a.norm_weight, a.latent, w);
  // A pair a thread: rope parts are no longer than that (kMaxHalf).
  const int pair = static_cast<int>(threadIdx.x);
  const bool turns = pair < a.rotation.half;
  const int first = a.latent + (a.rotation.is_interleaved ? 2 * pair : pair);
  const int second = a.rotation.is_interleaved ? first + 1 : first + a.rotation.half;
  const Turn turn = turns ? turn_of(a.rotation, t, pair) : Turn{1.0f, 0.0f};
  const int s = find_sequence(a.batch, t, &found);
  int64_t slot = -1;
  if (s >= 0) {
    const Sequence sequence = a.batch.sequences[s];
    slot = slot_of(sequence.block_table, a.cache.block_size,
                   sequence.first_position + (t - sequence.first_row));
  }
  wait_for_inputs();

  T* const row = static_cast<T*>(a.kv.data) + t * a.kv.stride;
  read_row(row, a.latent, x);
  const float u = turns ? to_float(row[first]) : 0.0f, v = turns ? to_float(row[second]) : 0.0f;
  const int64_t to = slot * a.cache.width;
  const auto put = [&](int column, float value) {
    row[column] = from_float<T>(value);
    if (slot >= 0) store(a.cache, to + column, value);
  };
  if (turns) {
    put(first, u * turn.cosine - v * turn.sine);
    put(second, v * turn.cosine + u * turn.sine);
  }
  const float factor = norm_factor(x, a.latent, a.eps, sums);
#pragma unroll
  for (int i = 0; i < kNormedPieces; ++i) {
    const int column = i * kThreads + static_cast<int>(threadIdx.x);
    if (column < a.latent) put(column, x[i] * factor * w[i]);
  }
}
static_assert(kMaxHalf <= kThreads && kMaxNormed == kNormedPieces * kThreads);

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
  const auto kernel =
      a.kv.type == Type::kF32 ? mla_cache_write_kernel<float> : mla_cache_write_kernel<bf16>;
  const unsigned parts = a.q.data == nullptr ? 1 : 2;
  launch("mla_cache_write", kernel, dim3(static_cast<unsigned>(a.batch.num_rows), parts),
         dim3(kThreads), 0, stream, a);
}

}  // namespace eyrie::ops::gpu
