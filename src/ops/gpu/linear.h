// The product of a prepared weight with activation rows, as linear layers and experts ask for it:
// an explicit list of kernels, the first that can run. EYRIE_GPU_KERNELS=generic (sm90, cublaslt)
// forces one where it can run at all.
#pragma once

#include <string_view>

#include "ops/gpu/kernels_heads.h"
#include "ops/gpu/kernels_linear.h"
#include "ops/ops.h"

namespace eyrie::ops::gpu {

// Whether a row's result must not depend on how many rows there are: in deterministic mode, and
// always where matrices are so small (a million elements in all) that time is launches, not bytes.
bool is_order_fixed(const Ctx& ctx, const Multiply& args);

// What the weight says; activations, outputs and tokens are the caller's to fill in.
Multiply multiply_of(const PreparedWeight& weight);

// Enqueues the product; says by which kernel.
std::string_view multiply(const Multiply& args, void* stream);
// Enqueues two products over the same tiles, the second of what the first writes: in one launch
// where there is a kernel for it.
void multiply_chain(const Multiply& first, const Chained& second, void* stream);

// head_linear of few rows, and `turned` rotated (num_heads 0: nothing is), in one launch. False:
// there is no kernel for it, and nothing was enqueued.
bool multiply_heads(const Ctx& ctx, const HeadLinearArgs& args, const Rope& turned);

// EYRIE_GPU_KERNELS=generic: the kernels that every device has.
bool are_products_generic();

}  // namespace eyrie::ops::gpu
