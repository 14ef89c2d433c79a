#include "sched/step_costs.h"

namespace eyrie::sched {
namespace {

// A step that is not settled is dearer than others of its shape: it only tells of costs that are
// far from what was thought.
constexpr double kFarLess = 0.7;

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

void StepCosts::observe(const StepTimes& times, bool only_decoding, bool settled) {
  double common = 0;
  for_each_part(times, [&](CostCurve& curve, int32_t rows, double seconds) {
    if (!settled && seconds > kFarLess * curve.at(rows)) return;
    const double told = curve.observe(rows, seconds, only_decoding);
    if (&curve == &forward) common = told;
  });
  for (CostCurve* curve : {&forward, &head, &follow, &guess, &chain, &other}) {
    curve->scale(1 + common);
    curve->forget_a_little();
  }
}

}  // namespace eyrie::sched
