// Drafts: how many are verified and proposed, what is kept of them, and that nobody pays for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sched/scheduler.h"
#include "sched/testing.h"

namespace eyrie::sched {
namespace {

using testing::answer;
using testing::complete;
using testing::counting;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::row_sizes;
using testing::sequence;
using testing::step;

SchedulerConfig drafting(int32_t num_speculative_tokens) {
  return {.max_num_seqs = 4,
          .max_num_batched_tokens = 16,
          .max_model_len = 40,
          .block_size = 4,
          .num_blocks = 16,
          .enable_prefix_caching = false,
          .num_speculative_tokens = num_speculative_tokens};
}

// One step of a single sequence in which num_accepted drafts are right and `next` follows.
SequenceEvent accept(Scheduler& scheduler, int32_t num_accepted, TokenId next = 7,
                     TokenId draft = 900) {
  const StepPlan& plan = scheduler.schedule();
  EXPECT_EQ(plan.rows.size(), 1u);
  const RowResult result = answer(plan.rows.at(0), next, num_accepted, draft);
  const auto& events = scheduler.update(plan, {&result, 1});
  return events.empty() ? SequenceEvent{} : events[0];
}

TEST(SchedulerDraftTest, DraftsAreVerifiedInTheStepAfterTheyWereProposed) {
  Scheduler scheduler(drafting(3));
  ASSERT_TRUE(scheduler.add(sequence(1, counting(2))));
  std::string plans = scheduler.schedule().to_string();
  EXPECT_EQ(plans,
            "step 0: 1 rows, 2 tokens\n"
            "  seq 1: 2 tokens at 0, samples, propose 3, tokens [100, 101], blocks [0]\n");
}

TEST(SchedulerDraftTest, AcceptedDraftsAndTheNextTokenAreKeptRejectedOnesAreNot) {
  Scheduler scheduler(drafting(3));
  ASSERT_TRUE(scheduler.add(sequence(1, counting(2))));
  accept(scheduler, 0, 7, /*draft=*/50);
  const StepPlan& plan = scheduler.schedule();
  EXPECT_EQ(plan.to_string(),
            "step 1: 1 rows, 4 tokens\n"
            "  seq 1: 4 tokens at 2 (3 drafts), samples, propose 3, tokens [7, 50, 51, 52], "
            "blocks [0, 1]\n");
  const RowResult result = answer(plan.rows[0], 8, 2, 60);
  const SequenceEvent event = scheduler.update(plan, {&result, 1})[0];
  EXPECT_THAT(event.new_tokens, ElementsAre(50, 51, 8));
  EXPECT_EQ(event.num_draft_tokens, 3);
  EXPECT_EQ(event.num_accepted_tokens, 2);
  EXPECT_EQ(event.num_generated_tokens, 4);
  EXPECT_EQ(scheduler.find(1)->num_computed_tokens, 5);
  EXPECT_EQ(scheduler.schedule().to_string(),
            "step 2: 1 rows, 4 tokens\n"
            "  seq 1: 4 tokens at 5 (3 drafts), samples, propose 3, tokens [8, 60, 61, 62], "
            "blocks [0, 1, 2]\n");
}

TEST(SchedulerDraftTest, ChunkThatDoesNotSampleProposesNothing) {
  Scheduler scheduler(drafting(3));
  ASSERT_TRUE(scheduler.add(sequence(1, counting(20))));
  const StepPlan& plan = scheduler.schedule();
  EXPECT_FALSE(plan.rows[0].samples);
  EXPECT_EQ(plan.rows[0].num_drafts_to_propose, 0);
  EXPECT_EQ(plan.rows[0].next_token, 116);
  EXPECT_THAT(complete(scheduler, plan), IsEmpty());
  EXPECT_EQ(scheduler.schedule().rows[0].num_drafts_to_propose, 3);
}

// The draft writes entries up to position N + k + p - 2.
TEST(SchedulerDraftTest, BlockTableCoversTheSlotsTheDraftWrites) {
  for (int32_t num_prompt = 1; num_prompt <= 9; ++num_prompt) {
    Scheduler scheduler(drafting(6));
    ASSERT_TRUE(scheduler.add(sequence(1, counting(num_prompt))));
    for (const int32_t num_accepted : {0, 0, 6, 3, 1}) {
      const StepPlan& plan = scheduler.schedule();
      const StepRow& row = plan.rows.at(0);
      const int32_t num_slots =
          row.first_position + row.num_tokens + std::max(0, row.num_drafts_to_propose - 1);
      EXPECT_EQ(static_cast<int32_t>(row.block_table.size()), (num_slots + 3) / 4);
      const RowResult result = answer(row, 7, std::min(num_accepted, row.num_draft_tokens));
      scheduler.update(plan, {&result, 1});
    }
  }
}

TEST(SchedulerDraftTest, LookUpDraftsNeedNoSlotsAhead) {
  SchedulerConfig config = drafting(6);
  config.draft_keeps_kv = false;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(4))));
  const StepPlan& plan = scheduler.schedule();
  EXPECT_EQ(plan.rows[0].num_drafts_to_propose, 6);
  EXPECT_EQ(plan.rows[0].block_table.size(), 1u);
}

