// Values of codes as floats, one at a time: for what prepares weights and for the generic kernels.
#pragma once

#include "ops/gpu/compat.h"
#include "ops/gpu/linear_codes.h"

namespace eyrie::ops::gpu {

__device__ __forceinline__ float e2m1_value(uint32_t code) {
  const uint32_t exponent = (code >> 1) & 3u;
  const float magnitude =
      exponent == 0 ? 0.5f * (code & 1u) : (1.0f + 0.5f * (code & 1u)) * (1u << (exponent - 1));
  return (code & 8u) != 0 ? -magnitude : magnitude;
}
__device__ __forceinline__ float e8m0_value(uint32_t code) {
  return code == 255 ? as_float(0x7fc00000u)
         : code == 0 ? as_float(0x00400000u)  // 2^-127
                     : as_float(code << 23);
}
__device__ __forceinline__ float e4m3_value(uint32_t code) {
  if ((code & 0x7fu) == 0x7fu) return as_float(0x7fc00000u);
  const float magnitude = as_float((code & 0x7fu) << 20) * as_float(0x7b800000u);  // · 2^120
  return (code & 0x80u) != 0 ? -magnitude : magnitude;
}

// Inputs k … k + 7 of row r of a packed matrix (k a multiple of 8), without the row's scale: the
// very numbers that the tensor-core kernels use (times layout_scale).
__device__ __forceinline__ void packed_values(const uint8_t* matrix, Layout layout, int64_t r,
                                              int64_t k, int64_t stride, float (&values)[8]) {
  if (layout == Layout::kBF16) {
    load_floats(reinterpret_cast<const bf16*>(matrix) + r * stride + k, values);
    return;
  }
  const uint8_t* const word = matrix + word_of(layout, r, k, stride);
  const uint8_t* const scales = matrix + unit_of(layout, r, k, stride) + 1024;
  const int64_t row = r % kRowTile, input = k % unit_inputs(layout);
  if (unit_inputs(layout) == 64) {
    const uint2 bits = *reinterpret_cast<const uint2*>(word);
    const float scale = layout == Layout::kFp8 ? 1.0f : *reinterpret_cast<const float*>(scales);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] = e4m3_value(((i < 4 ? bits.x : bits.y) >> (8 * fp8_byte(i & 3))) & 255u) * scale;
    }
    return;
  }
  const uint32_t bits = *reinterpret_cast<const uint32_t*>(word);
  if (layout == Layout::kInt4) {
    const float scale = to_float(reinterpret_cast<const bf16*>(scales)[row * 4 + input / 32]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto code = static_cast<float>(static_cast<int>((bits >> int4_bit(i)) & 15u) - 8);
      values[i] = to_float(from_float<bf16>(code * scale));
    }
    return;
  }
  float scale;
  if (layout == Layout::kMxfp4) {
    // The multiplier's exponent field without the 94 that layout_scale stands for.
    const uint32_t field = scales[row * 4 + input / 32];
    scale = e8m0_value(field == 255 ? 255u : field - 94u);
  } else {
    const uint32_t code = scales[row * 8 + input / 16];
    scale = as_float(((code >> 3) + 117u) << 23 | (code & 7u) << 20);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = e2m1_value(unpack_fp4(bits, i)) * scale;
}

}  // namespace eyrie::ops::gpu
