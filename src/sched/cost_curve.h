// Seconds that a pass over n rows takes, as measured: values at fixed row counts (powers of two and
// half-way between), straight lines in between, the last slope beyond. set() is for the
// calibration, observe() for the steps that serve.
//
// Every point knows how often it was seen in service. The first time replaces most of what the
// calibration said, later ones a share that shrinks to a few per cent; what is not seen for a while
// is less and less certain, so the next measurement counts more. Points not seen go part of the way
// with neighbours that are. Of noisy points those seen more often win where more rows seem to cost
// less.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace eyrie::sched {

class CostCurve {
 public:
  bool known() const { return num_known_ > 0; }
  void set(int32_t rows, double seconds);
  // Returns how much dearer (as a share) everything has become, as far as this tells: a shape that
  // is well known speaks for the machine, one that is not speaks for itself.
  // Unless it speaks for others only its own points learn of it.
  double observe(int32_t rows, double seconds, bool speaks_for_others = true);
  void forget_a_little();
  void scale(double factor);

  // 0 while nothing is known; rows may be a mean of counts.
  double at(double rows) const;
  // In service, of late.
  double times_seen(double rows) const;
  // What it may cost at best, as it is known only so well.
  double hopeful_at(double rows) const;

 private:
  // 1 2 3 4 6 8 12 16 … 65536
  static constexpr int kNumPoints = 32;
  struct Place {
    size_t low;    // between this point
    double share;  // and, so far from it, the next
  };
  static double point_rows(int idx);
  static Place place_of(double rows);
  void fill();
  void refresh();

  std::array<double, kNumPoints> raw_{};      // as measured, and lines through the calibration
  std::array<double, kNumPoints> seconds_{};  // the same, never falling
  std::array<double, kNumPoints> seen_{};     // how often, fading
  std::array<bool, kNumPoints> known_{};      // from the calibration
  int num_known_ = 0;
};

}  // namespace eyrie::sched
