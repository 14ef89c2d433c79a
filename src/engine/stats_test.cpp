#include "engine/stats.h"

#include <gtest/gtest.h>

namespace eyrie::engine {
namespace {

TEST(HistogramTest, BoundsAreInclusive) {
  Histogram histogram({1, 2, 5});
  for (const double value : {0.5, 1.0, 1.5, 5.0, 6.0}) histogram.observe(value);
  EXPECT_EQ(histogram.counts(), (std::vector<int64_t>{2, 1, 1, 1}));
  EXPECT_EQ(histogram.count(), 5);
  EXPECT_DOUBLE_EQ(histogram.sum(), 14.0);
}

TEST(HistogramTest, OneTwoFiveEndsAtTheMaximum) {
  EXPECT_EQ(one_two_five_buckets(1), (std::vector<double>{1}));
  EXPECT_EQ(one_two_five_buckets(49), (std::vector<double>{1, 2, 5, 10, 20}));
  EXPECT_EQ(one_two_five_buckets(50), (std::vector<double>{1, 2, 5, 10, 20, 50}));
}

TEST(StatsLogTest, LinesReadAsScriptsExpectThem) {
  const EngineStats before(4096, 3);
  EngineStats now(4096, 3);
  now.prompt_tokens = 1300;
  now.prompt_tokens_cached = 66;
  now.generation_tokens = 5678;
  now.num_running = 4;
  now.kv_usage = 0.012;
  now.prefix_cache_queries = 1300;
  now.prefix_cache_hits = 66;
  EXPECT_EQ(stats_log_line(before, now, 10.0),
            "Engine 000: Avg prompt throughput: 123.4 tokens/s, Avg generation throughput: 567.8 "
            "tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.2%, Prefix cache "
            "hit rate: 5.1%");
  EXPECT_EQ(spec_decode_log_line(before, now, 10.0), "");
  now.num_drafts = 1000;
  now.num_draft_tokens = 3000;
  now.num_accepted_tokens = 1800;
  now.accepted_per_position = {800, 600, 400};
  EXPECT_EQ(spec_decode_log_line(before, now, 10.0),
            "SpecDecoding metrics: Mean acceptance length: 2.80, Accepted throughput: 180.00 "
            "tokens/s, Drafted throughput: 300.00 tokens/s, Accepted: 1800 tokens, Drafted: 3000 "
            "tokens, Per-position acceptance rate: 0.800, 0.600, 0.400, Avg Draft acceptance rate: "
            "60.0%");
}

}  // namespace
}  // namespace eyrie::engine
