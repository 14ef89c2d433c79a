// The decoding part of a run: the turns in which every sequence decodes, from after the last
// sequence's first token to before the first sequence's last. Pure functions of the turns.
#pragma once

#include <vector>

#include "apps/eyrie/local_engine.h"

namespace eyrie::apps {

struct DecodeSteps {
  std::vector<double> seconds;                        // of each step, the time around it included
  std::vector<double> target_seconds, draft_seconds;  // parts of them
  int64_t num_tokens = 0;                             // that they brought, of all sequences
  // Tokens of a sequence's answer before the middle of these steps, on average.
  double mean_progress = 0;

  double total_seconds() const;
  double tokens_per_sequence(int32_t num_sequences) const;  // and step
};

DecodeSteps decode_steps(const LocalRun& run);

}  // namespace eyrie::apps
