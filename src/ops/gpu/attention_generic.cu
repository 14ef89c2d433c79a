#include "ops/gpu/attention_math.cuh"

// Attention for every device and shape. A block is one head of one row (and one split of its
// positions); its warps take turns at the positions, a lane holds columns of query, keys and
// output, so that a key that is also the value is read once. No tensor cores: heads of a row read
// the same keys again, from L2.
namespace eyrie::ops::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kColumns = 8;    // of a lane that lie together
constexpr int kPositions = 4;  // a warp reads at once

template <bool kFp8>
__device__ __forceinline__ void load_cached(const Cache& cache, int64_t at, int num_valid,
                                            bool is_packed, float (&x)[kColumns]) {
  if (is_packed && num_valid == kColumns) {
    if (kFp8) {
      const auto pack =
          *reinterpret_cast<const Pack<uint8_t, kColumns>*>(static_cast<uint8_t*>(cache.data) + at);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) x[i] = from_e4m3(pack.value[i]);
    } else {
      load_floats(static_cast<const bf16*>(cache.data) + at, x);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    x[i] = 0;
    if (i >= num_valid) continue;
    x[i] = kFp8 ? from_e4m3(static_cast<const uint8_t*>(cache.data)[at + i])
                : to_float(static_cast<const bf16*>(cache.data)[at + i]);
  }
}

__device__ __forceinline__ float load_query(const Heads& q, int64_t t, int64_t h, int column) {
  const int64_t at = t * q.row_stride + h * q.head_stride + column;
  return q.type == Type::kF32 ? static_cast<const float*>(q.data)[at]
                              : to_float(static_cast<const bf16*>(q.data)[at]);
}

__device__ __forceinline__ void store_out(const Heads& out, int64_t t, int64_t h, int column,
                                          float x) {
  const int64_t at = t * out.row_stride + h * out.head_stride + column;
  if (out.type == Type::kF32) {
    static_cast<float*>(out.data)[at] = x;
  } else {
    static_cast<bf16*>(out.data)[at] = from_float<bf16>(x);
  }
}

__device__ __forceinline__ int valid_columns(int chunk, int dim) {
  const int left = dim - chunk * kColumns;
  return left < 0 ? 0 : left > kColumns ? kColumns : left;
}

// kChunks: of kColumns columns a lane holds; chunk c of the row lies with lane c % kWarpSize.
template <bool kFp8, int kChunks>
__global__ void __launch_bounds__(kThreads) generic_attention_kernel(Attention a, Split split) {
  start_dependents();
  wait_for_inputs();
  constexpr int kWidth = kChunks * kWarpSize * kColumns;
  __shared__ float merged[kWarps][kWidth];
  __shared__ Softmax parts[kWarps];
  __shared__ int found;
  const int t = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int s = find_sequence(a.batch, t, &found);
  if (s < 0) return;
  const Sequence sequence = a.batch.sequences[s];
  const int visible = sequence.first_position + (t - sequence.first_row) + 1;
  const int per_split = (visible + split.count - 1) / split.count;
  const int begin = static_cast<int>(blockIdx.z) * per_split;
  const int end = min(begin + per_split, visible);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t kv_column =
      static_cast<int64_t>(head / (a.num_heads / a.num_kv_heads)) * a.kv_stride;
  const int dim = a.dim0 + a.dim1;

  float q[kChunks][kColumns], sum[kChunks][kColumns];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = (c * kWarpSize + lane) * kColumns + i;
      q[c][i] = column < a.dim0 ? load_query(a.q0, t, head, column)
                : column < dim  ? load_query(a.q1, t, head, column - a.dim0)
                                : 0.0f;
      sum[c][i] = 0;
    }
  }
  const float scale = a.scale * a.keys.scale;
  Softmax softmax{kLowest, 0};
  for (int first = begin + warp * kPositions; first < end; first += kWarps * kPositions) {
    // Positions past the end are zeros with weight 0: their slots hold anything.
    const int num_positions = min(kPositions, end - first);
    float keys[kPositions][kChunks][kColumns];
    float score[kPositions];
    int64_t slot[kPositions];
#pragma unroll
    for (int p = 0; p < kPositions; ++p) {
      const bool is_valid = p < num_positions;
      slot[p] = slot_of(sequence.block_table, a.keys.block_size, is_valid ? first + p : first);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int chunk = c * kWarpSize + lane;
        load_cached<kFp8>(a.keys, slot[p] * a.keys.width + kv_column + chunk * kColumns,
                          is_valid ? valid_columns(chunk, dim) : 0, split.is_packed, keys[p][c]);
      }
    }
    float largest = softmax.largest;
#pragma unroll
    for (int p = 0; p < kPositions; ++p) {
      float dot = 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) dot += q[c][i] * keys[p][c][i];
      }
      score[p] = p < num_positions ? warp_sum(dot) * scale : -INFINITY;
      largest = fmaxf(largest, score[p]);
    }
    const float alpha = expf(softmax.largest - largest);
    softmax.sum *= alpha;
    softmax.largest = largest;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) sum[c][i] *= alpha;
    }
