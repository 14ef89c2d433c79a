// How many drafts each sequence should get: the one question the scheduler asks of whoever sizes
// speculation, once a step, and what it tells in return. Without a policy every sequence gets as
// many as the scheduler's limit allows. Engine thread only; a policy has no clock: durations are
// given to it, in seconds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace eyrie::sched {

// Where a step's time went. The engine passes on what the runner measured.
struct StepTimes {
  int32_t num_rows = 0;        // of the target's forward
  double forward_seconds = 0;  // target, all layers
  int32_t num_logits = 0;      // rows that were sampled or verified
  double head_seconds = 0;     // their logits and the sampling
  int32_t num_followed = 0;    // entries the draft model took in from true features
  double follow_seconds = 0;
  struct DraftPass {  // one for each depth of the chains
    int32_t num_rows = 0;
    double forward_seconds = 0;  // 0 in the first pass: its forward is the following
    double guess_seconds = 0;    // logits and choice of the draft token
  };
  std::vector<DraftPass> passes;
  int32_t num_sequences = 0;  // that sampled
  // Of the time since the last step ended, all that is not above: schedule, update, publish; 0
  // when there was nothing to do in between.
  double other_seconds = 0;
  // False where later steps of this shape will not do what this one did (a GPU's first steps of a
  // shape are recorded): it took its time, but no costs are learnt from it.
  bool is_typical = true;

  void clear() {
    passes.clear();
    num_rows = num_logits = num_followed = num_sequences = 0;
    forward_seconds = head_seconds = follow_seconds = other_seconds = 0;
    is_typical = true;
  }
  double total_seconds() const {
    double total = forward_seconds + head_seconds + follow_seconds + other_seconds;
    for (const DraftPass& pass : passes) total += pass.forward_seconds + pass.guess_seconds;
    return total;
  }
};

// What the drafts of one sequence were worth so far; lives with the sequence.
struct DraftRecord {
  std::vector<float> tried, accepted;  // by position in the draft, fading; empty: nothing yet
  int32_t num_behind = 0;              // positions the draft model has not taken in
  int32_t num_trial_steps = 0;         // for so many more steps the policy tries something out
};

// A sequence that samples in the step being planned, and wants to know how many drafts to propose
// after it.
struct DraftSeat {
  DraftRecord* record = nullptr;
  int32_t max_drafts = 0;     // what K, max_tokens and the context allow
  int32_t num_known = 1;      // positions this step computes for it, drafts not counted
  int32_t num_remaining = 1;  // tokens it may still generate
  int32_t num_drafts = 0;     // the answer, 0..max_drafts
};

class DraftPolicy {
 public:
  virtual ~DraftPolicy() = default;

  // Answers every seat.
  virtual void choose(std::span<DraftSeat> seats) = 0;
  // Whether the draft model takes positions in at once when it proposes nothing after them.
  virtual bool follows_always() const = 0;
  // A sequence verified drafts.
  virtual void note_verified(DraftRecord& record, int32_t num_drafts, int32_t num_accepted) = 0;
  virtual void note_finished(int32_t num_generated) = 0;
  // The step is over: it brought num_tokens, and was it decoding only?
  virtual void note_step(const StepTimes& times, int32_t num_tokens, bool only_decoding) = 0;
};

}  // namespace eyrie::sched
