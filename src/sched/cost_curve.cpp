#include "sched/cost_curve.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace eyrie::sched {
namespace {

// The mean is followed, not the median: a step that waits for a core is part of what steps cost.
// But one measurement counts as at most three times what was expected.
constexpr double kLeastSurprise = -0.75;
constexpr double kMostSurprise = 2;
// The calibration counts as half a measurement in service, of which about the last 50 count.
constexpr double kCalibrated = 0.5;
constexpr double kFade = 0.99;
// What an unseen point beside a seen one has of its movement (less for each point between), and all
// curves of a well-known point's.
constexpr double kBeside = 0.5;
constexpr double kFartherOff = 0.25;
constexpr double kCommon = 0.65;
constexpr double kWellKnown = 8;
// A cost never seen in service may be less than half of what the calibration said.
constexpr double kDoubt = 0.6;

}  // namespace

double CostCurve::point_rows(int idx) {
  if (idx == 0) return 1;
  const int power = (idx + 1) / 2;  // 1 → 2, 2 → 3, 3 → 4, 4 → 6
  return idx % 2 == 1 ? static_cast<double>(int64_t{1} << power)
                      : 1.5 * static_cast<double>(int64_t{1} << power);
}

// Beyond the last point the share is above 1: the last slope goes on.
CostCurve::Place CostCurve::place_of(double rows) {
  int low = 0;
  if (rows >= 2) {
    const int power = std::bit_width(static_cast<uint64_t>(rows)) - 1;
    const bool upper = rows >= 1.5 * static_cast<double>(int64_t{1} << power);
    low = std::min(2 * power - 1 + (upper ? 1 : 0), kNumPoints - 2);
  }
  const double share = (rows - point_rows(low)) / (point_rows(low + 1) - point_rows(low));
  return {static_cast<size_t>(low), std::max(share, 0.0)};
}

void CostCurve::set(int32_t rows, double seconds) {
  CHECK_GE(rows, 1);
  const Place place = place_of(rows);
  const size_t nearest = place.share < 0.5 ? place.low : place.low + 1;
  // A count between two points stands for the nearer, in proportion.
  raw_[nearest] = std::max(seconds * point_rows(static_cast<int>(nearest)) / rows, 1e-9);
  if (!known_[nearest]) ++num_known_;
  known_[nearest] = true;
  fill();
}

// Draws straight lines between the known points; left of the first the cost is constant, right of
// the last it goes on with the last slope, or in proportion when there is but one point.
void CostCurve::fill() {
  int before = -1;
  for (int idx = 0; idx < kNumPoints; ++idx) {
    if (!known_[static_cast<size_t>(idx)]) continue;
    const double value = raw_[static_cast<size_t>(idx)];
    for (int gap = before + 1; gap < idx; ++gap) {
      double& filled = raw_[static_cast<size_t>(gap)];
      if (before < 0) {
        filled = value;
        continue;
      }
      const double share =
          (point_rows(gap) - point_rows(before)) / (point_rows(idx) - point_rows(before));
      filled = std::lerp(raw_[static_cast<size_t>(before)], value, share);
    }
    before = idx;
  }
  // The slope over the last factor of eight, where there is one: two neighbours say little.
  const double last = raw_[static_cast<size_t>(before)];
  double slope = last / point_rows(before);
  for (int idx = before - 1; idx >= 0; --idx) {
    if (!known_[static_cast<size_t>(idx)]) continue;
    slope = std::max(
        0.0, (last - raw_[static_cast<size_t>(idx)]) / (point_rows(before) - point_rows(idx)));
    if (8 * point_rows(idx) <= point_rows(before)) break;
  }
  for (int idx = before + 1; idx < kNumPoints; ++idx) {
    raw_[static_cast<size_t>(idx)] = last + slope * (point_rows(idx) - point_rows(before));
  }
  refresh();
}

// The rising curve nearest to the points, by how well each is known: neighbours that fall are
// replaced by their mean until none falls.
void CostCurve::refresh() {
  struct Pool {
    double seconds, weight;
    size_t end;
  };
  std::array<Pool, kNumPoints> pools;
  size_t num_pools = 0;
  for (size_t idx = 0; idx < kNumPoints; ++idx) {
    Pool pool{raw_[idx], kCalibrated + seen_[idx], idx + 1};
    while (num_pools > 0 && pools[num_pools - 1].seconds > pool.seconds) {
      const Pool& left = pools[--num_pools];
      const double weight = left.weight + pool.weight;
      pool.seconds = (left.seconds * left.weight + pool.seconds * pool.weight) / weight;
      pool.weight = weight;
    }
    pools[num_pools++] = pool;
  }
  size_t idx = 0;
  for (size_t i = 0; i < num_pools; ++i) {
    while (idx < pools[i].end) seconds_[idx++] = pools[i].seconds;
  }
}

double CostCurve::at(double rows) const {
  const Place place = place_of(rows);
  const double left = seconds_[place.low];
  return left + place.share * (seconds_[place.low + 1] - left);
}

double CostCurve::times_seen(double rows) const {
  const Place place = place_of(rows);
  return std::lerp(seen_[place.low], seen_[place.low + 1], std::min(place.share, 1.0));
}

double CostCurve::hopeful_at(double rows) const {
  return at(rows) * (1 - kDoubt / (1 + times_seen(rows)));
}

double CostCurve::observe(int32_t rows, double seconds, bool speaks_for_others) {
  if (rows < 1 || seconds <= 0) return 0;
  if (!known()) {
    set(rows, seconds);
    return 0;
  }
  const double surprise =
      std::clamp(seconds / std::max(at(rows), 1e-9) - 1, kLeastSurprise, kMostSurprise);
  const Place place = place_of(rows);
  const double share = std::min(place.share, 1.0);
  const std::array<double, 2> weights = {1 - share, share};
  double moved = 0, common = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const size_t idx = place.low + i;
    const double certain =
        !speaks_for_others ? 0 : kCommon * seen_[idx] / (kWellKnown + seen_[idx]);
    const double rate = weights[i] / (kCalibrated + seen_[idx] + weights[i]);
    // The common part comes to this point, too, with everything else.
    raw_[idx] += (1 - certain) * rate * (seconds_[idx] * (1 + surprise) - raw_[idx]);
    moved += weights[i] * (1 - certain) * rate * surprise;
    common += weights[i] * certain * rate * surprise;
    seen_[idx] += weights[i];
  }
  for (size_t idx = 0; idx < kNumPoints && speaks_for_others; ++idx) {
    if (idx == place.low || idx == place.low + 1) continue;
    const double distance =
        static_cast<double>(idx < place.low ? place.low - idx : idx - place.low - 1);
    const double unseen = kCalibrated / (kCalibrated + seen_[idx]);
    raw_[idx] *= 1 + kBeside * moved * unseen / (1 + kFartherOff * (distance - 1));
  }
  refresh();
  return common;
}

void CostCurve::forget_a_little() {
  for (double& seen : seen_) seen *= kFade;
}

void CostCurve::scale(double factor) {
  for (double& seconds : raw_) seconds *= factor;
  for (double& seconds : seconds_) seconds *= factor;
}

}  // namespace eyrie::sched
