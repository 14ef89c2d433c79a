// What can honestly be said about a sweep beside a published table. Speedups are compared, never
// tok/s: another machine and another model give other speeds, but a draft that pays there should
// pay here. Absolute figures are judged only when the user says that this is the same hardware.
#pragma once

#include <string>
#include <vector>

#include "bench/reference.h"
#include "bench/sweep_result.h"

namespace eyrie::bench {

enum class Outcome { kMet, kNotMet, kNotRun, kNotCompared };
const char* outcome_word(Outcome outcome);

struct Verdict {
  Outcome outcome = Outcome::kNotRun;
  std::string criterion;
  std::string detail;
};

struct VerdictOptions {
  double noise = 0.03;         // relative; two figures closer than this are called equal
  bool same_hardware = false;  // then absolute figures are judged too
};

std::vector<Verdict> judge(const Reference& reference, const SweepResult& result,
                           const VerdictOptions& options);

// What to check when a figure is low: each setting of the published run and what was in effect.
std::vector<std::string> settings_in_effect(const Reference& reference, const SweepResult& result,
                                            size_t config_idx);

}  // namespace eyrie::bench
