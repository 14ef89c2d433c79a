// Hopper's warpgroup matrix product as inline PTX: 64 rows of A times B, both in shared memory
// under the 128-byte swizzle, float32 sums in registers.
//
// Sums, 64 x N, of thread i of the warpgroup (warp w = i / 32, lane l = i % 32):
//   d[4g], d[4g+1] row 16w + l/4, columns 8g + 2(l%4), +1; d[4g+2], d[4g+3] row + 8
#pragma once

#include <cstdint>

namespace eyrie::ops::gpu {

// A matrix of 128-byte rows, eight to an atom of 1024 bytes whose 16-byte chunks are swizzled
// (chunk ^ row % 8). K-major (a row is one row of A or one column of B): `stride` bytes from 8 rows
// to the next 8. MN-major (a row is one k): `stride` from 8 k to the next 8, `leading` from 64
// columns to the next 64.
struct Matrix {
  uint32_t low, high;
  // The matrix that begins `bytes` further on: a sum of 32 bits, which stays in uniform registers.
  __device__ __forceinline__ uint64_t at(uint32_t bytes) const {
    return uint64_t{low + bytes / 16} | uint64_t{high} << 32;
  }
};
__device__ __forceinline__ Matrix matrix_at(uint32_t address, uint32_t leading, uint32_t stride) {
  return {(address & 0x3ffffu) >> 4 | leading >> 4 << 16, stride >> 4 | 1u << 30};
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving reads of sums above the wait they need.
template <int kCount>
__device__ __forceinline__ void hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// clang-format off
#define EYRIE_WGMMA_N32(type)                                                                      \
  asm volatile(                                                                                    \
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %18, 0;\n"                               \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " {"                             \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "                                         \
      "%12, %13, %14, %15}, "                                                                      \
      "%16, %17, accumulate, 1, 1, 0, 0;\n}\n"                                                     \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),                    \
        "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),                  \
        "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])                                         \
      : "l"(a), "l"(b), "r"(accumulate))

#define EYRIE_WGMMA_N128(type)                                                                     \
  asm volatile(                                                                                    \
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %66, 0;\n"                               \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {"                            \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "                                         \
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "                               \
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "                               \
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                               \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "                               \
      "%60, %61, %62, %63}, "                                                                      \
      "%64, %65, accumulate, 1, 1, 0, 1;\n}\n"                                                     \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),                    \
        "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),                  \
        "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),              \
        "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),              \
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),              \
        "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),              \
        "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),              \
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),              \
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),              \
        "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),              \
        "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])                                         \
      : "l"(a), "l"(b), "r"(accumulate))
// clang-format on

// d += a · b (d = a · b where accumulate is 0). A is K-major; B is K-major for N 32, MN-major for
// N 128.
template <bool kF16>
__device__ __forceinline__ void wgmma_n32(float (&d)[16], uint64_t a, uint64_t b, int accumulate) {
  if constexpr (kF16) {
    EYRIE_WGMMA_N32("f16");
  } else {
    EYRIE_WGMMA_N32("bf16");
  }
}
template <bool kF16>
__device__ __forceinline__ void wgmma_n128(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
  if constexpr (kF16) {
    EYRIE_WGMMA_N128("f16");
  } else {
    EYRIE_WGMMA_N128("bf16");
  }
}

#undef EYRIE_WGMMA_N32
#undef EYRIE_WGMMA_N128

}  // namespace eyrie::ops::gpu