TEST(SchedulerDraftTest, StopInsideAcceptedDraftsCutsThere) {
  Scheduler scheduler(drafting(6));
  NewSequence added = sequence(1, counting(3), 20);
  added.stop_token_ids = {902};
  ASSERT_TRUE(scheduler.add(std::move(added)));
  accept(scheduler, 0);
  const SequenceEvent event = accept(scheduler, 6);
  EXPECT_THAT(event.new_tokens, ElementsAre(900, 901, 902));
  EXPECT_EQ(event.finish, FinishReason::kStop);
  EXPECT_EQ(event.num_generated_tokens, 4);
  EXPECT_EQ(event.num_accepted_tokens, 6);
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_EQ(scheduler.pool().num_free(), 16);
}

// A cap that the same accepted run would also reach must not win over the stop before it.
TEST(SchedulerDraftTest, StopInsideTheRunWinsOverTheLengthCapBehindIt) {
  Scheduler scheduler(drafting(6));
  NewSequence added = sequence(1, counting(3), 5);
  added.stop_token_ids = {902};
  ASSERT_TRUE(scheduler.add(std::move(added)));
  accept(scheduler, 0);
  const SequenceEvent event = accept(scheduler, 3);
  EXPECT_THAT(event.new_tokens, ElementsAre(900, 901, 902));
  EXPECT_EQ(event.finish, FinishReason::kStop);
}

TEST(SchedulerDraftTest, MinTokensHoldsInsideAcceptedDrafts) {
  Scheduler scheduler(drafting(6));
  NewSequence added = sequence(1, counting(3), 20);
  added.min_tokens = 5;
  added.eos_token_ids = {901, 904};
  ASSERT_TRUE(scheduler.add(std::move(added)));
  accept(scheduler, 0);
  const SequenceEvent event = accept(scheduler, 6);
  EXPECT_THAT(event.new_tokens, ElementsAre(900, 901, 902, 903, 904));
  EXPECT_TRUE(event.stopped_by_eos);
}

TEST(SchedulerDraftTest, NeverMoreDraftsThanTokensThatMayFollow) {
  for (int32_t max_tokens = 1; max_tokens <= 12; ++max_tokens) {
    for (const int32_t num_accepted : {0, 1, 6}) {
      Scheduler scheduler(drafting(6));
      ASSERT_TRUE(scheduler.add(sequence(1, counting(3), max_tokens)));
      int32_t num_generated = 0;
      SequenceEvent event;
      while (scheduler.has_work()) {
        const StepPlan& plan = scheduler.schedule();
        const StepRow& row = plan.rows.at(0);
        EXPECT_LE(row.num_draft_tokens, max_tokens - num_generated - 1);
        EXPECT_LE(row.num_drafts_to_propose, std::max(0, max_tokens - num_generated - 2));
        const RowResult result = answer(row, 7, std::min(num_accepted, row.num_draft_tokens));
        event = scheduler.update(plan, {&result, 1})[0];
        EXPECT_EQ(event.new_tokens.size(), result.sampled.size()) << "nothing is thrown away";
        num_generated += static_cast<int32_t>(event.new_tokens.size());
      }
      EXPECT_EQ(num_generated, max_tokens);
      EXPECT_EQ(event.finish, FinishReason::kLength);
    }
  }
}

TEST(SchedulerDraftTest, ContextEndBoundsPositionsToo) {
  SchedulerConfig config = drafting(6);
  config.num_blocks = 10;  // exactly the context of 40
  for (const int32_t num_accepted : {0, 2, 6}) {
    Scheduler scheduler(config);
    ASSERT_TRUE(scheduler.add(sequence(1, counting(15), 1000)));
    int32_t num_tokens = 15;
    while (scheduler.has_work()) {
      const StepPlan& plan = scheduler.schedule();
      const StepRow& row = plan.rows.at(0);
      const int32_t num_slots =
          row.first_position + row.num_tokens + std::max(0, row.num_drafts_to_propose - 1);
      EXPECT_LE(num_slots, 40);
      EXPECT_LE(row.block_table.size(), 10u);
      const RowResult result = answer(row, 7, std::min(num_accepted, row.num_draft_tokens));
      for (const SequenceEvent& event : scheduler.update(plan, {&result, 1})) {
        num_tokens += static_cast<int32_t>(event.new_tokens.size());
      }
    }
    EXPECT_EQ(num_tokens, 40);
  }
}

