// How four-bit weights lie in memory to meet int8 activations, and how those are rounded. Panels of
// 16 output columns: a cache line is 8 k of all of them, a 32-bit word per output whose four bytes
// hold k, k+1, k+2, k+3 in their low nibbles and k+4 … k+7 in their high ones. So a vector lane is
// an output, and four products of a lane end in one 32-bit sum. A panel is read front to back:
//
//   line of scales   of the next groups_per_line groups of k (fewer at the panel's end)
//   lines of codes   group / 8 a group
//   …
//
// Scales of a group, output i:  mxfp4  byte i: E8M0     nvfp4  byte i: nvfp4_scale_byte()
//                               int4   16-bit word i: bfloat16
//
// A weight enters the product as an unsigned byte: 2 · value + 12 for FP4, value + 8 for INT4; the
// offset times the sum of the group's activations is taken off again, in integers.
//
// Activations: each group (as wide as the weight's) is rounded to q = nearest even of x / scale
// with scale = largest |x| / 127, once, for all rows and matrices it meets. One row is a record of
// its groups: the codes, then Int8Scale. A group whose largest |x| is below 2^-100 counts as zeros;
// one with a NaN or an infinity makes every output NaN.
//
//   out[o] = Σ_groups float(Σ_k w·q) · (scale_w · scale_x), groups ascending, fused multiply-add
//
// The integer sum is exact, so bits depend on neither vector width nor batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/math.h"
#include "ops/cpu/layout.h"

namespace eyrie::ops::cpu {

inline constexpr int kInt8Panel = 16;
inline constexpr int kLineBytes = 64;
inline constexpr int kLineColumns = 8;  // k of one line of codes

struct Int8Scale {
  float scale;         // of the activations, times Int8Geometry::unit
  int32_t correction;  // -offset · Σ q
};

struct Int8Geometry {
  int group;        // k that share a scale
  int scale_bytes;  // of a group in a panel
  int offset;       // added to a weight's integer
  float unit;       // one step of a weight's integer
  bool row_scales;
  constexpr int groups_per_line() const { return kLineBytes / scale_bytes; }
  constexpr int group_bytes() const { return group / kLineColumns * kLineBytes; }
  constexpr int record_bytes() const { return group + static_cast<int>(sizeof(Int8Scale)); }
};

constexpr Int8Geometry int8_geometry(Encoding encoding) {
  switch (encoding) {
    case Encoding::kNvfp4Int8:
      return {.group = 16, .scale_bytes = 16, .offset = 12, .unit = 0.5f, .row_scales = true};
    case Encoding::kInt4Int8:
      return {.group = 32, .scale_bytes = 32, .offset = 8, .unit = 1.0f, .row_scales = false};
    default:
      return {.group = 32, .scale_bytes = 16, .offset = 12, .unit = 0.5f, .row_scales = false};
  }
}

// Bytes of a row's record.
constexpr int64_t int8_record_bytes(Encoding encoding, int64_t columns) {
  const Int8Geometry g = int8_geometry(encoding);
  return columns / g.group * g.record_bytes();
}

inline int64_t int8_panel_bytes(Encoding encoding, int64_t in) {
  const Int8Geometry g = int8_geometry(encoding);
  const int64_t groups = in / g.group;
  return div_ceil(groups, g.groups_per_line()) * kLineBytes + groups * g.group_bytes();
}

}  // namespace eyrie::ops::cpu
