// The product of a prepared weight with activation rows, as linear layers and experts ask for it:
// an explicit list of kernels, the first that can run. EYRIE_GPU_KERNELS=generic (sm90, cublaslt)
// forces one where it can run at all.
#pragma once

#include <string_view>

#include "ops/gpu/kernels_linear.h"
#include "ops/ops.h"

namespace eyrie::ops::gpu {

// What the weight says; activations, outputs and tokens are the caller's to fill in.
Multiply multiply_of(const PreparedWeight& weight);

// Enqueues the product; says by which kernel.
std::string_view multiply(const Multiply& args, void* stream);

}  // namespace eyrie::ops::gpu
