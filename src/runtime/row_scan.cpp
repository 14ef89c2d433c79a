#include "runtime/row_scan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace eyrie::runtime {
namespace {

// The loops are written in lanes, which the compiler turns into SIMD without being told to reorder
// anything.
constexpr size_t kLanes = 32;

#define EYRIE_INLINE [[gnu::always_inline]] inline

EYRIE_INLINE RowScan scan_lanes(std::span<const float> row) {
  constexpr uint32_t kExponent = 0x7F800000U;  // all ones: NaN or infinity
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  std::array<float, kLanes> max;
  std::array<uint32_t, kLanes> bad;
  max.fill(kLowest);
  bad.fill(0);
  const float* x = row.data();
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      max[lane] = x[i + lane] > max[lane] ? x[i + lane] : max[lane];
      bad[lane] |= (std::bit_cast<uint32_t>(x[i + lane]) & kExponent) == kExponent ? 1U : 0U;
    }
  }
  for (size_t lane = 0; i < row.size(); ++i, ++lane) {
    max[lane] = std::max(max[lane], x[i]);
    bad[lane] |= (std::bit_cast<uint32_t>(x[i]) & kExponent) == kExponent ? 1U : 0U;
  }
  RowScan result{kLowest, true};
  for (size_t lane = 0; lane < kLanes; ++lane) {
    result.max = std::max(result.max, max[lane]);
    result.finite &= bad[lane] == 0;
  }
  return result;
}

EYRIE_INLINE size_t find_lanes(std::span<const float> row, size_t from, float threshold) {
  const float* x = row.data();
  size_t i = from;
  if (i < row.size() && x[i] >= threshold)
    return i;  // where most values are, no block is looked at
  for (; i + kLanes <= row.size(); i += kLanes) {
    uint32_t any = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) any |= x[i + lane] >= threshold ? 1U : 0U;
    if (any != 0) break;
  }
  while (i < row.size() && !(x[i] >= threshold)) ++i;
  return i;
}

#ifdef __x86_64__
[[gnu::target("avx512f")]] RowScan scan_avx512(std::span<const float> row) {
  return scan_lanes(row);
}
[[gnu::target("avx2")]] RowScan scan_avx2(std::span<const float> row) { return scan_lanes(row); }
[[gnu::target("avx512f")]] size_t find_avx512(std::span<const float> row, size_t from,
                                              float threshold) {
  return find_lanes(row, from, threshold);
}
[[gnu::target("avx2")]] size_t find_avx2(std::span<const float> row, size_t from, float threshold) {
  return find_lanes(row, from, threshold);
}
#endif

RowScan scan_plain(std::span<const float> row) { return scan_lanes(row); }
size_t find_plain(std::span<const float> row, size_t from, float threshold) {
  return find_lanes(row, from, threshold);
}

}  // namespace

std::vector<RowPasses> row_passes() {
  std::vector<RowPasses> passes;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) passes.push_back({scan_avx512, find_avx512});
  if (__builtin_cpu_supports("avx2")) passes.push_back({scan_avx2, find_avx2});
#endif
  passes.push_back({scan_plain, find_plain});
  return passes;
}

namespace {

const RowPasses& best() {
  static const RowPasses chosen = row_passes().front();
  return chosen;
}

}  // namespace

RowScan scan_row(std::span<const float> row) { return best().scan(row); }

size_t find_at_least(std::span<const float> row, size_t from, float threshold) {
  return best().find_at_least(row, from, threshold);
}

}  // namespace eyrie::runtime
