// What a step costs on this machine, by its shape. Calibrated once at start, then it follows what
// the steps really took. A machine that slows down (a neighbour, its clock) does so for every
// shape: what the target's forward tells of that goes to all curves, so that shapes not in use do
// not look cheap by comparison.
//
//   target   forward(rows)   all layers          head(rows)    logits and sampling of rows
//   draft    follow(rows)    true features in    guess(rows)   logits and choice of a draft token
//            chain(rows)     a pass on its own output
//   other(sequences)         all the rest of the time from step to step
#pragma once

#include "sched/cost_curve.h"
#include "sched/draft_policy.h"

namespace eyrie::sched {

struct StepCosts {
  CostCurve forward, head, follow, guess, chain, other;

  // A measurement of the calibration: sets what it shows.
  void set(const StepTimes& times);
  // Of a step that served. One with prompts says nothing about other shapes; one that is not
  // settled was not preceded by steps of its kind.
  void observe(const StepTimes& times, bool only_decoding = true, bool settled = true);

 private:
  template <typename Fn>
  void for_each_part(const StepTimes& times, Fn fn);
};

}  // namespace eyrie::sched
