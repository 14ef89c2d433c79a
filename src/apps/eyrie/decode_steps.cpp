#include "apps/eyrie/decode_steps.h"

#include <numeric>

namespace eyrie::apps {

double DecodeSteps::total_seconds() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

double DecodeSteps::tokens_per_sequence(int32_t num_sequences) const {
  if (seconds.empty()) return 0;
  return static_cast<double>(num_tokens) / static_cast<double>(seconds.size()) / num_sequences;
}

DecodeSteps decode_steps(const LocalRun& run) {
  DecodeSteps steps;
  int64_t num_before = 0;
  double last_end = -1;  // of the step before, once all sequences decode
  for (const EngineTurn& turn : run.turns) {
    if (turn.num_finished > 0) break;
    if (last_end >= 0 && turn.num_tokens > 0) {
      steps.seconds.push_back(turn.end - last_end);
      steps.target_seconds.push_back(turn.target_seconds);
      steps.draft_seconds.push_back(turn.draft_seconds);
      steps.num_tokens += turn.num_tokens;
      last_end = turn.end;
    } else if (last_end < 0) {
      num_before += turn.num_tokens;
      if (turn.num_started == run.num_sequences) last_end = turn.end;
    }
  }
  if (run.num_sequences > 0) {
    steps.mean_progress =
        (static_cast<double>(num_before) + static_cast<double>(steps.num_tokens) / 2) /
        run.num_sequences;
  }
  return steps;
}

}  // namespace eyrie::apps