TEST(SchedulerDraftTest, DraftsLeaveEveryRunningSequenceItsToken) {
  SchedulerConfig config = drafting(6);
  config.max_num_batched_tokens = 6;
  Scheduler scheduler(config);
  for (SequenceId id = 1; id <= 4; ++id) ASSERT_TRUE(scheduler.add(sequence(id, {1})));
  step(scheduler);
  const StepPlan& plan = scheduler.schedule();
  EXPECT_THAT(row_sizes(plan), ElementsAre(3, 1, 1, 1));
  EXPECT_EQ(plan.rows[0].num_draft_tokens, 2);
  complete(scheduler, plan);
}

TEST(SchedulerDraftTest, DraftsAreTrimmedToTheBlocksThatAreLeft) {
  SchedulerConfig config = drafting(6);
  config.num_blocks = 3;
  config.max_model_len = 13;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(3), 10)));
  const StepPlan& first = scheduler.schedule();
  EXPECT_EQ(first.rows[0].num_drafts_to_propose, 6);
  complete(scheduler, first);
  // 4 known + 6 drafts in 3 blocks: 2 slots stay for the draft's own entries.
  const StepPlan& second = scheduler.schedule();
  EXPECT_EQ(second.rows[0].num_draft_tokens, 6);
  EXPECT_EQ(second.rows[0].num_drafts_to_propose, 3);
}

TEST(SchedulerDraftTest, DraftsAreTrimmedToNoneRatherThanPreempting) {
  SchedulerConfig config = drafting(6);
  config.num_blocks = 4;
  config.max_model_len = 17;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(4))));
  ASSERT_TRUE(scheduler.add(sequence(2, counting(4))));
  step(scheduler);  // the first drafts into a second and a third block, none is left for the other
  std::vector<std::vector<int32_t>> sizes;
  for (int i = 0; i < 4; ++i) {
    const StepPlan& plan = scheduler.schedule();
    sizes.push_back(row_sizes(plan));
    for (const StepRow& row : plan.rows) EXPECT_EQ(row.block_table.size(), 2u);
    complete(scheduler, plan);
  }
  // 8 slots each hold 5 known tokens and at most 3 drafts, 6 and 2, 7 and 1, 8 and none.
  EXPECT_THAT(sizes, ElementsAre(ElementsAre(4, 2), ElementsAre(2, 3), ElementsAre(2, 2),
                                 ElementsAre(1, 1)));
  EXPECT_EQ(scheduler.stats().num_preemptions, 0);
}

TEST(SchedulerDraftTest, BlocksHeldForDraftsAreTakenBackBeforeAnybodyIsPreempted) {
  SchedulerConfig config = drafting(5);
  config.num_blocks = 4;
  config.max_model_len = 17;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, {1})));
  step(scheduler);
  step(scheduler);
  EXPECT_EQ(scheduler.find(1)->blocks.size(), 3) << "drafts use what is free";
  // 8 tokens each fit without preemption, as without drafts.
  ASSERT_TRUE(scheduler.add(sequence(2, counting(3))));
  for (int i = 0; i < 6; ++i) {
    const StepPlan& plan = scheduler.schedule();
    EXPECT_EQ(plan.rows.size(), 2u);
    complete(scheduler, plan);
  }
  EXPECT_EQ(scheduler.find(1)->num_tokens(), 9);
  EXPECT_EQ(scheduler.find(2)->num_tokens(), 9);
  EXPECT_EQ(scheduler.stats().num_preemptions, 0);
}

TEST(SchedulerDraftTest, PreemptionDropsDrafts) {
  SchedulerConfig config = drafting(2);
  config.num_blocks = 4;
  config.max_model_len = 17;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, {1}, 10)));
  ASSERT_TRUE(scheduler.add(sequence(2, {1}, 10)));
  while (scheduler.stats().num_preemptions == 0) step(scheduler);
  EXPECT_THAT(scheduler.find(2)->draft_tokens, IsEmpty());
  while (scheduler.find(1) != nullptr) step(scheduler);
  const StepPlan& plan = scheduler.schedule();
  ASSERT_EQ(plan.rows.size(), 1u);
  EXPECT_EQ(plan.rows[0].first_position, 0);
  EXPECT_EQ(plan.rows[0].num_draft_tokens, 0);
}

