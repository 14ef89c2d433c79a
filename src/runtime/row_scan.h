// Passes over a row of logits that touch every value: the widest SIMD the machine has is chosen at
// run time. All results are exact, so which one ran cannot be seen.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace eyrie::runtime {

struct RowScan {
  float max = 0.0F;     // -infinity for an empty row; of no meaning unless finite
  bool finite = false;  // no NaN, no infinity
};
RowScan scan_row(std::span<const float> row);

// The first index at or after `from` whose value is at least `threshold` (row.size() if none is).
size_t find_at_least(std::span<const float> row, size_t from, float threshold);

// What this machine can run, the best first, for tests: the functions above are the first entry's.
struct RowPasses {
  RowScan (*scan)(std::span<const float>);
  size_t (*find_at_least)(std::span<const float>, size_t, float);
};
std::vector<RowPasses> row_passes();

}  // namespace eyrie::runtime
