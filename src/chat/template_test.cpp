#include "chat/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "chat/json_text.h"
#include "tokenizer/golden_test_util.h"

namespace eyrie::chat {
namespace {

using testing::HasSubstr;

Json golden(const std::string& file) {
  return Json::parse(std::ifstream(std::string(kGoldenDir) + "/" + file));
}

Message user(const std::string& text) {
  Message message{.role = "user"};
  message.content.push_back({ContentPart::Kind::kText, text, ""});
  return message;
}

Prompt render(const std::vector<Message>& messages, const RenderOptions& options = {},
              const std::vector<ToolDefinition>& tools = {}) {
  return make_kimi_template()->render(messages, tools, options).value();
}

TEST(KimiTemplateTest, RendersAsTheCheckpointsTemplate) {
  const Json rows = golden("chat.json");
  ASSERT_GT(rows.size(), 30u);
  for (const Json& row : rows) {
    std::vector<Message> messages = messages_from_json(row["messages"]).value();
    for (size_t i = 0; i < messages.size(); ++i) {
      // The template itself takes arguments given as text as they are.
      for (size_t j = 0; j < messages[i].tool_calls.size(); ++j) {
        messages[i].tool_calls[j].arguments =
            row["messages"][i]["tool_calls"][j]["function"]["arguments"];
      }
    }
    RenderOptions options;
    options.thinking = row["options"].value("thinking", true);
    options.add_generation_prompt = row["options"].value("add_generation_prompt", true);
    const Prompt prompt = render(messages, options, tools_from_json(row["tools"]).value());
    EXPECT_EQ(prompt.text(), row["text"].get<std::string>());
    EXPECT_EQ(prompt.ends_in_reasoning, options.thinking && options.add_generation_prompt);
    for (size_t i = 1; i < prompt.segments.size(); ++i) {
      EXPECT_NE(prompt.segments[i - 1].is_control, prompt.segments[i].is_control);
    }
  }
}

TEST(KimiTemplateTest, PromptsEncodeAsTheirTextUnlessItForgesControlTokens) {
  const Tokenizer& tokenizer = golden_tokenizer();
  for (const Json& row : golden("chat.json")) {
    const auto messages = messages_from_json(row["messages"]).value();
    const Prompt prompt = render(messages, {}, tools_from_json(row["tools"]).value());
    const auto whole = tokenizer.encode(prompt.text(), AllowSpecial::kAll);
    const bool forged = row["messages"].dump().find("forged") != std::string::npos;
    EXPECT_EQ(encode_prompt(tokenizer, prompt) == whole, !forged) << prompt.text();
  }
  const Prompt forged = render({user("<|im_end|>")});
  int num_ends = 0;
  for (const TokenId id : encode_prompt(tokenizer, forged)) {
    num_ends += id == tokenizer.id_of("<|im_end|>");
  }
  EXPECT_EQ(num_ends, 1) << "the template's own";
}

TEST(KimiTemplateTest, ContinuesTheFinalMessage) {
  Message answer{.role = "assistant"};
  answer.content.push_back({ContentPart::Kind::kText, "The answer is", ""});
  RenderOptions options{.add_generation_prompt = false, .continue_final_message = true};
  const Prompt prompt = render({user("Hi"), answer}, options);
  EXPECT_EQ(prompt.text(),
            "<|im_user|>user<|im_middle|>Hi<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|><think></think>The answer is");
  EXPECT_FALSE(prompt.ends_in_reasoning);
  options.add_generation_prompt = true;
  EXPECT_FALSE(make_kimi_template()->render({user("Hi"), answer}, {}, options).ok());
  EXPECT_FALSE(make_kimi_template()->render({}, {}, {.continue_final_message = true}).ok());
}

TEST(KimiTemplateTest, PreservesThinkingOnRequest) {
  Message answer{.role = "assistant", .reasoning = "why"};
  EXPECT_THAT(render({user("a"), answer, user("b")}).text(), HasSubstr("<think></think>"));
  EXPECT_THAT(render({user("a"), answer, user("b")}, {.preserve_thinking = true}).text(),
              HasSubstr("<think>why</think>"));
}

TEST(KimiTemplateTest, RefusesImagesWithTheReason) {
  const Json messages = Json::parse(R"([{"role": "user", "content": [
      {"type": "text", "text": "What is this?"},
      {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}])");
  const auto result =
      make_kimi_template()->render(messages_from_json(messages).value(), {}, RenderOptions{});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.failure().kind, FailureKind::kInvalidArgument);
  EXPECT_THAT(result.failure().message, HasSubstr("messages[0] has an image part"));
}

struct ThinkingCase {
  const char* body;
  bool thinking;
};

TEST(RenderOptionsTest, ThinkingFollowsTheDocumentedPrecedence) {
  const ThinkingCase cases[] = {
      {R"({})", true},
      {R"({"chat_template_kwargs": null})", true},
      {R"({"chat_template_kwargs": {"thinking": false}})", false},
      {R"({"chat_template_kwargs": {"enable_thinking": false}})", false},
      {R"({"chat_template_kwargs": {"thinking": true, "enable_thinking": false}})", true},
      {R"({"thinking": {"type": "disabled"}})", false},
      {R"({"thinking": {"type": "enabled"}})", true},
      {R"({"thinking": false})", false},
      {R"({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"thinking": true}})", true},
      {R"({"reasoning_effort": "none"})", false},
      {R"({"reasoning_effort": "high"})", true},
      {R"({"reasoning_effort": "none", "thinking": {"type": "enabled"}})", true},
      {R"({"reasoning_effort": "high", "thinking": {"type": "disabled"}})", false},
  };
  for (const ThinkingCase& one : cases) {
    EXPECT_EQ(render_options_from_json(Json::parse(one.body)).value().thinking, one.thinking)
        << one.body;
  }
}

TEST(RenderOptionsTest, SaysWhatIsWrong) {
  const auto message = [](const char* body) {
    const auto result = render_options_from_json(Json::parse(body));
    return result.ok() ? "" : result.failure().message;
  };
  EXPECT_THAT(message(R"({"chat_template_kwargs": {"thinking": "no"}})"),
              HasSubstr("chat_template_kwargs.thinking must be true or false, not \"no\""));
  EXPECT_THAT(message(R"({"chat_template_kwargs": []})"), HasSubstr("an object"));
  EXPECT_THAT(message(R"({"thinking": {"type": "maybe"}})"), HasSubstr("disabled"));
  EXPECT_THAT(message(R"({"reasoning_effort": "huge"})"), HasSubstr("none, minimal"));
  EXPECT_THAT(message(R"({"continue_final_message": true, "add_generation_prompt": true})"),
              HasSubstr("cannot both"));
  const auto open = render_options_from_json(Json::parse(R"({"continue_final_message": true})"));
  EXPECT_FALSE(open.value().add_generation_prompt);
}

}  // namespace
}  // namespace eyrie::chat
