// The prefix cache as a sequence meets it: what is computed, what is found, what is counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sched/scheduler.h"
#include "sched/testing.h"

namespace eyrie::sched {
namespace {

using testing::answer;
using testing::complete;
using testing::counting;
using testing::row_sizes;
using testing::sequence;
using testing::step;

SchedulerConfig caching(int32_t num_speculative_tokens = 0) {
  return {.max_num_seqs = 4,
          .max_num_batched_tokens = 64,
          .max_model_len = 64,
          .block_size = 4,
          .num_blocks = 16,
          .enable_prefix_caching = true,
          .num_speculative_tokens = num_speculative_tokens};
}

// Where the sequence's first row starts, i.e. how many tokens it found; the sequence then ends.
int32_t first_position(Scheduler& scheduler, NewSequence added) {
  added.max_tokens = 1;
  EXPECT_TRUE(scheduler.add(std::move(added)));
  const StepPlan& plan = scheduler.schedule();
  const int32_t first = plan.rows.at(0).first_position;
  EXPECT_EQ(complete(scheduler, plan).at(0).num_cached_tokens, first);
  EXPECT_FALSE(scheduler.has_work());
  return first;
}

TEST(SchedulerPrefixTest, SecondSequenceComputesOnlyWhatIsNew) {
  Scheduler scheduler(caching());
  EXPECT_EQ(first_position(scheduler, sequence(1, counting(11))), 0);
  EXPECT_EQ(first_position(scheduler, sequence(2, counting(11))), 8);
  EXPECT_EQ(first_position(scheduler, sequence(3, counting(30))), 8);
  EXPECT_EQ(first_position(scheduler, sequence(4, counting(30))), 28);
  EXPECT_EQ(first_position(scheduler, sequence(5, counting(3))), 0);
  const SchedulerStats stats = scheduler.stats();
  EXPECT_EQ(stats.prefix_cache_queries, 11 + 11 + 30 + 30 + 3);
  EXPECT_EQ(stats.prefix_cache_hits, 8 + 8 + 28);
}

TEST(SchedulerPrefixTest, FullyCachedPromptStillComputesItsLastBlock) {
  Scheduler scheduler(caching());
  EXPECT_EQ(first_position(scheduler, sequence(1, counting(8))), 0);
  EXPECT_EQ(first_position(scheduler, sequence(2, counting(8))), 4);
  EXPECT_EQ(first_position(scheduler, sequence(3, counting(4))), 0);
  EXPECT_EQ(scheduler.pool().num_cached(), 2) << "the recomputed block is the same block";
}

// NaN in the cache would be found by every later prompt that begins alike.
TEST(SchedulerPrefixTest, BlocksOfAFaultedSequenceAreNotFoundAgain) {
  SchedulerConfig config = caching();
  config.max_num_batched_tokens = 8;
  Scheduler scheduler(config);
  EXPECT_EQ(first_position(scheduler, sequence(1, counting(5))), 0);
  ASSERT_TRUE(scheduler.add(sequence(2, counting(14))));
  complete(scheduler, scheduler.schedule());  // 4 found, 8 computed and published
  const StepPlan& plan = scheduler.schedule();
  EXPECT_TRUE(scheduler.fault(2));
  EXPECT_FALSE(scheduler.fault(2));
  complete(scheduler, plan);
  EXPECT_FALSE(scheduler.has_work());
  scheduler.check_integrity();

  EXPECT_EQ(first_position(scheduler, sequence(3, counting(6))), 0);  // computed anew
  EXPECT_EQ(first_position(scheduler, sequence(4, counting(6))), 4);  // and shared again
  std::vector<TokenId> other = counting(60);
  std::reverse(other.begin(), other.end());
  ASSERT_TRUE(scheduler.add(sequence(5, other)));  // takes every block back
  while (scheduler.has_work()) complete(scheduler, scheduler.schedule());
  scheduler.check_integrity();
}

TEST(SchedulerPrefixTest, WhoSharesAForgottenPrefixGoesOn) {
  Scheduler scheduler(caching());
  EXPECT_EQ(first_position(scheduler, sequence(1, counting(9))), 0);
  NewSequence good = sequence(2, counting(10));
  good.max_tokens = 8;
  ASSERT_TRUE(scheduler.add(good));
  ASSERT_TRUE(scheduler.add(sequence(3, counting(11))));
  complete(scheduler, scheduler.schedule());
  EXPECT_TRUE(scheduler.fault(3));
  while (scheduler.has_work()) complete(scheduler, scheduler.schedule());  // publishes below it
  scheduler.check_integrity();
  EXPECT_EQ(first_position(scheduler, sequence(4, counting(11))), 0);
}

TEST(SchedulerPrefixTest, GeneratedTokensAreFoundByTheNextTurn) {
  Scheduler scheduler(caching());
  ASSERT_TRUE(scheduler.add(sequence(1, counting(5), 6)));
  for (TokenId token = 10; scheduler.has_work(); ++token) step(scheduler, token);
  std::vector<TokenId> next_turn = counting(5);
  for (TokenId token = 10; token < 16; ++token) next_turn.push_back(token);
  next_turn.push_back(99);
  EXPECT_EQ(next_turn.size(), 12u);
  EXPECT_EQ(first_position(scheduler, sequence(2, next_turn)), 8);
}

TEST(SchedulerPrefixTest, RejectedDraftsAreNeverFound) {
  SchedulerConfig config = caching(3);
  config.draft_keeps_kv = false;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(4), 5)));
  step(scheduler, 50);  // drafts 900, 901, 902 follow
  step(scheduler, 51);  // block 1 was computed with 50, 900, 901, 902: all rejected
  while (scheduler.has_work()) step(scheduler, 52);
  std::vector<TokenId> rejected = counting(4);
  for (const TokenId token : {50, 900, 901, 902, 1}) rejected.push_back(token);
  EXPECT_EQ(first_position(scheduler, sequence(2, rejected)), 4);
  std::vector<TokenId> real = counting(4);
  for (const TokenId token : {50, 51, 52, 52, 1}) real.push_back(token);
  EXPECT_EQ(first_position(scheduler, sequence(3, real)), 8);
}

