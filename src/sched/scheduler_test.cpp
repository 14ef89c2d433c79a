// Budget, order, blocks and endings, without drafts and without a prefix cache.
#include "sched/scheduler.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sched/testing.h"

namespace eyrie::sched {
namespace {

using testing::complete;
using testing::counting;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::row_ids;
using testing::row_sizes;
using testing::sequence;
using testing::step;

SchedulerConfig small() {
  return {.max_num_seqs = 4,
          .max_num_batched_tokens = 16,
          .max_model_len = 40,
          .block_size = 4,
          .num_blocks = 16,
          .enable_prefix_caching = false};
}

TEST(SchedulerTest, IdleSchedulerPlansNothing) {
  Scheduler scheduler(small());
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_TRUE(scheduler.schedule().empty());
  EXPECT_TRUE(scheduler.schedule().empty());
  EXPECT_THAT(step(scheduler), IsEmpty());
}

TEST(SchedulerTest, OneTokenPromptSamplesInItsFirstStep) {
  Scheduler scheduler(small());
  ASSERT_TRUE(scheduler.add(sequence(1, {42}, 2)));
  const StepPlan& first = scheduler.schedule();
  EXPECT_EQ(first.to_string(),
            "step 0: 1 rows, 1 tokens\n"
            "  seq 1: 1 tokens at 0, samples, tokens [42], blocks [0]\n");
  complete(scheduler, first, 5);
  const StepPlan& second = scheduler.schedule();
  EXPECT_EQ(second.to_string(),
            "step 1: 1 rows, 1 tokens\n"
            "  seq 1: 1 tokens at 1, samples, tokens [5], blocks [0]\n");
  const auto& events = complete(scheduler, second, 6);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finish, FinishReason::kLength);
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_EQ(scheduler.pool().num_free(), 16);
}

TEST(SchedulerTest, PromptIsComputedInChunksOfTheBudget) {
  Scheduler scheduler(small());
  ASSERT_TRUE(scheduler.add(sequence(1, counting(35))));
  std::string plans;
  for (int i = 0; i < 4; ++i) {
    const StepPlan& plan = scheduler.schedule();
    ASSERT_EQ(plan.rows.size(), 1u);
    const StepRow& row = plan.rows[0];
    plans += fmt::format("{}+{}{} then {}; ", row.first_position, row.num_tokens,
                         row.samples ? " samples" : "", row.next_token);
    EXPECT_EQ(row.tokens.front(), i < 3 ? 100 + row.first_position : 7);
    EXPECT_EQ(complete(scheduler, plan).size(), row.samples ? 1u : 0u);
  }
  EXPECT_EQ(plans, "0+16 then 116; 16+16 then 132; 32+3 samples then -1; 35+1 samples then -1; ");
}

TEST(SchedulerTest, BudgetOfOneStillFinishesEverything) {
  SchedulerConfig config = small();
  config.max_num_batched_tokens = 1;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(5), 3)));
  ASSERT_TRUE(scheduler.add(sequence(2, counting(1), 2)));
  int num_steps = 0;
  while (scheduler.has_work()) {
    const StepPlan& plan = scheduler.schedule();
    ASSERT_EQ(plan.num_tokens, 1);
    complete(scheduler, plan);
    ASSERT_LE(++num_steps, 9);
  }
  EXPECT_EQ(num_steps, 7 + 2);  // positions computed: 5 + 3 - 1 and 1 + 2 - 1
}

TEST(SchedulerTest, DecodingComesFirstAndAPromptTakesTheRest) {
  Scheduler scheduler(small());
  ASSERT_TRUE(scheduler.add(sequence(1, counting(3))));
  ASSERT_TRUE(scheduler.add(sequence(2, counting(2))));
  step(scheduler);
  ASSERT_TRUE(scheduler.add(sequence(3, counting(30))));
  ASSERT_TRUE(scheduler.add(sequence(4, counting(2))));
  EXPECT_EQ(scheduler.schedule().to_string(),
            "step 1: 3 rows, 16 tokens\n"
            "  seq 1: 1 tokens at 3, samples, tokens [7], blocks [0]\n"
            "  seq 2: 1 tokens at 2, samples, tokens [7], blocks [1]\n"
            "  seq 3: 14 tokens at 0, tokens [100, 101, 102, 103, 104, 105, 106, 107, 108, 109, "
            "110, 111, 112, 113] then 114, blocks [2, 3, 4, 5, 6, 7, 8, 9]\n");
}

