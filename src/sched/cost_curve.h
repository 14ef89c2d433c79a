// Seconds that a pass over n rows takes, as measured: values at fixed row counts (powers of two and
// half-way between), straight lines in between, the last slope beyond. More rows never cost less: a
// noisy point must not make the rows behind it look free. set() is for calibration,
// observe() follows the machine while it runs: each measurement moves the two nearest points a
// little, and never far, since a pass may have waited for a busy core.
#pragma once

#include <array>
#include <cstdint>

namespace eyrie::sched {

class CostCurve {
 public:
  bool known() const { return num_known_ > 0; }
  void set(int32_t rows, double seconds);
  void observe(int32_t rows, double seconds);
  // 0 while nothing is known; rows may be a mean of counts.
  double at(double rows) const;
  // measured / expected - 1, bounded; 0 while nothing is known.
  double surprise(int32_t rows, double seconds) const;
  void scale(double factor);

 private:
  // 1 2 3 4 6 8 12 16 … 65536
  static constexpr int kNumPoints = 32;
  static double point_rows(int idx);
  static int interval_of(double rows);  // idx with point_rows(idx) <= rows < point_rows(idx + 1)
  void fill();
  void keep_rising(int around);

  std::array<double, kNumPoints> seconds_{};  // the known, and the lines through them
  std::array<bool, kNumPoints> known_{};
  int num_known_ = 0;
};

}  // namespace eyrie::sched