TEST(SchedulerPrefixTest, AcceptedDraftsAreFound) {
  SchedulerConfig config = caching(3);
  config.draft_keeps_kv = false;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(4), 5)));
  step(scheduler, 50);
  const StepPlan& plan = scheduler.schedule();
  const RowResult result = answer(plan.rows[0], 51, 3);
  ASSERT_EQ(scheduler.update(plan, {&result, 1})[0].finish, FinishReason::kLength);
  std::vector<TokenId> tokens = counting(4);
  for (const TokenId token : {50, 900, 901, 902, 51}) tokens.push_back(token);
  EXPECT_EQ(first_position(scheduler, sequence(2, tokens)), 8);
}

// The draft's entry in a block's last slot depends on the token behind it.
TEST(SchedulerPrefixTest, WithADraftABlockIsFoundOnlyBeforeTheSameNextToken) {
  Scheduler scheduler(caching(2));
  EXPECT_EQ(first_position(scheduler, sequence(1, counting(9))), 0);
  EXPECT_EQ(first_position(scheduler, sequence(2, counting(9))), 8);
  std::vector<TokenId> other = counting(9);
  other[8] = 7;
  EXPECT_EQ(first_position(scheduler, sequence(3, other)), 4);
  EXPECT_EQ(first_position(scheduler, sequence(4, other)), 8);
}

