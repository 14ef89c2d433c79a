#include "ops/gpu/kernels_heads.h"
#include "ops/gpu/rotate.cuh"
#include "ops/gpu/sm80/copy.cuh"
#include "ops/gpu/sm80/mma.cuh"

// A head's matrix is 128 KB: a block takes a quarter of its rows into shared memory before it waits
// for the kernel before, so that all matrices of the layer stream in while that one still runs.
// Then come tokens, 32 at a time: A of mma.m16n8k16 is tokens, B is rows of the matrix. A warp
// takes 32 rows and 128 inputs; where a row has more, the warps' sums meet in shared memory, in a
// fixed order. A row's result depends on nothing but the row.
namespace eyrie::ops::gpu {
namespace {

constexpr int kThreads = 128, kWarps = 4;
constexpr int kWarpRows = 32, kWarpInputs = 128;
constexpr int kTokens = 32;  // of a pass
constexpr int kRowTiles = kWarpRows / 8, kTokenTiles = kTokens / 16;

__device__ __forceinline__ void load_matrices(uint32_t address, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// kSlices: of 128 inputs.
template <int kSlices>
struct Shape {
  static constexpr int kInputs = kSlices * kWarpInputs;
  static constexpr int kRows = kWarps / kSlices * kWarpRows;  // of a block
  static constexpr int kStride = kInputs * 2 + 16;  // bytes; eight rows touch all banks once
  static constexpr int kChunks = kInputs / 8;       // of 16 bytes
  static constexpr int kX = kRows * kStride;
  static constexpr int kSums = kX + kTokens * kStride;
  static constexpr int kBytes = kSums + (kSlices > 1 ? kWarps * kTokens * kWarpRows * 4 : 0);
};

// `count` rows of the block's memory; those from `valid` on are zero.
template <typename S>
__device__ __forceinline__ void copy_rows(uint32_t to, const bf16* from, int64_t stride, int count,
                                          int valid) {
  for (int i = static_cast<int>(threadIdx.x); i < count * S::kChunks; i += kThreads) {
    const int row = i / S::kChunks, chunk = i % S::kChunks;
    copy_async(to + row * S::kStride + chunk * 16,
               from + (row < valid ? row : 0) * stride + chunk * 8, row < valid ? 16 : 0);
  }
  commit_copies();
}

__device__ __forceinline__ void rotate_head(const Rope& a, int head, int first, int step) {
  bf16* const x = static_cast<bf16*>(a.x.data) + head * a.x.head_stride;
  const int half = a.rotation.half;
  const auto num_rows = static_cast<int>(a.num_rows);
  for (int i = static_cast<int>(threadIdx.x); first + i / half * step < num_rows; i += kThreads) {
    const int t = first + i / half * step, pair = i % half;
    rotate(x + t * a.x.row_stride, a.rotation, pair, turn_of(a.rotation, t, pair));
  }
}

using Sums = float[kTokenTiles][kRowTiles][4];

__device__ __forceinline__ void put(const HeadProduct& a, int head, int token, int row, float first,
                                    float second) {
  if (token >= a.num_tokens) return;
  const int64_t at = token * a.out.row_stride + head * a.out.head_stride + row;
  if (a.out.type == Type::kF32) {
    *reinterpret_cast<float2*>(static_cast<float*>(a.out.data) + at) = make_float2(first, second);
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<bf16*>(a.out.data) + at) =
        pack_pair<false>(first, second);
  }
}

template <int kSlices>
__global__ void __launch_bounds__(kThreads) head_product_kernel(HeadProduct a) {
  using S = Shape<kSlices>;
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.y),
            first_row = static_cast<int>(blockIdx.x) * S::kRows;
  const uint32_t w = shared_address(shared), x = w + S::kX;
  start_dependents();
  copy_rows<S>(w,
               reinterpret_cast<const bf16*>(a.matrices[head].data) + int64_t{first_row} * a.stride,
               a.stride, S::kRows, S::kRows);
  wait_for_inputs();

