// What the engine gives the scheduler and what it gets back, as plain values. Text, streams,
// sampling parameters and clocks are the engine's; the scheduler sees token ids only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sched/step_plan.h"

namespace eyrie::sched {

// A sequence ends when its last tokens are min_count times the same pattern of min_pattern_size to
// max_pattern_size tokens (vLLM's repetition_detection). Off with max_pattern_size 0.
struct RepetitionLimit {
  int32_t max_pattern_size = 0;
  int32_t min_pattern_size = 1;
  int32_t min_count = 2;  // at least 2
};

struct NewSequence {
  SequenceId seq_id = 0;        // never used twice
  std::vector<TokenId> prompt;  // at least one token
  int32_t max_tokens = 16;      // generated tokens, at least one
  int32_t min_tokens = 0;       // stop tokens do not end it before (the sampler masks them)
  bool ignore_eos = false;      // eos_token_ids do not end it; stop_token_ids still do
  std::vector<TokenId> eos_token_ids;
  std::vector<TokenId> stop_token_ids;
  int32_t priority = 0;            // lower is served first; equal ones in order of arrival
  RepetitionLimit repetition;      // off unless given
  std::string cache_salt;          // prefix cache is shared among equal salts only
  bool skip_prefix_cache = false;  // must compute its whole prompt (prompt logprobs)
};

enum class FinishReason {
  kNone,        // still going
  kStop,        // an end or stop token, or (said by the engine) a stop string
  kLength,      // max_tokens or the context is used up
  kAbort,       // said by the engine after abort(); the scheduler emits no event for it
  kRepetition,  // RepetitionLimit
};

// One per row that sampled; in the order of the plan's rows.
struct SequenceEvent {
  SequenceId seq_id = 0;
  std::vector<TokenId> new_tokens;  // cut after the token that ended the sequence, which is kept
  FinishReason finish = FinishReason::kNone;
  TokenId stop_token = -1;      // with kStop: the token, last of new_tokens
  bool stopped_by_eos = false;  // with kStop: it is one of eos_token_ids
  bool is_first = false;        // the sequence's first tokens
  int32_t num_prompt_tokens = 0;
  int32_t num_generated_tokens = 0;  // new_tokens included
  int32_t num_cached_tokens = 0;     // of the prompt, found in the prefix cache at first admission
  int32_t num_preemptions = 0;       // of this sequence so far
  int32_t num_draft_tokens = 0;      // verified in this step, and how many of them were right
  int32_t num_accepted_tokens = 0;   // (before the cut: what the model did, not what the user gets)
};

}  // namespace eyrie::sched