TEST(SchedulerPrefixTest, SequencesComputedTogetherEndUpSharingBlocks) {
  Scheduler scheduler(caching());
  ASSERT_TRUE(scheduler.add(sequence(1, counting(9))));
  ASSERT_TRUE(scheduler.add(sequence(2, counting(9))));
  const StepPlan& first = scheduler.schedule();
  EXPECT_EQ(row_sizes(first), (std::vector<int32_t>{9, 9}));
  EXPECT_EQ(scheduler.pool().num_held(), 6);
  complete(scheduler, first);
  EXPECT_EQ(scheduler.pool().num_held(), 4);
  const StepPlan& second = scheduler.schedule();
  EXPECT_EQ(second.rows[0].block_table[1], second.rows[1].block_table[1]);
  EXPECT_NE(second.rows[0].block_table[2], second.rows[1].block_table[2]);
}

TEST(SchedulerPrefixTest, PreemptedSequenceFindsItsOwnBlocks) {
  SchedulerConfig config = caching();
  config.num_blocks = 6;
  config.max_model_len = 24;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(sequence(1, counting(8, 100), 6)));
  ASSERT_TRUE(scheduler.add(sequence(2, counting(8, 200), 9)));
  for (TokenId token = 0; token < 5; ++token) step(scheduler, token);  // 3 blocks each
  const StepPlan& plan = scheduler.schedule();
  ASSERT_EQ(plan.preempted, (std::vector<SequenceId>{2}));
  complete(scheduler, plan);  // 1 ends; of 2's three blocks the last one was reused
  const StepPlan& resumed = scheduler.schedule();
  ASSERT_EQ(resumed.rows.size(), 1u);
  EXPECT_EQ(resumed.rows[0].first_position, 8);
  EXPECT_EQ(resumed.rows[0].num_tokens, 5);
  EXPECT_EQ(complete(scheduler, resumed)[0].num_cached_tokens, 0) << "of its prompt, at first";
  EXPECT_EQ(scheduler.stats().prefix_cache_hits, 0) << "its own blocks are not counted";
}

TEST(SchedulerPrefixTest, SaltsAreSeparateAndSkippingReadsNothing) {
  Scheduler scheduler(caching());
  NewSequence salted = sequence(1, counting(9));
  salted.cache_salt = "a";
  EXPECT_EQ(first_position(scheduler, salted), 0);
  EXPECT_EQ(first_position(scheduler, sequence(2, counting(9))), 0);
  salted.seq_id = 3;
  EXPECT_EQ(first_position(scheduler, salted), 8);
  salted.seq_id = 4;
  salted.skip_prefix_cache = true;
  EXPECT_EQ(first_position(scheduler, salted), 0);
}

TEST(SchedulerPrefixTest, OffMeansOff) {
  SchedulerConfig config = caching();
  config.enable_prefix_caching = false;
  Scheduler scheduler(config);
  EXPECT_EQ(first_position(scheduler, sequence(1, counting(9))), 0);
  EXPECT_EQ(first_position(scheduler, sequence(2, counting(9))), 0);
  EXPECT_EQ(scheduler.stats().prefix_cache_queries, 0);
  EXPECT_EQ(scheduler.pool().num_cached(), 0);
}

TEST(SchedulerPrefixTest, ResetForgetsEverythingButOnlyWhenIdle) {
  Scheduler scheduler(caching());
  ASSERT_TRUE(scheduler.add(sequence(1, counting(9), 2)));
  step(scheduler);
  EXPECT_FALSE(scheduler.reset_prefix_cache());
  step(scheduler);
  EXPECT_TRUE(scheduler.reset_prefix_cache());
  EXPECT_EQ(first_position(scheduler, sequence(2, counting(9))), 0);
}

TEST(SchedulerPrefixTest, CachedBlocksDoNotCountAsUsed) {
  Scheduler scheduler(caching());
  ASSERT_TRUE(scheduler.add(sequence(1, counting(9), 2)));
  step(scheduler);
  EXPECT_EQ(scheduler.stats().kv_usage, 3.0 / 16);
  step(scheduler);
  EXPECT_EQ(scheduler.stats().kv_usage, 0.0);
  EXPECT_EQ(scheduler.pool().num_cached(), 2);
}

}  // namespace
}  // namespace eyrie::sched
