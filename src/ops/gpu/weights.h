// A PreparedWeight of the GPU's: which layout its storage has and where its parts lie. The layout
// follows from the format alone: what the packed layouts cannot hold was decoded, and its format is
// then bf16.
#pragma once

#include "base/math.h"
#include "ops/gpu/kernels_linear.h"
#include "ops/ops.h"

namespace eyrie::ops::gpu {

Layout layout_of(const formats::WeightFormat& format);

// Units of a row group, or elements from row to row in BF16.
int64_t packed_stride(Layout layout, int64_t inputs);
size_t packed_bytes(Layout layout, int64_t rows, int64_t inputs);
bool has_row_scale(Layout layout);

PackedMatrix packed_matrix(const PreparedWeight& weight);

}  // namespace eyrie::ops::gpu
