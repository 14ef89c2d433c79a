// What linear, head_linear and experts share: rows cut into tiles, brought into the form that the
// matrix's kernels read (packed floats, or a record of int8 each), multiplied with a range of
// panels. Runs on the calling thread; who splits work over threads splits tiles and panels, which
// cannot change a bit of the result.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/math.h"
#include "ops/cpu/int8_layout.h"
#include "ops/cpu/kernels.h"

namespace eyrie::ops::cpu {

// Work below this many nanoseconds (as estimated) is not worth waking another thread for.
inline constexpr double kParallelNs = 8000;

// One core's time for rows × matrix: reading the weights or the multiply-adds.
inline double gemm_ns(const PanelMatrix& m, int64_t rows) {
  const double bytes = static_cast<double>(m.num_panels * m.panel_bytes);
  const double macs = static_cast<double>(rows * m.num_panels * m.panel_columns * m.padded_in);
  return std::max(bytes / 20.0, macs / (meets_int8(m.encoding) ? 100.0 : 25.0));
}

// As few tiles as possible of sizes that differ by at most one row.
struct RowTiles {
  int64_t rows, count;
  RowTiles(int64_t num_rows, int max_rows) : rows(num_rows), count(div_ceil(num_rows, max_rows)) {}
  int64_t begin(int64_t tile) const { return tile * (rows / count) + std::min(tile, rows % count); }
  int size(int64_t tile) const { return static_cast<int>(begin(tile + 1) - begin(tile)); }
};

inline int max_tile_rows(const PanelMatrix& m) {
  return meets_int8(m.encoding) ? int8_kernels().max_rows : gemm_kernels().max_rows;
}

// Bytes of so many input rows, a multiple of 64.
inline int64_t input_bytes(const PanelMatrix& m, int64_t rows) {
  return align_up(meets_int8(m.encoding) ? rows * int8_record_bytes(m.encoding, m.in)
                                         : rows * m.padded_in * int64_t{sizeof(float)},
                  64);
}

// row(r) → const float* of row r. Brings tiles [tile_begin, tile_end) into `input`.
template <typename RowOf>
void take_tiles(const PanelMatrix& m, const RowTiles& tiles, int64_t tile_begin, int64_t tile_end,
                const RowOf& row, std::byte* input) {
  if (meets_int8(m.encoding)) {
    const int64_t bytes = int8_record_bytes(m.encoding, m.in);
    for (int64_t r = tiles.begin(tile_begin); r < tiles.begin(tile_end); ++r) {
      int8_kernels().round(m.encoding, row(r), m.in, input + r * bytes);
    }
    return;
  }
  const float* rows[kMaxTileRows];
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t begin = tiles.begin(tile);
    const int size = tiles.size(tile);
    for (int r = 0; r < size; ++r) rows[r] = row(begin + r);
    gemm_kernels().pack(m, rows, size, reinterpret_cast<float*>(input) + begin * m.padded_in);
  }
}

// fn(tile, panel_begin, panel_end): a few panels at a time, small enough to stay in the L2 cache
// while all tiles pass over them.
template <typename Fn>
void for_tiles(const PanelMatrix& m, int64_t tile_begin, int64_t tile_end, int64_t panel_begin,
               int64_t panel_end, const Fn& fn) {
  constexpr int64_t kCacheBytes = 256 * 1024;
  const int64_t step =
      tile_end - tile_begin == 1
          ? panel_end - panel_begin
          : std::max<int64_t>(4, kCacheBytes / std::max<int64_t>(1, m.panel_bytes));
  for (int64_t panel = panel_begin; panel < panel_end; panel += step) {
    const int64_t end = std::min(panel + step, panel_end);
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) fn(tile, panel, end);
  }
}

// record(r) → row r's record; out(r) → float* of output row r.
template <typename RecordOf, typename OutOf>
void multiply_records(const PanelMatrix& m, const RowTiles& tiles, int64_t tile_begin,
                      int64_t tile_end, int64_t panel_begin, int64_t panel_end,
                      const RecordOf& record, const OutOf& out) {
  const auto multiply = [&](int64_t tile, int64_t begin, int64_t end) {
    const std::byte* records[kMaxTileRows];
    float* rows[kMaxTileRows];
    const int size = tiles.size(tile);
    for (int r = 0; r < size; ++r) {
      records[r] = record(tiles.begin(tile) + r);
      rows[r] = out(tiles.begin(tile) + r);
    }
    int8_kernels().panels(m, records, size, begin, end, rows);
  };
  for_tiles(m, tile_begin, tile_end, panel_begin, panel_end, multiply);
}

// input: of all tiles.
template <typename OutOf>
void multiply_tiles(const PanelMatrix& m, const RowTiles& tiles, int64_t tile_begin,
                    int64_t tile_end, int64_t panel_begin, int64_t panel_end,
                    const std::byte* input, const OutOf& out) {
  if (meets_int8(m.encoding)) {
    const int64_t bytes = int8_record_bytes(m.encoding, m.in);
    return multiply_records(
        m, tiles, tile_begin, tile_end, panel_begin, panel_end,
        [&](int64_t r) { return input + r * bytes; }, out);
  }
  const auto multiply = [&](int64_t tile, int64_t begin, int64_t end) {
    float* rows[kMaxTileRows];
    const int64_t first = tiles.begin(tile);
    const int size = tiles.size(tile);
    for (int r = 0; r < size; ++r) rows[r] = out(first + r);
    gemm_kernels().panels(m, reinterpret_cast<const float*>(input) + first * m.padded_in, size,
                          begin, end, rows);
  };
  for_tiles(m, tile_begin, tile_end, panel_begin, panel_end, multiply);
}

}  // namespace eyrie::ops::cpu
