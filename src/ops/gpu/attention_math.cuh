// What attention kernels share on the device: E4M3, where a position lies in a paged cache, which
// sequence a row belongs to.
#pragma once

#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_attention.h"

namespace eyrie::ops::gpu {

// Rounded to nearest even, saturating. E4M3 has no infinity: one that arrives becomes NaN, so that
// it stays the fault it is.
__device__ __forceinline__ uint8_t to_e4m3(float x) {
  const uint32_t bits = as_bits(x);
  const uint32_t sign = bits >> 24 & 0x80u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (magnitude < 0x3c800000u) {  // below 2^-6: multiples of 2^-9
    return static_cast<uint8_t>(sign |
                                static_cast<uint32_t>(__float2int_rn(as_float(magnitude) * 512.f)));
  }
  magnitude += 0x7ffffu + (magnitude >> 20 & 1u);
  const uint32_t code = (magnitude >> 20) - (120u << 3);  // exponent bias 127 to 7
  return static_cast<uint8_t>(sign | (code > 0x7eu ? 0x7eu : code));
}

__device__ __forceinline__ float from_e4m3(uint32_t code) {
  if ((code & 0x7fu) == 0x7fu) return as_float(0x7fc00000u);
  return as_float((code & 0x80u) << 24 | as_bits(as_float((code & 0x7fu) << 20) * 0x1p120f));
}

__device__ __forceinline__ int64_t slot_of(const int32_t* block_table, int32_t block_size,
                                           int32_t position) {
  const int32_t block = position / block_size;
  return static_cast<int64_t>(block_table[block]) * block_size + (position - block * block_size);
}

// The sequence that row t belongs to, or -1: the same in all threads of the block. `found` is
// shared memory.
__device__ __forceinline__ int find_sequence(const Batch& batch, int32_t t, int* found) {
  if (threadIdx.x == 0) *found = -1;
  __syncthreads();
  for (int s = static_cast<int>(threadIdx.x); s < batch.num_sequences;
       s += static_cast<int>(blockDim.x)) {
    const int32_t row = t - batch.sequences[s].first_row;
    if (row >= 0 && row < batch.sequences[s].num_rows) *found = s;
  }
  __syncthreads();
  return *found;
}

// Where the index-th item lies when every sequence has count(sequence) of them, end to end.
struct Located {
  int32_t sequence;  // -1: there are no more than `total`
  int32_t offset;    // within the sequence
  int32_t total;
};
struct LocateShared {
  Located found;
  int32_t warp_sums[kMaxBlock / kWarpSize];
};
// Called by all threads of the block. index_of(total) says what is looked for.
template <typename Count, typename IndexOf>
__device__ __forceinline__ Located locate(const Batch& batch, Count count, IndexOf index_of,
                                          LocateShared& shared) {
  const int num_threads = static_cast<int>(blockDim.x), tid = static_cast<int>(threadIdx.x);
  const int lane = tid % kWarpSize, warp = tid / kWarpSize;
  // Every thread counts a run of sequences; a scan over the block gives where each run begins.
  const int per_thread = (batch.num_sequences + num_threads - 1) / num_threads;
  const int first = min(tid * per_thread, batch.num_sequences);
  const int last = min(first + per_thread, batch.num_sequences);
  int own = 0;
  for (int i = first; i < last; ++i) own += count(batch.sequences[i]);
  int inclusive = own;
#pragma unroll
  for (int d = 1; d < kWarpSize; d *= 2) {
    const int other = shuffle(inclusive, lane >= d ? lane - d : lane);
    if (lane >= d) inclusive += other;
  }
  if (lane == kWarpSize - 1) shared.warp_sums[warp] = inclusive;
  if (tid == 0) shared.found.sequence = -1;
  __syncthreads();
  int before = inclusive - own, total = 0;
  for (int w = 0; w < num_threads / kWarpSize; ++w) {
    if (w < warp) before += shared.warp_sums[w];
    total += shared.warp_sums[w];
  }
  const int index = index_of(total);
  if (index >= before && index < before + own) {
    int i = first, at = before;
    for (int n = count(batch.sequences[i]); index >= at + n; n = count(batch.sequences[i])) {
      at += n;
      ++i;
    }
    shared.found = {i, index - at, total};
  }
  __syncthreads();
  return {shared.found.sequence, shared.found.offset, total};
}

// ---- splits ------------------------------------------------------------------------------------

// Heads of rows whose positions are divided among blocks: what each leaves, to be added up by
// launch_combine. Where sum is 0 there are no values to read.
struct Softmax {
  float largest, sum;
};
struct Split {
  int count;
  bool is_packed;    // cache rows can be read 8 columns at a time
  bool is_striped;   // split s takes every count-th stripe of positions from the s-th on
  Softmax* softmax;  // [T, heads, count]
  float* values;     // [T, heads, count, dim_v], not yet divided by the sum
};
constexpr int kMaxSplits = 16;
constexpr float kLowest = -1e30f;  // below every score; finite, so that differences are numbers

inline size_t split_bytes(const Attention& a, int count) {
  if (count == 1) return 0;
  return static_cast<size_t>(a.batch.num_rows) * static_cast<size_t>(a.num_heads * count) *
         (sizeof(Softmax) + static_cast<size_t>(a.dim_v) * sizeof(float));
}
inline Split split_of(const Attention& a, int count) {
  Split split{};
  split.count = count;
  split.softmax = static_cast<Softmax*>(a.scratch);
  split.values = reinterpret_cast<float*>(split.softmax + static_cast<int64_t>(a.batch.num_rows) *
                                                              a.num_heads * count);
  return split;
}
void launch_combine(const Attention& args, const Split& split, void* stream);

}  // namespace eyrie::ops::gpu
