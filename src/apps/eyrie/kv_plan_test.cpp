#include "apps/eyrie/kv_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace eyrie::apps {
namespace {

using ::testing::HasSubstr;

// 1000 tokens' worth of memory left after weights: 32,000 B at 32 B a token.
KvDemand demand() {
  return {.memory_bytes = 100'000,
          .utilization = 0.5,
          .weights_bytes = 17'000,
          .workspace_bytes = 1'000,
          .bytes_per_token = 32,
          .model_max_len = 800,
          .max_num_seqs = 4,
          .block_size = 16};
}

std::string error_of(const KvDemand& asked) {
  try {
    (void)plan_kv(asked);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(KvPlan, TakesWhatIsLeftOfTheShare) {
  const KvPlan plan = plan_kv(demand());
  EXPECT_EQ(plan.num_blocks, 62);  // floor(32,000 / 512)
  EXPECT_EQ(plan.max_model_len, 800);
  EXPECT_EQ(plan.kv_bytes, 62 * 512);
}

TEST(KvPlan, TakesNoMoreThanItsSequencesCanFill) {
  KvDemand asked = demand();
  asked.max_num_seqs = 1;
  asked.max_model_len = 100;
  EXPECT_EQ(plan_kv(asked).num_blocks, 7);
}

TEST(KvPlan, SaysTheLargestContextThatFits) {
  KvDemand asked = demand();
  asked.model_max_len = 5000;
  EXPECT_THAT(error_of(asked), HasSubstr("largest context that fits is 992 tokens"));
  asked.max_model_len = -1;
  EXPECT_EQ(plan_kv(asked).max_model_len, 992);
  asked.weights_bytes = 60'000;
  EXPECT_THAT(error_of(asked), HasSubstr("fits is 0 tokens"));
}

TEST(KvPlan, NamesTheFlagOfABadValue) {
  KvDemand asked = demand();
  asked.utilization = 1.5;
  EXPECT_THAT(error_of(asked), HasSubstr("--gpu-memory-utilization is 1.5"));
  asked = demand();
  asked.max_model_len = 801;
  EXPECT_THAT(error_of(asked), HasSubstr("positions end at 800"));
}

}  // namespace
}  // namespace eyrie::apps