TEST(SchedulerTest, ThresholdLetsShortPromptsPassALongOne) {
  SchedulerConfig config = small();
  config.long_prefill_token_threshold = 6;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(30))));
  ASSERT_TRUE(scheduler.add(sequence(2, counting(5))));
  const StepPlan& plan = scheduler.schedule();
  EXPECT_THAT(row_sizes(plan), ElementsAre(6, 5));
  EXPECT_FALSE(plan.rows[0].samples);
  EXPECT_TRUE(plan.rows[1].samples);
  complete(scheduler, plan);
}

TEST(SchedulerTest, AtMostMaxNumSeqsRun) {
  SchedulerConfig config = small();
  config.max_num_seqs = 2;
  Scheduler scheduler(config);
  for (SequenceId id = 1; id <= 3; ++id) ASSERT_TRUE(scheduler.add(sequence(id, {1}, 2)));
  EXPECT_EQ(step(scheduler).size(), 2u);
  EXPECT_EQ(scheduler.stats().num_running, 2);
  EXPECT_EQ(scheduler.stats().num_waiting, 1);
  EXPECT_EQ(step(scheduler).size(), 2u);  // both end here
  EXPECT_EQ(step(scheduler).size(), 1u);
  EXPECT_EQ(scheduler.stats().num_running, 1);
}

TEST(SchedulerTest, FullWaitingQueueRefuses) {
  SchedulerConfig config = small();
  config.max_waiting = 2;
  Scheduler scheduler(config);
  EXPECT_TRUE(scheduler.add(sequence(1, {1})));
  EXPECT_TRUE(scheduler.add(sequence(2, {1})));
  EXPECT_FALSE(scheduler.add(sequence(3, {1})));
  EXPECT_EQ(scheduler.num_sequences(), 2);
  step(scheduler);
  EXPECT_TRUE(scheduler.add(sequence(3, {1})));
}

TEST(SchedulerTest, RefusesWhatCanNeverFinish) {
  Scheduler scheduler(small());  // 64 slots, context 40
  EXPECT_FALSE(scheduler.fits(0, 1));
  EXPECT_FALSE(scheduler.fits(1, 0));
  EXPECT_TRUE(scheduler.fits(39, 1));
  EXPECT_TRUE(scheduler.fits(39, 1000)) << "ends with kLength at the context's end";
  EXPECT_FALSE(scheduler.fits(40, 1));
  EXPECT_FALSE(scheduler.add(sequence(1, counting(40))));
  EXPECT_FALSE(scheduler.has_work());

  SchedulerConfig config = small();
  config.num_blocks = 2;  // 8 slots: 9 tokens, the last of which is never computed
  Scheduler tight(config);
  EXPECT_TRUE(tight.fits(6, 3));
  EXPECT_FALSE(tight.fits(6, 4));
  EXPECT_FALSE(tight.fits(9, 1));
}

TEST(SchedulerTest, SequenceThatFillsThePoolExactlyFinishes) {
  SchedulerConfig config = small();
  config.num_blocks = 2;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(6), 3)));
  int num_tokens = 0;
  while (scheduler.has_work()) num_tokens += static_cast<int>(step(scheduler).size());
  EXPECT_EQ(num_tokens, 3);
  EXPECT_EQ(scheduler.stats().num_preemptions, 0);
}

TEST(SchedulerTest, BlockIsTakenWhenTheBoundaryIsCrossedNotBefore) {
  Scheduler scheduler(small());
  ASSERT_TRUE(scheduler.add(sequence(1, counting(4))));  // exactly one block
  std::vector<size_t> num_blocks;
  for (int i = 0; i < 6; ++i) {
    const StepPlan& plan = scheduler.schedule();
    num_blocks.push_back(plan.rows[0].block_table.size());
    complete(scheduler, plan);
  }
  EXPECT_THAT(num_blocks, ElementsAre(1, 2, 2, 2, 2, 3));
}

TEST(SchedulerTest, AdmissionWaitsForBlocksOfTheWholePrompt) {
  SchedulerConfig config = small();
  config.max_num_batched_tokens = 8;
  config.num_blocks = 10;
  for (const bool reserve : {true, false}) {
    config.reserve_full_prompt = reserve;
    Scheduler scheduler(config);
    ASSERT_TRUE(scheduler.add(sequence(1, counting(7), 30)));
    step(scheduler);
    ASSERT_TRUE(scheduler.add(sequence(2, counting(32), 2)));  // 8 of the 8 blocks that are left
    EXPECT_THAT(row_ids(scheduler.schedule()),
                reserve ? ::testing::Matcher<std::vector<SequenceId>>(ElementsAre(1))
                        : ::testing::Matcher<std::vector<SequenceId>>(ElementsAre(1, 2)));
  }
}

