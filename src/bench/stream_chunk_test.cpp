#include "bench/stream_chunk.h"

#include <gtest/gtest.h>

namespace eyrie::bench {
namespace {

TEST(StreamChunkTest, ReadsACompletionChunk) {
  const auto chunk =
      parse_stream_chunk(R"({"id":"cmpl-1","choices":[{"index":0,"text":" four","logprobs":null,)"
                         R"("finish_reason":null,"token_ids":[5,6]}]})");
  EXPECT_TRUE(chunk.has_choices);
  EXPECT_EQ(chunk.text, " four");
  EXPECT_TRUE(chunk.bears_content);
  EXPECT_EQ(chunk.num_token_ids, 2);
  EXPECT_FALSE(chunk.completion_tokens.has_value());
}

TEST(StreamChunkTest, AnEmptyTextIsAChunkWithoutContent) {
  const auto chunk = parse_stream_chunk(
      R"({"choices":[{"index":0,"text":"","finish_reason":"length"}],"usage":{"completion_tokens":9}})");
  EXPECT_TRUE(chunk.has_choices);
  EXPECT_FALSE(chunk.bears_content);
  EXPECT_EQ(chunk.finish_reason, "length");
  EXPECT_EQ(chunk.completion_tokens, 9);
}

TEST(StreamChunkTest, ReadsChatDeltas) {
  const auto role =
      parse_stream_chunk(R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]})");
  EXPECT_TRUE(role.has_choices);
  EXPECT_FALSE(role.bears_content);
  const auto thought =
      parse_stream_chunk(R"({"choices":[{"delta":{"reasoning":"hm","reasoning_content":"hm"}}]})");
  EXPECT_EQ(thought.text, "hm");
  const auto call = parse_stream_chunk(R"({"choices":[{"delta":{"tool_calls":[{"index":0}]}}]})");
  EXPECT_TRUE(call.bears_content);
  const auto scored = parse_stream_chunk(
      R"({"choices":[{"delta":{"content":"ab"},"logprobs":{"content":[{},{},{}]}}]})");
  EXPECT_EQ(scored.num_token_ids, 3);
}

TEST(StreamChunkTest, ReadsTheUsageChunkAndTheEnd) {
  const auto usage = parse_stream_chunk(
      R"({"choices":[],"usage":{"prompt_tokens":7,"total_tokens":12,"completion_tokens":5,)"
      R"("prompt_tokens_details":{"cached_tokens":4}}})");
  EXPECT_FALSE(usage.has_choices);
  EXPECT_EQ(usage.prompt_tokens, 7);
  EXPECT_EQ(usage.completion_tokens, 5);
  EXPECT_EQ(usage.cached_tokens, 4);
  EXPECT_TRUE(parse_stream_chunk("[DONE]").done);
}

TEST(StreamChunkTest, ErrorsBecomeSentences) {
  EXPECT_EQ(parse_stream_chunk(R"({"error":{"message":"engine died","code":500}})").error,
            "engine died");
  EXPECT_FALSE(parse_stream_chunk("{oops").error.empty());
  EXPECT_EQ(error_message(R"({"error":{"message":"too long","code":400}})"), "too long");
  EXPECT_EQ(error_message(R"({"object":"error","message":"no model"})"), "no model");
  EXPECT_EQ(error_message(R"({"detail":"Not Found"})"), "Not Found");
  EXPECT_EQ(error_message("<html>\nbad gateway"), "<html> bad gateway");
  EXPECT_EQ(error_message(""), "");
}

}  // namespace
}  // namespace eyrie::bench
