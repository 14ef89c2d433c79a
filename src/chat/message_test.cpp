#include "chat/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace eyrie::chat {
namespace {

using testing::HasSubstr;

std::vector<Message> read(const char* json) {
  return messages_from_json(Json::parse(json)).value();
}

std::string message_error(const std::string& json) {
  const auto result = messages_from_json(Json::parse(json));
  return result.ok() ? "" : result.failure().message;
}

std::string tools_error(const std::string& json) {
  const auto result = tools_from_json(Json::parse(json));
  return result.ok() ? "" : result.failure().message;
}

TEST(MessageTest, ReadsEveryKindOfContent) {
  const auto messages = read(R"([
    {"role": "system", "content": "S"},
    {"role": "user", "content": ["a", {"type": "text", "text": "b"}, {"text": "c"},
                                 {"type": "input_text", "text": "d"}], "name": "Ann"},
    {"role": "assistant", "content": null, "reasoning": "r", "tool_calls": null},
    {"role": "assistant", "reasoning_content": "q"},
    {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "1"},
                                                      {"type": "text", "text": "2"}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}},
                                 {"type": "image_url", "image_url": "v"},
                                 {"video_url": {"url": "w"}}]}])");
  ASSERT_EQ(messages.size(), 6u);
  EXPECT_EQ(messages[1].text(), "abcd");
  EXPECT_EQ(messages[1].name, "Ann");
  EXPECT_TRUE(messages[2].content.empty());
  EXPECT_EQ(messages[2].reasoning, "r");
  EXPECT_EQ(messages[3].reasoning, "q");
  EXPECT_EQ(messages[4].text(), "1\n2") << "the parts of a tool's result are its lines";
  EXPECT_EQ(messages[5].content[0].kind, ContentPart::Kind::kImage);
  EXPECT_EQ(messages[5].content[1].url, "v");
  EXPECT_EQ(messages[5].content[2].kind, ContentPart::Kind::kVideo);
}

TEST(MessageTest, ParsesArgumentsGivenAsText) {
  const auto messages = read(R"([{"role": "assistant", "tool_calls": [
    {"id": "1", "function": {"name": "f", "arguments": "{\"b\":1,\"a\":[1,2]}"}},
    {"id": "2", "function": {"name": "f", "arguments": ""}},
    {"id": "3", "function": {"name": "f", "arguments": "not json"}},
    {"id": "4", "function": {"name": "f"}},
    {"id": "5", "function": {"name": "f", "arguments": {"x": 1}}}]}])");
  const auto& calls = messages[0].tool_calls;
  EXPECT_EQ(calls[0].arguments.dump(), R"({"b":1,"a":[1,2]})");
  EXPECT_EQ(calls[1].arguments, Json::object());
  EXPECT_EQ(calls[2].arguments, "not json");
  EXPECT_EQ(calls[3].arguments, Json::object());
  EXPECT_EQ(calls[4].arguments["x"], 1);
}

TEST(MessageTest, SaysWhatIsWrongAndWhere) {
  EXPECT_THAT(message_error("[]"), HasSubstr("at least one message"));
  EXPECT_THAT(message_error("{}"), HasSubstr("at least one message"));
  EXPECT_THAT(message_error(R"([1])"), HasSubstr("messages[0] must be an object"));
  EXPECT_THAT(message_error(R"([{"content": "x"}])"), HasSubstr("messages[0].role is missing"));
  EXPECT_THAT(message_error(R"([{"role": 1}])"), HasSubstr("messages[0].role must be a string"));
  EXPECT_THAT(message_error(R"([{"role": "user", "content": 1}])"),
              HasSubstr("messages[0].content must be a string or a list"));
  EXPECT_THAT(message_error(R"([{"role": "user", "content": [1]}])"),
              HasSubstr("messages[0].content[0] must be an object"));
  EXPECT_THAT(message_error(R"([{"role": "user", "content": [{"type": "hologram"}]}])"),
              HasSubstr("messages[0].content[0].type \"hologram\" is not known"));
  EXPECT_THAT(message_error(R"([{"role": "user", "content": [{"type": "text"}]}])"),
              HasSubstr("messages[0].content[0].text must be a string"));
  EXPECT_THAT(message_error(R"([{"role": "assistant", "tool_calls": [{"id": "1"}]}])"),
              HasSubstr("messages[0].tool_calls[0].function must be"));
  EXPECT_THAT(message_error(R"([{"role": "assistant", "tool_calls": [{"function": {}}]}])"),
              HasSubstr("function.name is missing"));
  const std::string deep(200, '[');
  EXPECT_THAT(message_error(R"([{"role": "user", "x": )" + deep + std::string(200, ']') + "}]"),
              HasSubstr("nest deeper"));
}

TEST(MessageTest, ReadsTools) {
  EXPECT_TRUE(tools_from_json(Json()).value().empty());
  const auto tools =
      tools_from_json(Json::parse(R"([{"type": "function", "function": {"name": "f"}}])")).value();
  EXPECT_EQ(tools[0].name(), "f");
  EXPECT_THAT(tools_error("[]"), HasSubstr("at least one tool"));
  EXPECT_THAT(tools_error("[1]"), HasSubstr("tools[0] must be"));
  EXPECT_THAT(tools_error(R"([{"type": "function"}])"), HasSubstr("tools[0] must be"));
  EXPECT_THAT(tools_error(R"([{"type": "function", "function": {"name": ""}}])"),
              HasSubstr("tools[0].function.name must be a string"));
}

TEST(MessageTest, NormalizesForeignToolCallIds) {
  auto messages = read(R"([
    {"role": "assistant", "tool_calls": [{"id": "call_ab12", "function": {"name": "f"}},
                                         {"id": "functions.g:1", "function": {"name": "g"}}]},
    {"role": "tool", "tool_call_id": "functions.g:1", "content": "2"},
    {"role": "tool", "tool_call_id": "call_ab12", "content": "1"},
    {"role": "assistant", "tool_calls": [{"id": "search:2", "function": {"name": "search"}}]},
    {"role": "tool", "tool_call_id": "search:2", "content": "3"}])");
  normalize_tool_call_ids(messages);
  EXPECT_EQ(messages[0].tool_calls[0].id, "functions.f:0");
  EXPECT_EQ(messages[0].tool_calls[1].id, "functions.g:1");
  EXPECT_EQ(messages[1].tool_call_id, "functions.g:1");
  EXPECT_EQ(messages[2].tool_call_id, "functions.f:0");
  EXPECT_EQ(messages[3].tool_calls[0].id, "functions.search:2");
  EXPECT_EQ(messages[4].tool_call_id, "functions.search:2");
  EXPECT_EQ(count_tool_calls(messages), 3);
}

TEST(MessageTest, NormalizedIdsStayDifferent) {
  auto messages = read(R"([{"role": "assistant", "tool_calls": [
    {"id": "functions.f:1", "function": {"name": "f"}}, {"id": "a", "function": {"name": "f"}},
    {"id": "b", "function": {"name": "f"}}]}])");
  normalize_tool_call_ids(messages);
  const auto& calls = messages[0].tool_calls;
  EXPECT_EQ(calls[0].id, "functions.f:1");
  EXPECT_NE(calls[1].id, calls[0].id);
  EXPECT_NE(calls[2].id, calls[0].id);
  EXPECT_NE(calls[2].id, calls[1].id);
}

}  // namespace
}  // namespace eyrie::chat
