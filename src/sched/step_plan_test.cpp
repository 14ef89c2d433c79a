#include "sched/step_plan.h"

#include <gtest/gtest.h>

namespace eyrie::sched {
namespace {

TEST(StepPlanTest, PrintsOneLinePerRow) {
  StepPlan plan{.step = 4, .rows = {}, .preempted = {9}, .num_tokens = 5};
  plan.rows.push_back({.seq_id = 1,
                       .first_position = 16,
                       .num_tokens = 3,
                       .num_draft_tokens = 2,
                       .samples = true,
                       .num_drafts_to_propose = 1,
                       .next_token = -1,
                       .tokens = {5, 6, 7},
                       .block_table = {0, 1}});
  plan.rows.push_back({.seq_id = 2,
                       .first_position = 0,
                       .num_tokens = 2,
                       .next_token = 12,
                       .tokens = {10, 11},
                       .block_table = {3}});
  EXPECT_EQ(plan.to_string(),
            "step 4: 2 rows, 5 tokens, preempted [9]\n"
            "  seq 1: 3 tokens at 16 (2 drafts), samples, propose 1, tokens [5, 6, 7], "
            "blocks [0, 1]\n"
            "  seq 2: 2 tokens at 0, tokens [10, 11] then 12, blocks [3]\n");
}

TEST(StepPlanTest, EmptyPlanIsEmptyAndStillPrints) {
  EXPECT_TRUE(StepPlan{}.empty());
  EXPECT_EQ(StepPlan{}.to_string(), "step 0: 0 rows, 0 tokens\n");
}

TEST(StepPlanTest, ComparesByValue) {
  StepPlan a, b;
  a.rows.resize(1);
  b.rows.resize(1);
  EXPECT_EQ(a, b);
  b.rows[0].block_table.push_back(1);
  EXPECT_FALSE(a == b);
}

}  // namespace
}  // namespace eyrie::sched
