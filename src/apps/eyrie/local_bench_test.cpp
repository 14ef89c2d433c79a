#include "apps/eyrie/local_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/eyrie/decode_steps.h"
#include "apps/eyrie/latency_report.h"
#include "base/error.h"

namespace eyrie::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CountsFrom, TakesOneOrSeveral) {
  EXPECT_THAT(counts_from("batch-size", "8"), ElementsAre(8));
  EXPECT_THAT(counts_from("batch-size", "1,16,64"), ElementsAre(1, 16, 64));
  for (const char* wrong : {"", "0", "1,", "-3", "4x", "1 2"}) {
    EXPECT_THROW((void)counts_from("batch-size", wrong), Error) << wrong;
  }
}

LocalRun run_of(std::vector<EngineTurn> turns, int32_t num_sequences) {
  LocalRun run;
  run.num_sequences = num_sequences;
  run.turns = std::move(turns);
  return run;
}

// Two sequences: one starts a turn earlier; both decode in the turns at 3.0, 3.5 and 4.5.
TEST(DecodeSteps, AreTheTurnsInWhichAllDecode) {
  const DecodeSteps steps = decode_steps(run_of({{1.0, 0, 0, 0},
                                                 {2.0, 1, 1, 0},
                                                 {2.5, 2, 2, 0},
                                                 {3.0, 2, 2, 0, 0.3, 0.1},
                                                 {3.5, 2, 2, 0, 0.3, 0.1},
                                                 {4.5, 3, 2, 0, 0.6, 0.2},
                                                 {5.0, 2, 2, 1},
                                                 {6.0, 1, 2, 2}},
                                                2));
  EXPECT_THAT(steps.seconds, ElementsAre(0.5, 0.5, 1.0));
  EXPECT_THAT(steps.target_seconds, ElementsAre(0.3, 0.3, 0.6));
  EXPECT_THAT(steps.draft_seconds, ElementsAre(0.1, 0.1, 0.2));
  EXPECT_EQ(steps.num_tokens, 7);
  EXPECT_DOUBLE_EQ(steps.total_seconds(), 2.0);
  EXPECT_DOUBLE_EQ(steps.mean_progress, (3 + 3.5) / 2);
  EXPECT_DOUBLE_EQ(steps.tokens_per_sequence(2), 7.0 / 3 / 2);
}

// A turn that brings nothing is time of the step that follows it.
TEST(DecodeSteps, CountIdleTurnsAsTime) {
  const DecodeSteps steps =
      decode_steps(run_of({{1.0, 1, 1, 0}, {1.5, 0, 1, 0}, {3.0, 1, 1, 0}, {4.0, 1, 1, 1}}, 1));
  EXPECT_THAT(steps.seconds, ElementsAre(2.0));
}

TEST(DecodeSteps, AreNoneWhenAnswersAreTooShort) {
  EXPECT_TRUE(decode_steps(run_of({{1.0, 1, 1, 1}}, 1)).seconds.empty());
  EXPECT_TRUE(decode_steps(run_of({}, 0)).seconds.empty());
  EXPECT_EQ(decode_steps(run_of({}, 0)).tokens_per_sequence(1), 0);
}

LatencyPoint point_of(int32_t batch_size, double draft_length) {
  LatencyPoint point;
  point.batch_size = batch_size;
  point.draft_length = draft_length;
  point.latencies = {0.25, 0.75};
  point.step_seconds = {0.002, 0.004, 0.003};
  point.target_seconds = {0.001, 0.002, 0.0015};
  point.draft_seconds = {0.0005, 0.0005, 0.0005};
  point.tokens_per_sequence = 1;
  point.output_tokens_per_second = 333;
  point.context = 100;
  point.read.distinct = 8;
  point.read.parts = {{"attention", 2e9}, {"KV", 4e9}};
  if (draft_length > 0) point.read.parts.emplace_back("draft", 3e9);
  return point;
}

TEST(LatencyReport, PrintsVllmsLines) {
  const std::string text = latency_text(point_of(1, 0));
  EXPECT_THAT(text, HasSubstr("Avg latency: 0.5 seconds\n"));
  EXPECT_THAT(text, HasSubstr("50% percentile latency: 0.5 seconds\n"));
  EXPECT_THAT(text, HasSubstr("10% percentile latency: 0.3 seconds\n"));
}

TEST(LatencyReport, HoldsTheMedianStepAgainstTheLimit) {
  const MachineLimits limits{.bytes_per_second = 4e12};
  const auto json = latency_json({point_of(1, 0), point_of(4, 6)}, limits);
  EXPECT_DOUBLE_EQ(json["avg_latency"].get<double>(), 0.5);
  const auto& plain = json["eyrie"]["batches"][0];
  EXPECT_DOUBLE_EQ(plain["limit_ms"].get<double>(), 1.5);
  EXPECT_DOUBLE_EQ(plain["step_ms"]["p50"].get<double>(), 3);
  EXPECT_DOUBLE_EQ(plain["share_of_limit"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(plain["target_ms"].get<double>(), 1.5);
  EXPECT_DOUBLE_EQ(plain["draft_ms"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(plain["outside_ms"].get<double>(), 1.0);
  EXPECT_DOUBLE_EQ(json["eyrie"]["batches"][1]["limit_ms"].get<double>(), 2.25);
  const std::string tables = step_tables({point_of(1, 0), point_of(4, 6)}, limits);
  EXPECT_THAT(tables, HasSubstr("50 %"));
  EXPECT_THAT(tables, HasSubstr("draft"));
}

TEST(LatencyReport, SaysNothingOfLimitsNobodyGave) {
  EXPECT_THAT(step_tables({point_of(1, 0)}, {}), Not(HasSubstr("limit")));
  EXPECT_FALSE(latency_json({point_of(1, 0)}, {})["eyrie"]["batches"][0].contains("limit_ms"));
}

TEST(LatencyReport, AnswersTooShortForAStepHaveNone) {
  LatencyPoint point = point_of(1, 0);
  point.step_seconds.clear();
  EXPECT_THAT(step_tables({point}, {.bytes_per_second = 1e12}), HasSubstr("-"));
  EXPECT_FALSE(latency_json({point}, {})["eyrie"]["batches"][0].contains("step_ms"));
}

}  // namespace
}  // namespace eyrie::apps