  const bf16* const tokens = static_cast<const bf16*>(a.x.data) + head * a.x.head_stride;
  const auto bring = [&](int first) {
    copy_rows<S>(x, tokens + first * a.x.row_stride, a.x.row_stride, kTokens, a.num_tokens - first);
  };
  bring(0);
  if (a.rope.num_heads > 0) {
    rotate_head(a.rope, head, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  }
  const int slice = warp % kSlices, warp_row = warp / kSlices * kWarpRows;
  const int column = slice * kWarpInputs * 2;
  const uint32_t of_tokens = x + lane % 16 * S::kStride + column + lane / 16 * 16;
  const uint32_t of_rows =
      w + (warp_row + lane % 8 + lane / 16 * 8) * S::kStride + column + lane / 8 % 2 * 16;
  for (int first = 0; first < a.num_tokens; first += kTokens) {
    wait_copies<0>();
    __syncthreads();
    Sums sums = {};
    const int num_tiles = a.num_tokens - first > 16 ? 2 : 1;
#pragma unroll
    for (int k = 0; k < kWarpInputs / 16; ++k) {
      uint32_t b[kRowTiles / 2][4];
#pragma unroll
      for (int i = 0; i < kRowTiles / 2; ++i) {
        load_matrices(of_rows + i * 16 * S::kStride + k * 32, b[i]);
      }
#pragma unroll
      for (int m = 0; m < kTokenTiles; ++m) {
        if (m >= num_tiles) break;
        uint32_t t[4];
        load_matrices(of_tokens + m * 16 * S::kStride + k * 32, t);
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
          mma<false>(sums[m][n], t, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
      }
    }
    const int token = first + lane / 4, row = first_row + warp_row + lane % 4 * 2;
    if constexpr (kSlices == 1) {
      __syncthreads();
      if (first + kTokens < a.num_tokens) bring(first + kTokens);
#pragma unroll
      for (int m = 0; m < kTokenTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
          const float(&d)[4] = sums[m][n];
          put(a, head, token + m * 16, row + n * 8, d[0], d[1]);
          put(a, head, token + m * 16 + 8, row + n * 8, d[2], d[3]);
        }
      }
    } else {
      static_assert(kSlices == kWarps);
      auto* const shared_sums = reinterpret_cast<float4*>(shared + S::kSums);
#pragma unroll
      for (int m = 0; m < kTokenTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
          const float(&d)[4] = sums[m][n];
          shared_sums[((warp * kTokenTiles + m) * kRowTiles + n) * 32 + lane] =
              make_float4(d[0], d[1], d[2], d[3]);
        }
      }
      __syncthreads();
      if (first + kTokens < a.num_tokens) bring(first + kTokens);
        // A warp's rows of each token tile: n = warp.
#pragma unroll
      for (int m = 0; m < kTokenTiles; ++m) {
        float4 d = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int s = 0; s < kSlices; ++s) {
          const float4 v = shared_sums[((s * kTokenTiles + m) * kRowTiles + warp) * 32 + lane];
          d.x += v.x;
          d.y += v.y;
          d.z += v.z;
          d.w += v.w;
        }
        put(a, head, token + m * 16, row + warp * 8, d.x, d.y);
        put(a, head, token + m * 16 + 8, row + warp * 8, d.z, d.w);
      }
    }
  }
}

template <int kSlices>
void launch_of(const HeadProduct& a, void* stream) {
  using S = Shape<kSlices>;
  static const bool allowed = [] {
    allow_shared_memory("allowing shared memory to heads", head_product_kernel<kSlices>, S::kBytes);
    return true;
  }();
  static_cast<void>(allowed);
  launch("heads", head_product_kernel<kSlices>,
         dim3(static_cast<unsigned>(a.rows / S::kRows), static_cast<unsigned>(a.num_heads)),
         dim3(kThreads), S::kBytes, stream, a);
}

bool is_aligned(const Heads& x, int elements) {
  const size_t bytes = static_cast<size_t>(elements) * (x.type == Type::kF32 ? 4 : 2);
  return reinterpret_cast<uintptr_t>(x.data) % bytes == 0 && x.row_stride % elements == 0 &&
         x.head_stride % elements == 0;
}

}  // namespace

bool can_multiply_heads(const HeadProduct& a) {
  const bool fits = (a.inputs == Shape<1>::kInputs && a.rows % Shape<1>::kRows == 0) ||
                    (a.inputs == Shape<4>::kInputs && a.rows % Shape<4>::kRows == 0);
  return fits && a.stride % 8 == 0 && a.x.type == Type::kBF16 && is_aligned(a.x, 8) &&
         is_aligned(a.out, 2) && (a.rope.num_heads == 0 || a.rope.x.type == Type::kBF16);
}

void launch_multiply_heads(const HeadProduct& a, void* stream) {
  if (a.inputs == Shape<1>::kInputs) {
    launch_of<1>(a, stream);
  } else {
    launch_of<4>(a, stream);
  }
}

}  // namespace eyrie::ops::gpu
