// A product per head with a small matrix of the head's own (the absorbed halves of kv_b_proj), and
// the rotation of what stands beside it: raw device pointers and sizes, as in kernels_linear.h.
#pragma once

#include "ops/gpu/kernels_attention.h"
#include "ops/gpu/kernels_linear.h"

namespace eyrie::ops::gpu {

// out[t, h] = x[t, h] · matrix_hᵀ, bf16, sums float32; and where rope.num_heads > 0, rope.x[t, h]
// rotated in place, which is no part of x.
struct HeadProduct {
  const PackedMatrix* matrices;  // [heads] of [rows, inputs] bf16
  int64_t stride;                // elements from row to row
  int32_t rows, inputs;
  Heads x, out;
  int32_t num_tokens, num_heads;
  Rope rope;
};
bool can_multiply_heads(const HeadProduct& args);
void launch_multiply_heads(const HeadProduct& args, void* stream);

}  // namespace eyrie::ops::gpu
