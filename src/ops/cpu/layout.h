// How a weight matrix lies in memory for the kernels: panels of 32 output columns, k-major, so that
// one vector lane is one output element and accumulates over k ascending. One step of the kernel
// loads 16 32-bit words (one cache line) that hold, in lane i, the elements of outputs i and i +
// 16:
//
//   bf16   1 k a step   | out i (low half) | out i+16 (high half) |
//   fp8    2 k a step   | k: i | k: i+16 | k+1: i | k+1: i+16 |          bytes, low first
//   mxfp4  4 k a step   | k: i, i+16 | k+1: i, i+16 | … |                nibbles, low first
//   f32    1 k          32 floats (two cache lines)
//
// The panel's last columns and the last k of the last step are zero. An mxfp4 panel ends with its
// block scales: for each 32 k, 16 16-bit words (out i in the low byte, out i+16 in the high one).
// fp8's row scales lie behind all panels. Formats without a kernel of their own become f32 panels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/ops.h"

namespace eyrie::ops::cpu {

inline constexpr int kPanel = 32;

enum class Encoding { kF32, kBf16, kFp8, kMxfp4 };

// What a kernel sees of a prepared weight.
struct PanelMatrix {
  Encoding encoding;
  int64_t out, in;
  int64_t padded_in;  // in rounded up to whole steps
  int64_t num_panels;
  int64_t panel_bytes;  // from one panel to the next
  const std::byte* panels;
  const float* row_scales;  // [num_panels * 32], fp8 only
};

// kF32 for formats without a kernel of their own.
Encoding encoding_of(const formats::WeightFormat& format);

PanelMatrix panel_matrix(const PreparedWeight& weight);

PreparedWeight prepare(const Ctx& ctx, std::span<const formats::Weight> rows_concatenated,
                       ActivationQuantization activation);

}  // namespace eyrie::ops::cpu
