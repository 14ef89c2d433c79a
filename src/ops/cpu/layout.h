// How a weight matrix lies in memory for the kernels: panels of 32 output columns, k-major, so that
// one vector lane is one output element and accumulates over k ascending. One step of the kernel
// loads 16 32-bit words (one cache line) that hold, in lane i, the elements of outputs i and i +
// 16:
//
//   16 bits   1 k a step   | out i (low half) | out i+16 (high half) |   bf16, f16
//   pairs     2 k a step   | k (low half) | k+1 | of out i, then a line of out i+16: bf16 that
//   meets
//                                               bfloat16 activations
//   fp8       2 k a step   | k: i | k: i+16 | k+1: i | k+1: i+16 |      bytes, low first
//   nibbles   4 k a step   | k: i, i+16 | k+1: i, i+16 | … |            mxfp4, nvfp4, int4; low
//   first f32       1 k          32 floats (two cache lines)
//
// The panel's last columns and the last k of the last step are zero. A panel ends with the scales
// of its blocks, for each block of k:
//
//   mxfp4      32 k   16 16-bit words: E8M0 of out i in the low byte, of out i+16 in the high one
//   nvfp4      16 k   the same, in a byte that decodes with a shift and an addition (layout.cpp)
//   int4-g32   32 k   16 32-bit words: bfloat16 of out i in the low half, of out i+16 in the high
//   fp8-block 128 k   32 floats
//
// Scales of whole rows (fp8's, and nvfp4's second level) lie behind all panels. Fused weights of
// different formats become f32 panels. Four-bit weights that meet int8 activations lie otherwise
// (int8_layout.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/ops.h"

namespace eyrie::ops::cpu {

inline constexpr int kPanel = 32;

enum class Encoding {
  kF32,
  kBf16,
  kF16,
  kFp8,
  kFp8Block,
  kMxfp4,
  kNvfp4,
  kInt4,
  kBf16Pairs,
  // four-bit weights laid out to meet int8 activations
  kMxfp4Int8,
  kNvfp4Int8,
  kInt4Int8
};
constexpr bool meets_int8(Encoding encoding) { return encoding >= Encoding::kMxfp4Int8; }

// An E4M3 code whose sign, exponent and mantissa are moved into their places in a float32 is the
// value times 2^-120, subnormals included; a float16 is the value times 2^-112. pack() multiplies
// the activations by 2^64 and the outputs' scales bring back the rest, so that no weight needs a
// multiplication for it; products stay exact from 2^-70 to 2^63.
inline constexpr float kSmallFloatInputScale = 0x1p64f;
inline constexpr float kFp8OutputScale = 0x1p56f, kF16OutputScale = 0x1p48f;

// NVFP4's block scales in a panel: exponent + 16 in five bits, then E4M3's three of mantissa. They
// have no sign and no zero: elements carry the sign, and elements of a scale of zero are zero.
inline constexpr int kNvfp4ScaleBias = 16;

// What a kernel sees of a prepared weight.
struct PanelMatrix {
  Encoding encoding;
  int64_t out, in;
  int64_t padded_in;  // in rounded up to whole steps
  int64_t num_panels;
  int panel_columns;    // outputs of a panel
  int64_t panel_bytes;  // from one panel to the next
  const std::byte* panels;
  const float* row_scales;  // [num_panels * panel_columns], fp8 and nvfp4 only
};

// kF32 for a format without a kernel of its own.
Encoding encoding_of(const formats::WeightFormat& format,
                     formats::ActivationRounding activation = formats::ActivationRounding::kNone);

PanelMatrix panel_matrix(const PreparedWeight& weight);

// Not for what meets int8: bytes of a panel's elements, which lie before its scales, and of the
// scales of one block of k.
int64_t element_bytes(const PanelMatrix& m);
int block_scale_bytes(Encoding encoding);

// Ends the load with the weight's row named.
[[noreturn]] void reject(const formats::Weight& weight, int64_t row, const char* what);

// The byte of a panel for an E4M3 magnitude > 0 (kNvfp4ScaleBias): subnormals become normal.
uint8_t nvfp4_scale_byte(uint8_t magnitude);

PreparedWeight prepare(const Ctx& ctx, std::span<const formats::Weight> rows_concatenated,
                       ActivationQuantization activation);

}  // namespace eyrie::ops::cpu
