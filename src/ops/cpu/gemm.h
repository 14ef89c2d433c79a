// What linear, head_linear and experts share: rows cut into register tiles, packed, multiplied with
// a range of panels. Runs on the calling thread; who splits work over threads splits tiles and
// panels, which cannot change a bit of the result.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/math.h"
#include "ops/cpu/kernels.h"

namespace eyrie::ops::cpu {

// Work below this many nanoseconds (as estimated) is not worth waking another thread for.
inline constexpr double kParallelNs = 8000;

// One core's time for rows × matrix: reading the weights or the multiply-adds.
inline double gemm_ns(const PanelMatrix& m, int64_t rows) {
  const double bytes = static_cast<double>(m.num_panels * m.panel_bytes);
  const double macs = static_cast<double>(rows * m.num_panels * kPanel * m.padded_in);
  return std::max(bytes / 20.0, macs / 25.0);
}

// As few tiles as possible of sizes that differ by at most one row.
struct RowTiles {
  int64_t rows, count;
  RowTiles(int64_t num_rows, int max_rows) : rows(num_rows), count(div_ceil(num_rows, max_rows)) {}
  int64_t begin(int64_t tile) const { return tile * (rows / count) + std::min(tile, rows % count); }
  int size(int64_t tile) const { return static_cast<int>(begin(tile + 1) - begin(tile)); }
};

inline int64_t packed_floats(const PanelMatrix& m, int64_t rows) { return rows * m.padded_in; }

// row(r) → const float* of row r. Packs tiles [tile_begin, tile_end).
template <typename RowOf>
void pack_tiles(const GemmKernels& kernels, const PanelMatrix& m, const RowTiles& tiles,
                int64_t tile_begin, int64_t tile_end, const RowOf& row, float* packed) {
  const float* rows[kMaxTileRows];
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t begin = tiles.begin(tile);
    const int size = tiles.size(tile);
    for (int r = 0; r < size; ++r) rows[r] = row(begin + r);
    kernels.pack(m, rows, size, packed + begin * m.padded_in);
  }
}

// out(r) → float* of output row r. A few panels at a time, small enough to stay in the L2 cache
// while all tiles pass over them.
template <typename OutOf>
void multiply_tiles(const GemmKernels& kernels, const PanelMatrix& m, const RowTiles& tiles,
                    int64_t tile_begin, int64_t tile_end, int64_t panel_begin, int64_t panel_end,
                    const float* packed, const OutOf& out) {
  constexpr int64_t kCacheBytes = 256 * 1024;
  const int64_t step =
      tile_end - tile_begin == 1
          ? panel_end - panel_begin
          : std::max<int64_t>(4, kCacheBytes / std::max<int64_t>(1, m.panel_bytes));
  float* rows[kMaxTileRows];
  for (int64_t panel = panel_begin; panel < panel_end; panel += step) {
    const int64_t end = std::min(panel + step, panel_end);
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
      const int64_t begin = tiles.begin(tile);
      const int size = tiles.size(tile);
      for (int r = 0; r < size; ++r) rows[r] = out(begin + r);
      kernels.panels(m, packed + begin * m.padded_in, size, panel, end, rows);
    }
  }
}

}  // namespace eyrie::ops::cpu
