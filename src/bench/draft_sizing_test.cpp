#include "bench/draft_sizing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/metrics.h"
#include "bench/sweep_tables.h"
#include "bench/sweep_testing.h"

namespace eyrie::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As the server writes it: 100 choices and 300 tokens more in the second.
const std::string kBefore =
    "eyrie:draft_lengths_total{engine=\"0\",length=\"0\"} 50\n"
    "eyrie:draft_lengths_total{engine=\"0\",length=\"1\"} 0\n"
    "eyrie:draft_lengths_total{engine=\"0\",length=\"2\"} 50\n";
const std::string kAfter =
    "eyrie:draft_lengths_total{engine=\"0\",length=\"0\"} 75\n"
    "eyrie:draft_lengths_total{engine=\"0\",length=\"1\"} 0\n"
    "eyrie:draft_lengths_total{engine=\"0\",length=\"2\"} 125\n"
    "eyrie:synthetic_acceptance{engine=\"0\"} 1\n"
    "eyrie:decode_tokens_total{engine=\"0\"} 300\n"
    "eyrie:decode_seconds_total{engine=\"0\"} 1.5\n"
    "eyrie:decode_fixed_length_seconds_total{engine=\"0\",length=\"0\"} 3\n"
    "eyrie:decode_fixed_length_seconds_total{engine=\"0\",length=\"1\"} 1.2\n"
    "eyrie:decode_fixed_length_seconds_total{engine=\"0\",length=\"2\"} 2\n";

TEST(DraftSizingTest, ReadsWhatTheServerCounted) {
  const auto sizing = draft_sizing(parse_server_counters(kBefore).draft_sizing,
                                   parse_server_counters(kAfter).draft_sizing);
  ASSERT_TRUE(sizing.has_value());
  EXPECT_THAT(sizing->lengths, ElementsAre(0.25, 0.0, 0.75));
  EXPECT_DOUBLE_EQ(sizing->mean_length(), 1.5);
  EXPECT_DOUBLE_EQ(sizing->decode_tok_s, 200);
  EXPECT_THAT(sizing->fixed_tok_s, ElementsAre(100, 250, 150));
  EXPECT_EQ(sizing->best_length(), 1u);
  EXPECT_DOUBLE_EQ(sizing->share_of_best(), 0.8);
  EXPECT_TRUE(sizing->synthetic);
  const auto copy = draft_sizing_from(draft_sizing_json(*sizing));
  EXPECT_EQ(draft_sizing_json(*copy), draft_sizing_json(*sizing));
  const auto rows = draft_sizing_rows(*sizing);
  EXPECT_EQ(rows.front().first, "Mean draft length:");
  EXPECT_EQ(rows.back(), std::pair(std::string("Of the best fixed length (%):"), 80.0));
}

TEST(DraftSizingTest, NothingWhereNothingWasChosen) {
  const auto counters = parse_server_counters(kAfter).draft_sizing;
  EXPECT_FALSE(draft_sizing(counters, counters).has_value());
  EXPECT_FALSE(draft_sizing({}, {}).has_value());
}

SweepResult sweep() {
  SweepResult result = fake_sweep({{100, 100}, {150, 80}, {170, 60}, {165, 96}}, {1, 64},
                                  {"none", "K=1", "K=6", "adaptive"});
  const auto flags = [](int k, bool adaptive) {
    const nlohmann::json config = {
        {"model", "d"}, {"num_speculative_tokens", k}, {"adaptive", adaptive}};
    return std::vector<std::string>{"--speculative-config", config.dump()};
  };
  result.configs[1].args = flags(1, false);
  result.configs[2].args = flags(6, false);
  result.configs[3].args = flags(6, true);
  return result;
}

TEST(DraftSizingTest, VerdictsNameTheConcurrencyThatFails) {
  SweepResult result = sweep();
  for (SweepPoint& point : result.points) {
    if (point.config_idx == 3) {
      point.runs[0].draft_sizing = DraftSizing{
          .lengths = {0.5, 0.5}, .decode_tok_s = 95, .fixed_tok_s = {90, 100}, .synthetic = false};
    }
  }
  const auto verdicts = judge_draft_sizing(result);
  ASSERT_EQ(verdicts.size(), 3u);
  EXPECT_EQ(verdicts[0].outcome, Outcome::kNotMet);  // 0.96 at 64
  EXPECT_EQ(verdicts[0].detail, "C=1: 1.65, C=64: 0.96");
  EXPECT_EQ(verdicts[1].outcome, Outcome::kMet);
  EXPECT_EQ(verdicts[1].detail, "C=1: 0.97 of K=6, C=64: 1.20 of K=1");
  EXPECT_EQ(verdicts[2].outcome, Outcome::kMet);
  EXPECT_THAT(verdicts[2].detail, HasSubstr("C=64: 0.95 of 1 drafts"));
  EXPECT_THAT(draft_sizing_sentences(result)[0],
              HasSubstr("adaptive C=1: 0.50 drafts in the mean; decoding alone 95 tok/s"));
  EXPECT_THAT(sweep_markdown(result, nullptr, verdicts), HasSubstr("## Draft lengths"));
}

TEST(DraftSizingTest, NoVerdictWithoutAdaptiveDrafts) {
  EXPECT_THAT(judge_draft_sizing(fake_sweep({{100}, {120}}, {1})), IsEmpty());
  EXPECT_EQ(judge_draft_sizing(sweep())[2].outcome, Outcome::kNotRun);
}

}  // namespace
}  // namespace eyrie::bench