#pragma unroll
    for (int p = 0; p < kPositions; ++p) {
      const float weight = expf(score[p] - largest);
      softmax.sum += weight;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (!a.shared_values) {
          const int chunk = c * kWarpSize + lane;
          const int num_valid = p < num_positions ? valid_columns(chunk, a.dim_v) : 0;
          load_cached<kFp8>(a.values, slot[p] * a.values.width + kv_column + chunk * kColumns,
                            num_valid, split.is_packed, keys[p][c]);
        }
#pragma unroll
        for (int i = 0; i < kColumns; ++i) sum[c][i] += weight * keys[p][c][i];
      }
    }
  }

#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      merged[warp][(c * kWarpSize + lane) * kColumns + i] = sum[c][i];
    }
  }
  if (lane == 0) parts[warp] = softmax;
  __syncthreads();
  Softmax whole{kLowest, 0};
  for (int w = 0; w < kWarps; ++w) whole.largest = fmaxf(whole.largest, parts[w].largest);
  float weight[kWarps];
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    weight[w] = expf(parts[w].largest - whole.largest);
    whole.sum += weight[w] * parts[w].sum;
  }
  const int64_t part =
      (static_cast<int64_t>(t) * a.num_heads + head) * split.count + static_cast<int>(blockIdx.z);
  for (int column = static_cast<int>(threadIdx.x); column < a.dim_v; column += kThreads) {
    float x = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) x += weight[w] * merged[w][column];
    x *= a.values.scale;
    if (split.count == 1) {
      store_out(a.out, t, head, column, x / whole.sum);
    } else {
      split.values[part * a.dim_v + column] = x;
    }
  }
  if (split.count > 1 && threadIdx.x == 0) split.softmax[part] = whole;
}

// Adds the splits of one head of one row, in their order.
__global__ void __launch_bounds__(kThreads) combine_kernel(Attention a, Split split) {
  start_dependents();
  wait_for_inputs();
  __shared__ int found;
  const int t = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  if (find_sequence(a.batch, t, &found) < 0) return;
  const int64_t part = (static_cast<int64_t>(t) * a.num_heads + head) * split.count;
  Softmax whole{kLowest, 0};
  for (int i = 0; i < split.count; ++i) {
    whole.largest = fmaxf(whole.largest, split.softmax[part + i].largest);
  }
  for (int i = 0; i < split.count; ++i) {
    whole.sum +=
        expf(split.softmax[part + i].largest - whole.largest) * split.softmax[part + i].sum;
  }
  for (int column = static_cast<int>(threadIdx.x); column < a.dim_v; column += kThreads) {
    float x = 0;
    for (int i = 0; i < split.count; ++i) {
      if (split.softmax[part + i].sum == 0) continue;
      x += expf(split.softmax[part + i].largest - whole.largest) *
           split.values[(part + i) * a.dim_v + column];
    }
    store_out(a.out, t, head, column, x / whole.sum);
  }
}

int64_t num_items(const Attention& a) {
  return static_cast<int64_t>(a.batch.num_rows) * a.num_heads;
}

// Few rows leave processors idle, so their positions are divided. A row's sum then depends on how
// many rows there are, which deterministic mode forbids.
int num_splits(const Attention& a, int num_processors) {
  if (a.is_deterministic || num_items(a) == 0) return 1;
  const int64_t wanted = 2 * num_processors / num_items(a);
  return static_cast<int>(wanted < 1 ? 1 : wanted > kMaxSplits ? kMaxSplits : wanted);
}

bool is_aligned(const Cache& cache) {
  return cache.width % kColumns == 0 && reinterpret_cast<uintptr_t>(cache.data) % 16 == 0;
}

constexpr int kMaxChunks = 3;

bool can_run(const Attention& a, int) {
  const int dim = a.dim0 + a.dim1;
  return dim <= kMaxChunks * 32 * kColumns && a.dim_v <= dim && a.keys.is_fp8 == a.values.is_fp8;
}

size_t scratch_bytes(const Attention& a, int num_processors) {
  return split_bytes(a, num_splits(a, num_processors));
}

template <bool kFp8>
void run_kernel(const Attention& a, const Split& split, void* stream) {
  const dim3 grid(static_cast<unsigned>(a.batch.num_rows), static_cast<unsigned>(a.num_heads),
                  static_cast<unsigned>(split.count));
  const auto kernel = a.dim0 + a.dim1 <= kWarpSize * kColumns
                          ? generic_attention_kernel<kFp8, 1>
                          : generic_attention_kernel<kFp8, kMaxChunks>;
  launch("generic_attention", kernel, grid, dim3(kThreads), 0, stream, a, split);
}

void run(const Attention& a, int num_processors, void* stream) {
  if (a.batch.num_sequences == 0) return;
  Split split = split_of(a, num_splits(a, num_processors));
  split.is_packed = is_aligned(a.keys) && is_aligned(a.values) && a.kv_stride % kColumns == 0;
  if (a.keys.is_fp8) {
    run_kernel<true>(a, split, stream);
  } else {
    run_kernel<false>(a, split, stream);
  }
  if (split.count > 1) launch_combine(a, split, stream);
}

}  // namespace

void launch_combine(const Attention& a, const Split& split, void* stream) {
  launch("combine_attention", combine_kernel,
         dim3(static_cast<unsigned>(a.batch.num_rows), static_cast<unsigned>(a.num_heads)),
         dim3(kThreads), 0, stream, a, split);
}

const AttentionKernel& generic_attention() {
  static const AttentionKernel kernel{"generic", can_run, scratch_bytes, run};
  return kernel;
}

}  // namespace eyrie::ops::gpu
