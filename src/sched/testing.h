// For tests of this room and the simulation: sequences in one line, and a fake model that answers a
// plan. The fake model is a pure function of what a sequence holds, so its output must not depend
// on how the scheduler cut the work.
#pragma once

#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "sched/draft_policy.h"
#include "sched/scheduler.h"

namespace eyrie::sched::testing {

inline std::vector<TokenId> counting(int32_t num_tokens, TokenId first = 100) {
  std::vector<TokenId> tokens(static_cast<size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline NewSequence sequence(SequenceId seq_id, std::vector<TokenId> prompt,
                            int32_t max_tokens = 1000) {
  NewSequence sequence;
  sequence.seq_id = seq_id;
  sequence.prompt = std::move(prompt);
  sequence.max_tokens = max_tokens;
  return sequence;
}

// What a row that samples produces: of its drafts the first num_accepted, then the token `next`;
// the proposed drafts are draft, draft + 1, …
inline RowResult answer(const StepRow& row, TokenId next, int32_t num_accepted = 0,
                        TokenId draft = 900) {
  RowResult result{.seq_id = row.seq_id, .sampled = {}, .proposed = {}};
  if (!row.samples) return result;
  const auto drafts = row.tokens.end() - row.num_draft_tokens;
  result.sampled.assign(drafts, drafts + num_accepted);
  result.sampled.push_back(next);
  result.proposed = counting(row.num_drafts_to_propose, draft);
  return result;
}

// Answers every row of the plan in flight with the same token and no accepted draft.
inline const std::vector<SequenceEvent>& complete(Scheduler& scheduler, const StepPlan& plan,
                                                  TokenId next = 7) {
  std::vector<RowResult> results;
  for (const StepRow& row : plan.rows) results.push_back(answer(row, next));
  return scheduler.update(plan, results);
}

inline const std::vector<SequenceEvent>& step(Scheduler& scheduler, TokenId next = 7) {
  return complete(scheduler, scheduler.schedule(), next);
}

// Any number of drafts for any sequence, any time: whatever a policy says, the text must not
// change.
class RandomDrafts final : public DraftPolicy {
 public:
  explicit RandomDrafts(uint64_t seed) : random_(seed) {}

  void choose(std::span<DraftSeat> seats) override {
    // Pauses of many steps too, for all or for one.
    if (random_() % 8 == 0) paused_ = !paused_;
    for (DraftSeat& seat : seats) {
      const bool none = paused_ || random_() % 3 == 0;
      seat.num_drafts =
          none ? 0 : static_cast<int32_t>(random_() % (static_cast<uint64_t>(seat.max_drafts) + 1));
    }
  }
  bool follows_always() const override { return false; }
  void note_verified(DraftRecord&, int32_t, int32_t) override {}
  void note_finished(int32_t) override {}
  void note_step(const StepTimes&, int32_t, bool) override {}

 private:
  std::mt19937_64 random_;
  bool paused_ = false;
};

inline std::vector<SequenceId> row_ids(const StepPlan& plan) {
  std::vector<SequenceId> ids;
  for (const StepRow& row : plan.rows) ids.push_back(row.seq_id);
  return ids;
}

inline std::vector<int32_t> row_sizes(const StepPlan& plan) {
  std::vector<int32_t> sizes;
  for (const StepRow& row : plan.rows) sizes.push_back(row.num_tokens);
  return sizes;
}

}  // namespace eyrie::sched::testing