TEST(SchedulerTest, NobodyOvertakesTheFirstInTheQueue) {
  SchedulerConfig config = small();
  config.num_blocks = 10;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(7), 30)));
  step(scheduler);
  ASSERT_TRUE(scheduler.add(sequence(2, counting(32), 2)));
  ASSERT_TRUE(scheduler.add(sequence(3, counting(1), 2)));
  EXPECT_THAT(row_ids(scheduler.schedule()), ElementsAre(1));
}

TEST(SchedulerTest, PreemptsNewestWhenBlocksRunOut) {
  SchedulerConfig config = small();
  config.num_blocks = 4;
  config.max_model_len = 17;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(4, 100))));
  ASSERT_TRUE(scheduler.add(sequence(2, counting(4, 200))));
  step(scheduler);                              // 1 block each
  for (int i = 0; i < 4; ++i) step(scheduler);  // 2 blocks each, 4 generated + 1
  EXPECT_EQ(scheduler.stats().kv_usage, 1.0);
  EXPECT_EQ(scheduler.schedule().to_string(),
            "step 5: 1 rows, 1 tokens, preempted [2]\n"
            "  seq 1: 1 tokens at 8, samples, tokens [7], blocks [0, 2, 1]\n");
  EXPECT_EQ(scheduler.stats().num_preemptions, 1);
  EXPECT_EQ(scheduler.stats().num_waiting, 1);
  EXPECT_EQ(scheduler.find(2)->num_computed_tokens, 0);
}

TEST(SchedulerTest, PreemptedSequenceRecomputesPromptAndOutput) {
  SchedulerConfig config = small();
  config.num_blocks = 4;
  config.max_model_len = 17;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(4, 100), 7)));
  ASSERT_TRUE(scheduler.add(sequence(2, counting(4, 200), 7)));
  for (TokenId token = 0; token < 5; ++token) step(scheduler, token);
  step(scheduler, 5);  // 2 is preempted here
  step(scheduler, 6);  // 1 ends with its 7th token
  const StepPlan& plan = scheduler.schedule();
  EXPECT_EQ(plan.to_string(),
            "step 7: 1 rows, 9 tokens\n"
            "  seq 2: 9 tokens at 0, samples, tokens [200, 201, 202, 203, 0, 1, 2, 3, 4], "
            "blocks [0, 2, 1]\n");
  const auto& events = complete(scheduler, plan, 5);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_THAT(events[0].new_tokens, ElementsAre(5));
  EXPECT_FALSE(events[0].is_first);
  EXPECT_EQ(events[0].num_preemptions, 1);
  EXPECT_EQ(events[0].num_generated_tokens, 6);
}

TEST(SchedulerTest, SequenceThatIsItselfTheNewestIsPreempted) {
  SchedulerConfig config = small();
  config.num_blocks = 5;
  config.max_model_len = 21;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(6, 100))));  // has slots left when 2 has not
  ASSERT_TRUE(scheduler.add(sequence(2, counting(8, 200))));
  step(scheduler);
  for (int i = 0; i < 3; ++i) step(scheduler);
  // 1 took its third block, 2 too; nobody has a fourth yet: 2 + 3 blocks at most.
  EXPECT_EQ(scheduler.stats().num_preemptions, 1);
  EXPECT_EQ(scheduler.find(2)->num_preemptions, 1);
  EXPECT_EQ(scheduler.find(1)->num_preemptions, 0);
}

TEST(SchedulerTest, LowestPriorityIsPreemptedAndHighestServedFirst) {
  SchedulerConfig config = small();
  config.num_blocks = 4;
  config.max_model_len = 17;
  Scheduler scheduler(config);
  NewSequence low = sequence(1, counting(4, 100));
  low.priority = 1;
  ASSERT_TRUE(scheduler.add(std::move(low)));
  ASSERT_TRUE(scheduler.add(sequence(2, counting(4, 200))));
  const StepPlan& first = scheduler.schedule();
  EXPECT_THAT(row_ids(first), ElementsAre(2, 1));
  complete(scheduler, first);
  for (int i = 0; i < 4; ++i) step(scheduler);
  EXPECT_THAT(scheduler.schedule().preempted, ElementsAre(1));
}