TEST(SchedulerDraftTest, DraftLimitActsFromTheNextStepOn) {
  Scheduler scheduler(drafting(6));
  ASSERT_TRUE(scheduler.add(sequence(1, counting(3))));
  step(scheduler);
  scheduler.set_draft_limit(2);
  const StepPlan& plan = scheduler.schedule();
  EXPECT_EQ(plan.rows[0].num_draft_tokens, 2);
  EXPECT_EQ(plan.rows[0].num_drafts_to_propose, 2);
  complete(scheduler, plan);
  scheduler.set_draft_limit(0);
  EXPECT_EQ(scheduler.schedule().rows[0].num_tokens, 1);
}

TEST(SchedulerDraftTest, RunnerMayProposeFewerThanAsked) {
  Scheduler scheduler(drafting(6));
  ASSERT_TRUE(scheduler.add(sequence(1, counting(3))));
  const StepPlan& plan = scheduler.schedule();
  RowResult result = answer(plan.rows[0], 7);
  result.proposed.resize(1);
  scheduler.update(plan, {&result, 1});
  EXPECT_EQ(scheduler.schedule().rows[0].num_draft_tokens, 1);
}

TEST(SchedulerDraftDeathTest, AcceptedTokenThatWasNotTheDraftIsABug) {
  Scheduler scheduler(drafting(2));
  ASSERT_TRUE(scheduler.add(sequence(1, counting(3))));
  step(scheduler);
  const StepPlan& plan = scheduler.schedule();
  RowResult result = answer(plan.rows[0], 7, 1);
  result.sampled[0] = 5;
  EXPECT_DEATH(scheduler.update(plan, {&result, 1}), "not the draft");
}

// A policy that gives each sequence its own number, and is told what became of them.
class OddDrafts final : public DraftPolicy {
 public:
  void choose(std::span<DraftSeat> seats) override {
    known.clear();
    for (size_t i = 0; i < seats.size(); ++i) {
      seats[i].num_drafts = std::min(seats[i].max_drafts, i % 2 == 0 ? 2 : 0);
      known.push_back(seats[i].num_known);
      behind.push_back(seats[i].record->num_behind);
    }
  }
  bool follows_always() const override { return false; }
  void note_verified(DraftRecord&, int32_t num_drafts, int32_t num_accepted) override {
    verified.emplace_back(num_drafts, num_accepted);
  }
  void note_finished(int32_t num_generated) override { finished.push_back(num_generated); }
  void note_step(const StepTimes&, int32_t, bool) override {}

  std::vector<int32_t> known, behind, finished;
  std::vector<std::pair<int32_t, int32_t>> verified;
};

TEST(SchedulerDraftTest, APolicyGivesEachSequenceItsOwnNumber) {
  Scheduler scheduler(drafting(3));
  OddDrafts policy;
  scheduler.set_draft_policy(&policy);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(2), 4)));
  ASSERT_TRUE(scheduler.add(sequence(2, counting(3), 10)));
  ASSERT_TRUE(scheduler.add(sequence(3, counting(30), 10)));
  EXPECT_EQ(scheduler.schedule().to_string(),
            "step 0: 3 rows, 16 tokens\n"
            "  seq 1: 2 tokens at 0, samples, propose 2, tokens [100, 101], blocks [0]\n"
            "  seq 2: 3 tokens at 0, samples, draft waits, tokens [100, 101, 102], blocks [1]\n"
            "  seq 3: 11 tokens at 0, draft waits, tokens [100, 101, 102, 103, 104, 105, 106, 107, "
            "108, 109, 110] then 111, blocks [2, 3, 4, 5, 6, 7, 8, 9]\n");
  EXPECT_THAT(policy.known, ElementsAre(2, 3));
}

TEST(SchedulerDraftTest, APolicyIsToldWhatBecameOfTheDrafts) {
  Scheduler scheduler(drafting(3));
  OddDrafts policy;
  scheduler.set_draft_policy(&policy);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(2), 5)));
  ASSERT_TRUE(scheduler.add(sequence(2, counting(3), 5)));
  while (scheduler.has_work()) {
    const StepPlan& plan = scheduler.schedule();
    std::vector<RowResult> results;
    for (const StepRow& row : plan.rows) {
      EXPECT_TRUE(row.draft_waits == (row.num_drafts_to_propose == 0));
      results.push_back(answer(row, 7, std::min(row.num_draft_tokens, 1)));
    }
    scheduler.update(plan, results);
  }
  EXPECT_THAT(policy.verified, ElementsAre(std::pair(2, 1), std::pair(1, 1)));
  EXPECT_THAT(policy.finished, ElementsAre(5, 5));
  // Pairs of both sequences: the draft of the second falls behind. When the first is gone the
  // second takes its place, too near its end for a draft.
  EXPECT_THAT(policy.behind, ElementsAre(0, 0, 0, 3, 0, 4, 5, 6));
}

}  // namespace
}  // namespace eyrie::sched
