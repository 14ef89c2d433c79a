// Measures, before anything is served, what steps of different shapes cost on this machine: the
// sizer of drafts starts from these. A few dozen steps on the runner itself, within a budget of
// time; what is left in the cache and its blocks is overwritten by whoever is given them.
#pragma once

#include "runtime/runner.h"
#include "sched/step_costs.h"

namespace eyrie::runtime {

struct StepCalibration {
  int32_t num_speculative_tokens = 1;
  int32_t max_num_seqs = 256;
  double max_seconds = 0.5;  // begun steps are finished
};

sched::StepCosts calibrate_steps(Runner& runner, const StepCalibration& calibration);

}  // namespace eyrie::runtime