TEST(SchedulerTest, AbortWhileWaitingRunningAndPreemptedGivesEverythingBack) {
  SchedulerConfig config = small();
  config.num_blocks = 4;
  config.max_model_len = 17;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(4, 100))));
  ASSERT_TRUE(scheduler.add(sequence(2, counting(4, 200))));
  for (int i = 0; i < 6; ++i) step(scheduler);
  ASSERT_TRUE(scheduler.add(sequence(3, counting(4))));
  ASSERT_EQ(scheduler.find(2)->num_preemptions, 1);
  EXPECT_TRUE(scheduler.abort(2));   // preempted
  EXPECT_TRUE(scheduler.abort(3));   // waiting
  EXPECT_TRUE(scheduler.abort(1));   // running
  EXPECT_FALSE(scheduler.abort(1));  // gone already
  EXPECT_FALSE(scheduler.abort(99));
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_EQ(scheduler.pool().num_free(), 4);
  scheduler.check_integrity();
}

TEST(SchedulerTest, AbortDuringAStepKeepsTheBlocksUntilItIsOver) {
  Scheduler scheduler(small());
  ASSERT_TRUE(scheduler.add(sequence(1, counting(4))));
  ASSERT_TRUE(scheduler.add(sequence(2, counting(4))));
  const StepPlan& plan = scheduler.schedule();
  EXPECT_TRUE(scheduler.abort(1));
  EXPECT_FALSE(scheduler.finish(1));
  EXPECT_EQ(scheduler.pool().num_held(), 2);
  const auto& events = complete(scheduler, plan);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].seq_id, 2);
  EXPECT_EQ(scheduler.pool().num_held(), 1);
  EXPECT_EQ(scheduler.find(1), nullptr);
}

TEST(SchedulerTest, StopTokenEndsASequenceAndIsItsLastToken) {
  Scheduler scheduler(small());
  NewSequence added = sequence(1, counting(4), 5);
  added.eos_token_ids = {2};
  added.stop_token_ids = {30, 31};
  ASSERT_TRUE(scheduler.add(std::move(added)));
  EXPECT_EQ(step(scheduler, 7)[0].finish, FinishReason::kNone);
  const SequenceEvent event = step(scheduler, 31)[0];
  EXPECT_EQ(event.finish, FinishReason::kStop);
  EXPECT_EQ(event.stop_token, 31);
  EXPECT_FALSE(event.stopped_by_eos);
  EXPECT_THAT(event.new_tokens, ElementsAre(31));
  EXPECT_EQ(event.num_prompt_tokens, 4);
  EXPECT_EQ(event.num_generated_tokens, 2);
}

TEST(SchedulerTest, StopOnTheLastAllowedTokenIsAStop) {
  Scheduler scheduler(small());
  NewSequence added = sequence(1, counting(4), 1);
  added.eos_token_ids = {2};
  ASSERT_TRUE(scheduler.add(std::move(added)));
  const SequenceEvent event = step(scheduler, 2)[0];
  EXPECT_EQ(event.finish, FinishReason::kStop);
  EXPECT_TRUE(event.stopped_by_eos);
  EXPECT_TRUE(event.is_first);
}

TEST(SchedulerTest, IgnoreEosIgnoresEosOnly) {
  Scheduler scheduler(small());
  NewSequence added = sequence(1, counting(4), 5);
  added.ignore_eos = true;
  added.eos_token_ids = {2};
  added.stop_token_ids = {30};
  ASSERT_TRUE(scheduler.add(std::move(added)));
  EXPECT_EQ(step(scheduler, 2)[0].finish, FinishReason::kNone);
  EXPECT_EQ(step(scheduler, 30)[0].finish, FinishReason::kStop);
}

TEST(SchedulerTest, MinTokensOutlivesStopTokensButNotTheLengthCap) {
  Scheduler scheduler(small());
  NewSequence added = sequence(1, counting(4), 5);
  added.min_tokens = 3;
  added.stop_token_ids = {30};
  ASSERT_TRUE(scheduler.add(std::move(added)));
  added = sequence(2, counting(4), 2);
  added.min_tokens = 3;
  ASSERT_TRUE(scheduler.add(std::move(added)));
  EXPECT_EQ(step(scheduler, 30)[0].finish, FinishReason::kNone);
  const auto& events = step(scheduler, 30);
  EXPECT_EQ(events[0].finish, FinishReason::kNone);
  EXPECT_EQ(events[1].finish, FinishReason::kLength);
  EXPECT_EQ(step(scheduler, 30)[0].finish, FinishReason::kStop);
}

