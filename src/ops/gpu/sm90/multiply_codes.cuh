// A lane's part of a unit of packed weights (kernels_linear.h), decoded to bf16 in registers.
#pragma once

#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_linear.h"

namespace eyrie::ops::gpu::sm90 {

__device__ __forceinline__ uint4 read16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}
__device__ __forceinline__ uint2 read8(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}
__device__ __forceinline__ uint32_t read4(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ uint32_t multiply2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ uint32_t subtract2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// A lane's part of one unit of one row tile: rows g and g + 8. load() takes it from shared memory,
// block(j, …) gives inputs 8·t … 8·t + 7 of its j-th 32 as four bf16 pairs a row.
template <Layout kLayout>
struct UnitCodes;

__device__ __forceinline__ uint32_t component(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ __forceinline__ void decode_fp4(uint32_t w, uint32_t scale, uint32_t (&r)[4]) {
  constexpr uint32_t kSign = 0x80008000u, kMagnitude = 0x01c001c0u, kBoth = kSign | kMagnitude;
  r[0] = multiply2(w & kBoth, scale);
  r[1] = multiply2((w << 3) & kBoth, scale);
  r[2] = multiply2(((w << 6) & kMagnitude) | ((w << 1) & kSign), scale);
  r[3] = multiply2(((w >> 3) & kMagnitude) | ((w << 2) & kSign), scale);
}

template <>
struct UnitCodes<Layout::kMxfp4> {
  uint4 codes[2];
  uint32_t scales[2];
  __device__ __forceinline__ void load(uint32_t unit, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      codes[h] = read16(unit + h * 512 + lane * 16);
      scales[h] = read4(unit + 1024 + (lane / 4 + 8 * h) * 4);
    }
  }
  __device__ __forceinline__ void block(int j, int h, uint32_t (&r)[4]) const {
    const uint32_t scale = __byte_perm(scales[h], 0, 0x4040 + 0x0101 * j) * 128u;
    decode_fp4(component(codes[h], j), scale, r);
  }
};

template <>
struct UnitCodes<Layout::kNvfp4> {
  uint4 codes[2];
  uint2 scales[2];
  __device__ __forceinline__ void load(uint32_t unit, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      codes[h] = read16(unit + h * 512 + lane * 16);
      const uint2 s = read8(unit + 1024 + (lane / 4 + 8 * h) * 8);
      const int shift = (lane & 2) * 4;  // lanes 2 and 3 hold the second 16 of a block
      scales[h] = make_uint2(s.x >> shift, s.y >> shift);
    }
  }
  __device__ __forceinline__ void block(int j, int h, uint32_t (&r)[4]) const {
    const uint32_t s = j < 2 ? scales[h].x : scales[h].y;
    // Five exponent bits and three of mantissa, moved to where bf16 has them; 211 is what is
    // missing in the exponent: 127 + 126 of E2M1's place, less the scale's bias 10 and 32.
    const uint32_t scale = __byte_perm(s, 0, 0x4040 + 0x0202 * (j & 1)) * 16u + 211u * 0x00800080u;
    decode_fp4(component(codes[h], j), scale, r);
  }
};

template <>
struct UnitCodes<Layout::kInt4> {
  uint4 codes[2];
  uint2 scales[2];
  __device__ __forceinline__ void load(uint32_t unit, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      codes[h] = read16(unit + h * 512 + lane * 16);
      scales[h] = read8(unit + 1024 + (lane / 4 + 8 * h) * 8);
    }
  }
  __device__ __forceinline__ void block(int j, int h, uint32_t (&r)[4]) const {
    const uint32_t scale =
        __byte_perm(j < 2 ? scales[h].x : scales[h].y, 0, (j & 1) != 0 ? 0x3232 : 0x1010);
    const uint32_t w = component(codes[h], j);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      // 0x4300 is 128 in bf16, whose last bit is 1: 128 + code, less 136, is code - 8 exactly.
      const uint32_t biased = ((w >> (4 * p)) & 0x000f000fu) | 0x43004300u;
      r[p] = multiply2(subtract2(biased, 0x43084308u), scale);
    }
  }
};

template <>
struct UnitCodes<Layout::kFp8> {
  uint4 codes[2];
  __device__ __forceinline__ void load(uint32_t unit, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) codes[h] = read16(unit + h * 512 + lane * 16);
  }
  __device__ __forceinline__ void block(int j, int h, uint32_t (&r)[4]) const {
    constexpr uint32_t kSign = 0x80008000u, kMagnitude = 0x07f007f0u;
    constexpr uint32_t k2To120 = 0x7b807b80u;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t w = component(codes[h], 2 * j + i);
      r[2 * i] = multiply2((w & kSign) | ((w >> 4) & kMagnitude), k2To120);
      r[2 * i + 1] = multiply2(((w << 8) & kSign) | ((w << 4) & kMagnitude), k2To120);
    }
  }
};
template <>
struct UnitCodes<Layout::kFp8Block> : UnitCodes<Layout::kFp8> {
  float scale;
  __device__ __forceinline__ void load(uint32_t unit, int lane) {
    UnitCodes<Layout::kFp8>::load(unit, lane);
    scale = __uint_as_float(read4(unit + 1024));
  }
};

}  // namespace eyrie::ops::gpu::sm90
