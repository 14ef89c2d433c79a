// What a step costs on this machine, by its shape. Calibrated once at start, then it follows what
// the steps really took.
//
//   target   forward(rows)   all layers          head(rows)    logits and sampling of rows
//   draft    follow(rows)    true features in    guess(rows)   logits and choice of a draft token
//            chain(rows)     a pass on its own output
//   other(sequences)         schedule, update, publish
#pragma once

#include "sched/cost_curve.h"
#include "sched/draft_policy.h"

namespace eyrie::sched {

struct StepCosts {
  CostCurve forward, head, follow, guess, chain, other;

  // A measurement of the calibration: sets what it shows.
  void set(const StepTimes& times);
  // Of a step that served: moves the curves a little.
  void observe(const StepTimes& times);

 private:
  template <typename Fn>
  void for_each_part(const StepTimes& times, Fn fn);
};

}  // namespace eyrie::sched
