#include "bench/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace eyrie::bench {
namespace {

// Tokens arrive one by one at `first`, `first + step`, …
RequestRecord request(double start, double first, double step, int tokens, int64_t prompt = 10) {
  RequestRecord record;
  record.ok = true;
  record.start = start;
  record.prompt_tokens = prompt;
  record.output_tokens = tokens;
  record.token_source = TokenSource::kOnePerChunk;
  for (int i = 0; i < tokens; ++i) record.chunks.push_back({first + step * i, 1.0});
  record.end = record.chunks.back().at;
  return record;
}

TEST(PercentileTest, InterpolatesAsNumpyDoes) {
  const std::vector<double> values = {10, 4, 3, 2, 1};
  EXPECT_DOUBLE_EQ(percentile(values, 50), 3.0);
  EXPECT_DOUBLE_EQ(percentile(values, 90), 7.6);
  EXPECT_DOUBLE_EQ(percentile(values, 99), 9.76);
  EXPECT_NEAR(percentile(values, 99.9), 9.976, 1e-12);
  EXPECT_DOUBLE_EQ(percentile({5.0}, 99), 5.0);
  EXPECT_DOUBLE_EQ(percentile({}, 99), 0.0);
  const auto summary = summarize(values, {90});
  EXPECT_DOUBLE_EQ(summary.mean, 4.0);
  EXPECT_NEAR(summary.std, 3.1622776601683795, 1e-12);
  EXPECT_DOUBLE_EQ(summary.percentiles[0].second, 7.6);
}

TEST(MetricsTest, HandMadeTimeline) {
  // Two requests over two seconds: 5 tokens 0.1 s apart, and 1 token.
  std::vector<RequestRecord> records = {request(0.0, 0.5, 0.1, 5), request(0.2, 1.2, 0.1, 1, 30)};
  RequestRecord failed;
  failed.error = "Bad Request";
  records.push_back(failed);
  const auto metrics = compute_metrics(records, 2.0, {99}, {});
  EXPECT_EQ(metrics.completed, 2);
  EXPECT_EQ(metrics.failed, 1);
  EXPECT_EQ(metrics.total_input, 40);
  EXPECT_EQ(metrics.total_output, 6);
  EXPECT_DOUBLE_EQ(metrics.request_throughput, 1.0);
  EXPECT_DOUBLE_EQ(metrics.output_throughput, 3.0);
  EXPECT_DOUBLE_EQ(metrics.total_token_throughput, 23.0);
  EXPECT_NEAR(metrics.ttft.mean, 750.0, 1e-9);
  EXPECT_NEAR(metrics.tpot.mean, 100.0, 1e-9);  // of the first alone
  EXPECT_NEAR(metrics.itl.median, 100.0, 1e-9);
  EXPECT_NEAR(metrics.e2el.mean, 950.0, 1e-9);
  EXPECT_FALSE(metrics.request_goodput.has_value());
  EXPECT_EQ(metrics.max_concurrent_requests, 2);
  EXPECT_DOUBLE_EQ(metrics.max_output_tokens_per_s, 5.0);
}

TEST(MetricsTest, ThePeakCountsTokensNotChunks) {
  auto record = request(0.0, 0.1, 0.1, 2);
  record.chunks[1].tokens = 7.0;
  record.output_tokens = 8;
  EXPECT_DOUBLE_EQ(compute_metrics({record}, 1.0, {99}, {}).max_output_tokens_per_s, 8.0);
}

TEST(MetricsTest, GoodputNeedsEveryLimitMet) {
  const std::vector<RequestRecord> records = {request(0.0, 0.1, 0.1, 5),    // ttft 100, tpot 100
                                              request(0.0, 0.5, 0.01, 5),   // ttft 500, tpot 10
                                              request(0.0, 0.05, 0.1, 1)};  // one token: tpot 0
  GoodputLimits limits;
  limits.ttft_ms = 200.0;
  EXPECT_DOUBLE_EQ(*compute_metrics(records, 2.0, {99}, limits).request_goodput, 1.0);
  limits.tpot_ms = 50.0;
  EXPECT_DOUBLE_EQ(*compute_metrics(records, 2.0, {99}, limits).request_goodput, 0.5);
}

TEST(MetricsTest, NothingSucceeded) {
  const auto metrics = compute_metrics({RequestRecord{}}, 1.0, {99}, {});
  EXPECT_EQ(metrics.completed, 0);
  EXPECT_EQ(metrics.failed, 1);
  EXPECT_EQ(metrics.max_concurrent_requests, 0);
  EXPECT_EQ(compute_metrics({}, 0.0, {99}, {}).request_throughput, 0.0);
}

constexpr std::string_view kMetricsPage = R"(# HELP vllm:spec_decode_num_drafts_total Drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a} b"} 100.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 20.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0"} 720
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 300
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 90
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 18
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 60
vllm:prefix_cache_queries_total 5000
vllm:prefix_cache_hits_total 1250
vllm:num_preemptions_total 3
process_cpu_seconds_total 12
)";

TEST(ServerCountersTest, SumsEnginesAndSkipsCreated) {
  const auto counters = parse_server_counters(kMetricsPage);
  EXPECT_TRUE(counters.has_spec);
  EXPECT_DOUBLE_EQ(counters.num_drafts, 120.0);
  EXPECT_DOUBLE_EQ(counters.accepted_per_pos.at(0), 108.0);
  EXPECT_DOUBLE_EQ(counters.prefix_hits, 1250.0);
  EXPECT_DOUBLE_EQ(counters.preemptions, 3.0);
  const auto stats = spec_stats(ServerCounters{}, counters);
  ASSERT_TRUE(stats.has_value());
  EXPECT_DOUBLE_EQ(stats->acceptance_length, 3.5);
  EXPECT_NEAR(stats->acceptance_rate, 41.6667, 1e-3);
  EXPECT_THAT(stats->per_position, testing::ElementsAre(0.9, 0.5));
}

TEST(ServerCountersTest, NoStatsWhenNothingMoved) {
  const auto counters = parse_server_counters(kMetricsPage);
  EXPECT_FALSE(spec_stats(counters, counters).has_value());
  EXPECT_FALSE(spec_stats({}, parse_server_counters("other_total 5\n")).has_value());
  EXPECT_FALSE(parse_server_counters("").has_spec);
  EXPECT_FALSE(parse_server_counters("vllm:spec_decode_num_drafts_total{x").has_spec);
}

}  // namespace
}  // namespace eyrie::bench
