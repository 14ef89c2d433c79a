#include "bench/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace eyrie::bench {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

StreamChunk chunk(const std::string& text, std::optional<int64_t> usage = {},
                  std::optional<int64_t> ids = {}) {
  StreamChunk result;
  result.has_choices = true;
  result.text = text;
  result.bears_content = !text.empty() || ids.value_or(0) > 0;
  result.completion_tokens = usage;
  result.num_token_ids = ids;
  return result;
}

StreamChunk usage_chunk(int64_t completion, int64_t prompt) {
  StreamChunk result;
  result.completion_tokens = completion;
  result.prompt_tokens = prompt;
  return result;
}

RequestRecord finish(TimelineBuilder& builder, double start = 0.0) {
  RequestRecord record;
  record.start = start;
  builder.finish(record, [](const std::string& text) { return static_cast<int64_t>(text.size()); });
  return record;
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

TEST(TimelineTest, GapsAreSharedByTheTokensOfAChunk) {
  TimelineBuilder builder(false);
  builder.add(chunk("a", 1), 1.0);
  builder.add(chunk("bcd", 4), 1.6);  // three tokens at once
  builder.add(chunk("e", 5), 1.7);
  builder.add(usage_chunk(5, 11), 1.71);
  const auto record = finish(builder, 0.5);
  EXPECT_EQ(record.token_source, TokenSource::kUsage);
  EXPECT_EQ(record.output_tokens, 5);
  EXPECT_EQ(record.prompt_tokens, 11);
  EXPECT_EQ(record.text, "abcde");
  EXPECT_NEAR(record.ttft(), 0.5, 1e-12);
  EXPECT_NEAR(record.latency(), 1.2, 1e-12);
  EXPECT_THAT(record.inter_token_gaps(),
              ElementsAre(DoubleNear(0.2, 1e-12), DoubleNear(0.2, 1e-12), DoubleNear(0.2, 1e-12),
                          DoubleNear(0.1, 1e-12)));
  EXPECT_NEAR(sum(record.inter_token_gaps()) / 4.0, record.tpot(), 1e-12);
}

TEST(TimelineTest, TokensThatComeWithTheFirstHaveNoGap) {
  TimelineBuilder builder(false);
  builder.add(chunk("abc", {}, 3), 1.0);
  builder.add(chunk("de", {}, 2), 1.4);
  builder.add(chunk("", {}, 0), 1.5);  // the end mark bears no token
  builder.add(usage_chunk(5, 2), 1.5);
  const auto record = finish(builder);
  EXPECT_EQ(record.token_source, TokenSource::kTokenIds);
  EXPECT_THAT(record.inter_token_gaps(),
              ElementsAre(0.0, 0.0, DoubleNear(0.2, 1e-12), DoubleNear(0.2, 1e-12)));
  EXPECT_NEAR(record.latency(), 1.5, 1e-12);
}

TEST(TimelineTest, OneTokenPerChunkNeedsNoHelp) {
  TimelineBuilder builder(false);
  for (int i = 0; i < 4; ++i) builder.add(chunk("x"), 1.0 + 0.1 * i);
  builder.add(usage_chunk(4, 1), 1.3);
  const auto record = finish(builder);
  EXPECT_EQ(record.token_source, TokenSource::kOnePerChunk);
  EXPECT_EQ(record.inter_token_gaps().size(), 3U);
}

TEST(TimelineTest, OnlyATotalIsSpreadEvenly) {
  TimelineBuilder builder(false);
  builder.add(chunk("ab"), 1.0);
  builder.add(chunk("cdefg"), 1.9);
  builder.add(usage_chunk(10, 1), 1.9);
  const auto record = finish(builder);
  EXPECT_EQ(record.token_source, TokenSource::kEvenShare);
  EXPECT_EQ(record.inter_token_gaps(), std::vector<double>(9, record.tpot()));
  EXPECT_NEAR(record.tpot(), 0.1, 1e-12);
}

TEST(TimelineTest, WithoutUsageTheTextIsCounted) {
  TimelineBuilder builder(false);
  builder.add(chunk("abc"), 1.0);
  EXPECT_EQ(finish(builder).output_tokens, 3);
}

TEST(TimelineTest, ARoleChunkIsNotTheFirstToken) {
  TimelineBuilder chat(true);
  chat.add(chunk("", 0), 0.1);
  chat.add(chunk("hi", 1), 0.9);
  chat.add(usage_chunk(1, 3), 0.9);
  EXPECT_NEAR(finish(chat).ttft(), 0.9, 1e-12);
  TimelineBuilder completion(false);  // there an empty text is a token whose text is held back
  completion.add(chunk(""), 0.1);
  completion.add(chunk("hi"), 0.9);
  EXPECT_NEAR(finish(completion).ttft(), 0.1, 1e-12);
}

TEST(TimelineTest, EmptyAndSingle) {
  TimelineBuilder none(false);
  const auto empty = finish(none);
  EXPECT_EQ(empty.output_tokens, 0);
  EXPECT_EQ(empty.latency(), 0.0);
  EXPECT_TRUE(empty.inter_token_gaps().empty());
  TimelineBuilder one(false);
  one.add(chunk("x", 1), 2.0);
  one.add(usage_chunk(1, 1), 2.0);
  const auto single = finish(one);
  EXPECT_EQ(single.tpot(), 0.0);
  EXPECT_TRUE(single.inter_token_gaps().empty());
}

TEST(TimelineTest, KeepsTheErrorOfAnErrorEvent) {
  TimelineBuilder builder(false);
  StreamChunk bad;
  bad.error = "engine died";
  builder.add(bad, 1.0);
  EXPECT_EQ(builder.error(), "engine died");
}

}  // namespace
}  // namespace eyrie::bench
