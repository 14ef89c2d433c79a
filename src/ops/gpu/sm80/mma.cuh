// The warp's matrix product and the number formats around it, as inline PTX.
//
// Fragments, of lane l (g = l / 4, j = l % 4):
//   A, 16 x 16: a[0] row g, columns 2j, +1; a[1] row g + 8; a[2], a[3] columns + 8
//   B, 16 x 8:  b[0] column g, rows 2j, +1; b[1] rows + 8
//   D, 16 x 8:  d[0], d[1] row g, columns 2j, +1; d[2], d[3] row g + 8
#pragma once

#include <cstdint>

#include "ops/gpu/compat.h"

namespace eyrie::ops::gpu {

// d += a · b of float16 or bfloat16.
template <bool kF16>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  if constexpr (kF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Two floats rounded, the first in the low half.
template <bool kF16>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  uint32_t packed;
  if constexpr (kF16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

// The two low E4M3 codes of a word as float16, which holds each exactly.
__device__ __forceinline__ uint32_t e4m3_pair(uint32_t codes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t pair;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, low;\n}\n"
      : "=r"(pair)
      : "r"(codes));
  return pair;
#else
  // Sign, then exponent and mantissa one place further down, are float16's but for 2^8. NaN's code
  // is 480 by that count.
  const uint32_t wide = __byte_perm(codes, 0, 0x1404);
  const uint32_t scaled = (wide & 0x80008000u) | (wide >> 1 & 0x3f803f80u);
  uint32_t pair;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(scaled), "r"(0x5c005c00u));
  if ((codes & 0x7fu) == 0x7fu) pair |= 0x7fffu;
  if ((codes & 0x7f00u) == 0x7f00u) pair |= 0x7fff0000u;
  return pair;
#endif
}

__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace eyrie::ops::gpu
