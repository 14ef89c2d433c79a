#include "sched/step_costs.h"

namespace eyrie::sched {
namespace {

// A machine that slows down (a neighbour, its clock) does so for every shape: this part of a step's
// surprise goes to all curves, so that shapes not in use do not look cheap by comparison.
constexpr double kDriftRate = 0.05;

}  // namespace

template <typename Fn>
void StepCosts::for_each_part(const StepTimes& times, Fn fn) {
  fn(forward, times.num_rows, times.forward_seconds);
  fn(head, times.num_logits, times.head_seconds);
  fn(follow, times.num_followed, times.follow_seconds);
  for (size_t i = 0; i < times.passes.size(); ++i) {
    const StepTimes::DraftPass& pass = times.passes[i];
    fn(guess, pass.num_rows, pass.guess_seconds);
    if (i > 0) fn(chain, pass.num_rows, pass.forward_seconds);
  }
  fn(other, times.num_sequences, times.other_seconds);
}

void StepCosts::set(const StepTimes& times) {
  for_each_part(times, [](CostCurve& curve, int32_t rows, double seconds) {
    if (rows > 0 && seconds > 0) curve.set(rows, seconds);
  });
}

void StepCosts::observe(const StepTimes& times) {
  const double factor = 1 + kDriftRate * forward.surprise(times.num_rows, times.forward_seconds);
  for (CostCurve* curve : {&forward, &head, &follow, &guess, &chain, &other}) {
    curve->scale(factor);
  }
  for_each_part(
      times, [](CostCurve& curve, int32_t rows, double seconds) { curve.observe(rows, seconds); });
}

}  // namespace eyrie::sched
