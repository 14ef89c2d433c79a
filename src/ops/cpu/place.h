// Brings rows of weights, each one run of bytes in its file, into the order of a panel (layout.h,
// int8_layout.h). A panel is written by one thread, from front to back. 128-bit vectors and one
// target: memory and its pages are the limit, not arithmetic.
#pragma once

#include <span>

#include "ops/cpu/layout.h"

namespace eyrie::ops::cpu {

struct WeightRow {
  const formats::Weight* weight;
  int64_t row;
};

// Puts rows, at most m.panel_columns, into a zeroed panel; row_scales: of its columns, for
// encodings that have them. Error for a number that the kernels have no room for.
void place_panel(const PanelMatrix& m, std::span<const WeightRow> rows, std::byte* panel,
                 float* row_scales);

}  // namespace eyrie::ops::cpu
