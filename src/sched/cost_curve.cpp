#include "sched/cost_curve.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace eyrie::sched {
namespace {

// The mean is followed, not the median: a step that waits for a core is part of what steps cost.
// But one measurement counts as at most three times what was expected, and moves its points by a
// few per cent of the difference.
constexpr double kLeastSurprise = -0.75;
constexpr double kMostSurprise = 2;
constexpr double kRate = 0.03;

}  // namespace

double CostCurve::point_rows(int idx) {
  if (idx == 0) return 1;
  const int power = (idx + 1) / 2;  // 1 → 2, 2 → 3, 3 → 4, 4 → 6
  return idx % 2 == 1 ? static_cast<double>(int64_t{1} << power)
                      : 1.5 * static_cast<double>(int64_t{1} << power);
}

int CostCurve::interval_of(double rows) {
  if (rows < 2) return 0;
  const auto whole = static_cast<uint64_t>(rows);
  const int power = std::bit_width(whole) - 1;
  const int idx = 2 * power - 1 + (rows >= 1.5 * static_cast<double>(int64_t{1} << power) ? 1 : 0);
  return std::min(idx, kNumPoints - 2);
}

void CostCurve::set(int32_t rows, double seconds) {
  CHECK_GE(rows, 1);
  const int low = interval_of(rows);
  const double share = (rows - point_rows(low)) / (point_rows(low + 1) - point_rows(low));
  const int nearest = share < 0.5 ? low : low + 1;
  // A count between two points stands for the nearer, in proportion.
  const double value = seconds * point_rows(nearest) / rows;
  seconds_[static_cast<size_t>(nearest)] = std::max(value, 1e-9);
  if (!known_[static_cast<size_t>(nearest)]) ++num_known_;
  known_[static_cast<size_t>(nearest)] = true;
  fill();
}

// Draws straight lines between the known points; left of the first the cost is constant, right of
// the last it goes on with the last slope, or in proportion when there is but one point.
void CostCurve::fill() {
  int before = -1;
  for (int idx = 0; idx < kNumPoints; ++idx) {
    if (!known_[static_cast<size_t>(idx)]) continue;
    const double value = seconds_[static_cast<size_t>(idx)];
    for (int gap = before + 1; gap < idx; ++gap) {
      double& filled = seconds_[static_cast<size_t>(gap)];
      if (before < 0) {
        filled = value;
        continue;
      }
      const double share =
          (point_rows(gap) - point_rows(before)) / (point_rows(idx) - point_rows(before));
      filled = std::lerp(seconds_[static_cast<size_t>(before)], value, share);
    }
    before = idx;
  }
  // The slope over the last factor of eight, where there is one: two neighbours say little.
  const double last = seconds_[static_cast<size_t>(before)];
  double slope = last / point_rows(before);
  for (int idx = before - 1; idx >= 0; --idx) {
    if (!known_[static_cast<size_t>(idx)]) continue;
    slope = std::max(
        0.0, (last - seconds_[static_cast<size_t>(idx)]) / (point_rows(before) - point_rows(idx)));
    if (8 * point_rows(idx) <= point_rows(before)) break;
  }
  for (int idx = before + 1; idx < kNumPoints; ++idx) {
    seconds_[static_cast<size_t>(idx)] = last + slope * (point_rows(idx) - point_rows(before));
  }
  keep_rising(0);
}

// Points left of `around` cost at most what it costs, points right of it at least that.
void CostCurve::keep_rising(int around) {
  for (int idx = around; idx > 0; --idx) {
    double& left = seconds_[static_cast<size_t>(idx) - 1];
    left = std::min(left, seconds_[static_cast<size_t>(idx)]);
  }
  for (int idx = around + 1; idx < kNumPoints; ++idx) {
    double& right = seconds_[static_cast<size_t>(idx)];
    right = std::max(right, seconds_[static_cast<size_t>(idx) - 1]);
  }
}

double CostCurve::at(double rows) const {
  const int low = interval_of(rows);
  const double share = (rows - point_rows(low)) / (point_rows(low + 1) - point_rows(low));
  const double left = seconds_[static_cast<size_t>(low)];
  return left + share * (seconds_[static_cast<size_t>(low) + 1] - left);
}

double CostCurve::surprise(int32_t rows, double seconds) const {
  if (!known() || rows < 1) return 0;
  return std::clamp(seconds / std::max(at(rows), 1e-9) - 1, kLeastSurprise, kMostSurprise);
}

void CostCurve::observe(int32_t rows, double seconds) {
  if (rows < 1 || seconds <= 0) return;
  if (!known()) {
    set(rows, seconds);
    return;
  }
  const double step = kRate * surprise(rows, seconds);
  const int low = interval_of(rows);
  const double share =
      std::clamp((rows - point_rows(low)) / (point_rows(low + 1) - point_rows(low)), 0.0, 1.0);
  seconds_[static_cast<size_t>(low)] *= 1 + step * (1 - share);
  seconds_[static_cast<size_t>(low) + 1] *= 1 + step * share;
  keep_rising(low);
}

void CostCurve::scale(double factor) {
  for (double& seconds : seconds_) seconds *= factor;
}

}  // namespace eyrie::sched