TEST(SchedulerTest, ARepeatedPatternEndsASequence) {
  // tokens generated → how many of them there are when it ends
  const auto end_of = [](const std::vector<TokenId>& generated, RepetitionLimit limit,
                         int32_t min_tokens = 0) {
    Scheduler scheduler(small());
    NewSequence added = sequence(1, {7, 7, 7, 7}, 30);  // the prompt's own repetitions do not count
    added.repetition = limit;
    added.min_tokens = min_tokens;
    EXPECT_TRUE(scheduler.add(std::move(added)));
    for (size_t i = 0; i < generated.size(); ++i) {
      const FinishReason finish = step(scheduler, generated[i])[0].finish;
      if (finish == FinishReason::kRepetition) return static_cast<int>(i) + 1;
      EXPECT_EQ(finish, FinishReason::kNone);
    }
    return 0;
  };
  EXPECT_EQ(end_of({7, 7, 7, 7}, {.max_pattern_size = 1, .min_pattern_size = 1, .min_count = 3}),
            3);
  EXPECT_EQ(end_of({1, 2, 1, 2, 2, 1, 2, 1, 2}, {2, 1, 3}), 0);  // never three times over
  EXPECT_EQ(end_of({1, 2, 1, 2, 1, 2, 1}, {2, 1, 3}), 6);
  EXPECT_EQ(end_of({1, 2, 3, 9, 1, 2, 3, 1, 2, 3}, {5, 3, 2}), 10);
  EXPECT_EQ(end_of({4, 4, 4, 4, 4, 4, 4}, {3, 3, 2}), 6);  // a pattern of three equal tokens
  EXPECT_EQ(end_of({4, 4, 4, 4}, {1, 1, 2}, 4), 4);
  EXPECT_EQ(end_of({4, 4, 4, 4}, {}), 0);
}

TEST(SchedulerTest, ARepetitionInsideAnAcceptedRunCutsIt) {
  SchedulerConfig config = small();
  config.num_speculative_tokens = 4;
  Scheduler scheduler(config);
  NewSequence added = sequence(1, counting(4), 30);
  added.repetition = {.max_pattern_size = 1, .min_pattern_size = 1, .min_count = 3};
  ASSERT_TRUE(scheduler.add(std::move(added)));
  const StepPlan& first = scheduler.schedule();
  ASSERT_EQ(first.rows.size(), 1U);
  const std::vector<RowResult> drafted = {{1, {5}, {5, 5, 6, 6}}};
  scheduler.update(first, drafted);
  const StepPlan& second = scheduler.schedule();
  ASSERT_EQ(second.rows[0].num_draft_tokens, 4);
  const std::vector<RowResult> accepted = {{1, {5, 5, 6, 6, 8}, {}}};
  const auto& events = scheduler.update(second, accepted);
  EXPECT_EQ(events[0].finish, FinishReason::kRepetition);
  EXPECT_THAT(events[0].new_tokens, ElementsAre(5, 5));
}

TEST(SchedulerTest, ContextEndIsALengthFinish) {
  Scheduler scheduler(small());  // context 40
  ASSERT_TRUE(scheduler.add(sequence(1, counting(37), 1000)));
  std::vector<SequenceEvent> seen;
  while (scheduler.has_work()) {
    for (const SequenceEvent& event : step(scheduler)) seen.push_back(event);
  }
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen.back().finish, FinishReason::kLength);
  EXPECT_EQ(seen.back().num_generated_tokens, 3);
}

TEST(SchedulerTest, PlansAreValuesThatReplayEqual) {
  const auto run = [] {
    SchedulerConfig config = small();
    config.num_blocks = 5;
    config.max_model_len = 20;
    Scheduler scheduler(config);
    for (SequenceId id = 1; id <= 4; ++id) {
      EXPECT_TRUE(scheduler.add(sequence(id, counting(static_cast<int32_t>(3 * id)), 6)));
    }
    std::vector<StepPlan> plans;
    while (scheduler.has_work()) {
      plans.push_back(scheduler.schedule());
      complete(scheduler, plans.back());
    }
    return plans;
  };
  const auto plans = run();
  EXPECT_EQ(plans, run());
  EXPECT_GT(plans.size(), 6u);
}

TEST(SchedulerDeathTest, SchedulingTwiceWithoutAnAnswerIsABug) {
  Scheduler scheduler(small());
  ASSERT_TRUE(scheduler.add(sequence(1, counting(4))));
  scheduler.schedule();
  EXPECT_DEATH(scheduler.schedule(), "not been answered");
}

}  // namespace
}  // namespace eyrie::sched
