// What each request field means, and what is said when it is wrong.
#include "server/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "engine/tape_runner.h"

namespace eyrie::server {
namespace {

using testing::HasSubstr;

class GenerationTest : public testing::Test {
 protected:
  GenerationTest() {
    config.served_model_names = {"nano", "kimi"};
    config.max_model_len = 64;
    config.vocab_size = tokenizer.vocab_size();
  }

  Result<CompletionGeneration> completion(const std::string& fields) {
    body = Json::parse("{" + fields + "}");
    return parse_completion(body, {config, tokenizer, *chat_template});
  }
  Result<ChatGeneration> chat(const std::string& fields) {
    body = Json::parse(R"({"messages": [{"role": "user", "content": "Hi"}])" +
                       (fields.empty() ? "" : ", " + fields) + "}");
    return parse_chat(body, {config, tokenizer, *chat_template});
  }
  template <typename T>
  void expect_refused(const Result<T>& result, const std::string& param, const std::string& says,
                      FailureKind kind = FailureKind::kInvalidArgument) {
    ASSERT_FALSE(result.ok()) << body.dump();
    EXPECT_EQ(result.failure().kind, kind) << body.dump();
    EXPECT_EQ(result.failure().param, param) << result.failure().message;
    EXPECT_THAT(result.failure().message, HasSubstr(says));
  }

  ServerConfig config;
  const Tokenizer tokenizer = engine::make_byte_tokenizer();
  const std::unique_ptr<chat::ChatTemplate> chat_template = chat::make_kimi_template();
  Json body;
};

TEST_F(GenerationTest, PromptsInAllFourForms) {
  const auto text = completion(R"("prompt": "ab")");
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text.value().prompts.at(0).prompt, (std::vector<TokenId>{'a', 'b'}));
  EXPECT_EQ(text.value().prompts.at(0).params.max_tokens, 16);
  EXPECT_EQ(text.value().model, "nano");

  const auto texts = completion(R"("prompt": ["a", "bc"], "n": 2, "model": "kimi")");
  ASSERT_TRUE(texts.ok());
  ASSERT_EQ(texts.value().prompts.size(), 2U);
  EXPECT_EQ(texts.value().prompts[1].first_choice_idx, 2);
  EXPECT_EQ(texts.value().num_choices(), 4);
  EXPECT_EQ(texts.value().model, "kimi");

  const auto ids = completion(R"("prompt": [7, 8, 9])");
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids.value().prompts.at(0).prompt, (std::vector<TokenId>{7, 8, 9}));

  const auto lists = completion(R"("prompt": [[7], [8, 9]])");
  ASSERT_TRUE(lists.ok());
  EXPECT_EQ(lists.value().prompts.at(1).prompt, (std::vector<TokenId>{8, 9}));
}

TEST_F(GenerationTest, BadPromptsAreNamed) {
  for (const char* fields :
       {R"("prompt": "")", R"("prompt": [])", R"("prompt": ["a", ""])", R"("prompt": [[], [1]])",
        R"("prompt": null)", R"("model": "nano")", R"("prompt": {"a": 1})", R"("prompt": 5)",
        R"("prompt": ["a", 1])", R"("prompt": [1, "a"])"}) {
    expect_refused(completion(fields), "prompt", "prompt");
  }
  expect_refused(completion(R"("prompt": [100000000])"), "prompt", "100000000");
  expect_refused(completion(R"("prompt": [-1])"), "prompt", "-1");
}

TEST_F(GenerationTest, LengthsAreExact) {
  const std::string prompt(60, 'x');
  EXPECT_TRUE(completion("\"prompt\": \"" + prompt + R"(", "max_tokens": 4)").ok());
  const auto over = completion("\"prompt\": \"" + prompt + R"(", "max_tokens": 5)");
  expect_refused(over, "input_tokens", "64 tokens");
  EXPECT_THAT(over.failure().message, HasSubstr("65 in all"));
  expect_refused(completion("\"prompt\": \"" + std::string(64, 'x') + "\""), "input_tokens", "64");
  // A default of 16 is not asked for less; null is what is left.
  expect_refused(completion("\"prompt\": \"" + prompt + "\""), "input_tokens", "76 in all");
  const auto rest = completion("\"prompt\": \"" + prompt + R"(", "max_tokens": null)");
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ(rest.value().prompts.at(0).params.max_tokens, 4);
  // Too long to be worth encoding.
  expect_refused(completion("\"prompt\": \"" + std::string(100000, 'x') + "\""), "prompt",
                 "100000 bytes");
}

TEST_F(GenerationTest, TruncationKeepsTheEnd) {
  const auto cut = completion(R"("prompt": "abcdef", "truncate_prompt_tokens": 2)");
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut.value().prompts.at(0).prompt, (std::vector<TokenId>{'e', 'f'}));
  const auto all = completion("\"prompt\": \"" + std::string(100, 'x') +
                              R"(", "truncate_prompt_tokens": -1, "max_tokens": 10)");
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all.value().prompts.at(0).prompt.size(), 54U);
}

TEST_F(GenerationTest, WrongTypesAndRangesAreNamed) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"max_tokens", "\"many\""},
      {"max_tokens", "0"},
      {"max_tokens", "-1"},
      {"temperature", "[1]"},
      {"temperature", "-0.1"},
      {"top_p", "2"},
      {"top_p", "0"},
      {"top_k", "-2"},
      {"min_p", "1.5"},
      {"n", "0"},
      {"n", "\"two\""},
      {"n", "2000"},
      {"stop", "5"},
      {"stop", "[\"\"]"},
      {"seed", "\"x\""},
      {"presence_penalty", "2.1"},
      {"frequency_penalty", "-3"},
      {"repetition_penalty", "0"},
      {"logprobs", "21"},
      {"logprobs", "-1"},
      {"logit_bias", "[1]"},
      {"logit_bias", "{\"x\": 1}"},
      {"logit_bias", "{\"999999\": 1}"},
      {"stop_token_ids", "[999999]"},
      {"allowed_token_ids", "[]"},
      {"min_tokens", "17"},
      {"stream", "\"yes\""},
      {"stream_options", "{\"include_usage\": true}"},
      {"suffix", "\"x\""},
      {"repetition_detection", "3"},
      {"repetition_detection", "{\"max_pattern_size\": -1}"},
      {"repetition_detection", "{\"max_pattern_size\": 2, \"min_count\": 1}"},
      {"repetition_detection",
       "{\"max_pattern_size\": 2, \"min_pattern_size\": 3, \"min_count\": 2}"},
      {"thinking_token_budget", "-1"},
      {"thinking_token_budget", "\"x\""},
      {"structured_outputs", "{\"regex\": \"a\"}"},
      {"use_beam_search", "true"},
      {"response_format", "{\"type\": \"json_object\"}"},
      {"cache_salt", "\"\""},
      {"prompt_logprobs", "-1"},
  };
  for (const auto& [name, value] : cases) {
    SCOPED_TRACE(std::string(name) + " = " + value);
    expect_refused(completion("\"prompt\": \"a\", \"temperature\": 1, \"" + std::string(name) +
                              "\": " + value),
                   name, name);
  }
  expect_refused(completion(R"("prompt": "a", "n": 2, "temperature": 0)"), "n", "temperature");
  expect_refused(completion(R"("prompt": "a", "stream": true, "prompt_logprobs": 1)"),
                 "prompt_logprobs", "streamed");
  expect_refused(
      completion(R"("prompt": "a", "stream": true, "stream_options": {"include_usage": 1})"),
      "stream_options", "include_usage");
}

TEST_F(GenerationTest, NullMeansAbsentAndUnknownIsIgnored) {
  const auto result = completion(
      R"("prompt": "a", "temperature": null, "stop": null, "seed": null, "n": null,
         "logit_bias": null, "best_of": null, "guided_json": {"a": 1}, "user": 5,
         "no_such_field": [1])");
  ASSERT_TRUE(result.ok()) << result.failure().message;
  EXPECT_EQ(result.value().prompts.at(0).params.temperature, 1.0);
  EXPECT_FALSE(result.value().prompts.at(0).has_seed);
  EXPECT_EQ(result.value().n, 1);
}

TEST_F(GenerationTest, DefaultsComeFromTheCheckpoint) {
  config.defaults = {.temperature = 0.6, .top_p = 0.9, .top_k = 5, .max_tokens = 3};
  const auto plain = completion(R"("prompt": "a", "max_tokens": null)");
  ASSERT_TRUE(plain.ok());
  const auto& params = plain.value().prompts.at(0).params;
  EXPECT_EQ(params.temperature, 0.6);
  EXPECT_EQ(params.top_p, 0.9);
  EXPECT_EQ(params.top_k, 5);
  EXPECT_EQ(params.max_tokens, 3);
  const auto own = completion(R"("prompt": "a", "temperature": 0, "top_k": 0, "max_tokens": 9)");
  ASSERT_TRUE(own.ok());
  EXPECT_TRUE(own.value().prompts.at(0).params.greedy());
  EXPECT_EQ(own.value().prompts.at(0).params.top_k, 0);
  EXPECT_EQ(own.value().prompts.at(0).params.max_tokens, 9);
}

TEST_F(GenerationTest, FieldsArriveInTheParameters) {
  const auto result = completion(
      R"("prompt": "a", "seed": 7, "stop": ["x", "yy"], "min_tokens": 2, "ignore_eos": true,
         "logit_bias": {"5": 200, "6": -1}, "stop_token_ids": [9], "logprobs": 3,
         "include_stop_str_in_output": true, "skip_special_tokens": false, "cache_salt": "s",
         "bad_words": ["no"])");
  ASSERT_TRUE(result.ok());
  const engine::GenerateRequest& request = result.value().prompts.at(0);
  EXPECT_TRUE(request.has_seed);
  EXPECT_EQ(request.params.seed, 7U);
  EXPECT_EQ(request.text.stop, (std::vector<std::string>{"x", "yy"}));
  EXPECT_TRUE(request.text.include_stop);
  EXPECT_FALSE(request.text.skip_special);
  EXPECT_EQ(request.params.min_tokens, 2);
  EXPECT_TRUE(request.params.ignore_eos);
  EXPECT_EQ(request.params.logit_bias,
            (std::vector<std::pair<TokenId, float>>{{5, 100.0F}, {6, -1.0F}}));
  EXPECT_EQ(request.params.stop_token_ids, (std::vector<TokenId>{9}));
  EXPECT_EQ(request.params.logprobs, 3);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.params.bad_words,
            (std::vector<std::vector<TokenId>>{{'n', 'o'}, {' ', 'n', 'o'}}));
  EXPECT_FALSE(completion(R"("prompt": "a", "seed": -1)").value().prompts.at(0).has_seed);
}

TEST_F(GenerationTest, ScoringAPromptNeedsNoOutput) {
  const auto scored =
      completion(R"("prompt": "abc", "max_tokens": 0, "echo": true, "logprobs": 1)");
  ASSERT_TRUE(scored.ok());
  EXPECT_TRUE(scored.value().prompt_only);
  EXPECT_EQ(scored.value().prompts.at(0).params.prompt_logprobs, 1);
  EXPECT_EQ(scored.value().prompt_texts.at(0), "abc");
}

TEST_F(GenerationTest, BestOfGeneratesMoreThanIsShown) {
  const auto result = completion(R"("prompt": ["a", "b"], "n": 2, "best_of": 3)");
  ASSERT_TRUE(result.ok()) << result.failure().message;
  EXPECT_EQ(result.value().num_choices(), 6);
  EXPECT_EQ(result.value().num_shown, 2);
  EXPECT_FALSE(result.value().shows_logprobs);
  EXPECT_EQ(result.value().prompts.at(1).first_choice_idx, 3);
  EXPECT_EQ(result.value().prompts.at(1).params.logprobs, 0);
  EXPECT_EQ(completion(R"("prompt": "a", "best_of": 1, "stream": true)").value().n, 1);
  expect_refused(completion(R"("prompt": "a", "n": 3, "best_of": 2)"), "best_of", "below n");
  expect_refused(completion(R"("prompt": "a", "best_of": 2, "stream": true)"), "best_of",
                 "streamed");
  expect_refused(completion(R"("prompt": "a", "best_of": 2, "temperature": 0)"), "best_of",
                 "temperature");
  expect_refused(completion(R"("prompt": "a", "best_of": "all")"), "best_of", "integer");
}

TEST_F(GenerationTest, UnknownModel) {
  expect_refused(completion(R"("prompt": "a", "model": "someone-else")"), "model", "someone-else",
                 FailureKind::kNotFound);
  EXPECT_TRUE(completion(R"("prompt": "a", "model": "")").ok());
}

TEST_F(GenerationTest, ChatRendersAndFillsTheContext) {
  const auto result = chat("");
  ASSERT_TRUE(result.ok()) << result.failure().message;
  const engine::GenerateRequest& request = result.value().prompts.at(0);
  EXPECT_EQ(
      tokenizer.decode(request.prompt, false),
      "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think>");
  EXPECT_EQ(request.params.max_tokens, 64 - static_cast<int32_t>(request.prompt.size()));
  EXPECT_TRUE(result.value().parser.starts_in_reasoning);
  EXPECT_EQ(result.value().parser.tools, chat::ToolMode::kOff);
}

TEST_F(GenerationTest, ThinkingIsTurnedOffInEverySpelling) {
  for (const char* fields :
       {R"("chat_template_kwargs": {"thinking": false})",
        R"("chat_template_kwargs": {"enable_thinking": false})",
        R"("thinking": {"type": "disabled"})", R"("reasoning_effort": "none")"}) {
    const auto result = chat(fields);
    ASSERT_TRUE(result.ok()) << fields;
    EXPECT_FALSE(result.value().parser.starts_in_reasoning) << fields;
  }
  config.default_chat_template_kwargs = {{"thinking", false}};
  EXPECT_FALSE(chat("").value().parser.starts_in_reasoning);
  EXPECT_TRUE(
      chat(R"("chat_template_kwargs": {"thinking": true})").value().parser.starts_in_reasoning);
  expect_refused(chat(R"("chat_template_kwargs": 5)"), "chat_template_kwargs", "object");
}

TEST_F(GenerationTest, ToolChoices) {
  const std::string tools =
      R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}])";
  config.max_model_len = 1024;
  EXPECT_EQ(chat(tools).value().parser.tools, chat::ToolMode::kParse);
  EXPECT_EQ(chat(tools + R"(, "tool_choice": "auto")").value().parser.tools,
            chat::ToolMode::kParse);
  EXPECT_EQ(chat(tools + R"(, "tool_choice": "none")").value().parser.tools, chat::ToolMode::kDrop);
  expect_refused(chat(tools + R"(, "tool_choice": "required")"), "tool_choice", "constrained");
  expect_refused(
      chat(tools + R"(, "tool_choice": {"type": "function", "function": {"name": "f"}})"),
      "tool_choice", "constrained");
  expect_refused(chat(R"("tool_choice": "auto")"), "tool_choice", "tools");
  expect_refused(chat(tools + R"(, "tool_choice": 5)"), "tool_choice", "5");
  expect_refused(chat(R"("tools": [])"), "tools", "tools");
  config.parse_tools = false;
  expect_refused(chat(tools), "tools", "--tool-call-parser");
}

TEST_F(GenerationTest, ToolsLeaveThePromptOnlyWhenAsked) {
  const std::string fields =
      R"("tool_choice": "none", "tools": [{"type": "function", "function": {"name": "f"}}])";
  config.max_model_len = 1024;
  const auto decoded = [&](const Result<ChatGeneration>& result) {
    return tokenizer.decode(result.value().prompts.at(0).prompt, false);
  };
  EXPECT_THAT(decoded(chat(fields)), HasSubstr("tool_declare"));
  config.exclude_tools_when_tool_choice_none = true;
  EXPECT_THAT(decoded(chat(fields)), testing::Not(HasSubstr("tool_declare")));
}

TEST_F(GenerationTest, BadChatsAreNamed) {
  const auto with_messages = [&](const std::string& messages) {
    body = Json::parse("{\"messages\": " + messages + "}");
    return parse_chat(body, {config, tokenizer, *chat_template});
  };
  for (const char* messages : {"\"hi\"", "[]", "null", "{}", "[5]"}) {
    const auto result = with_messages(messages);
    ASSERT_FALSE(result.ok()) << messages;
    EXPECT_THAT(result.failure().message, HasSubstr("messages")) << messages;
  }
  const auto image = with_messages(
      R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}])");
  ASSERT_FALSE(image.ok());
  EXPECT_THAT(image.failure().message, HasSubstr("image"));
  expect_refused(chat(R"("top_logprobs": 2)"), "top_logprobs", "logprobs");
  expect_refused(chat(R"("logprobs": 2)"), "logprobs", "true or false");
  expect_refused(chat(R"("max_tokens": 60)"), "input_tokens", "64");
  expect_refused(chat(R"("chat_template": "x")"), "chat_template", "chat_template");
  expect_refused(chat(R"("response_format": {"type": "json_schema"})"), "response_format",
                 "json_schema");
}

TEST_F(GenerationTest, NewNameOfMaxTokensWins) {
  const auto result = chat(R"("max_completion_tokens": 3, "max_tokens": 5)");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.value().prompts.at(0).params.max_tokens, 3);
}

// Whatever stands in a field, the answer is a checked request or a sentence: never a crash, and
// never a request the engine could not take.
TEST_F(GenerationTest, AnyValueInAnyFieldIsTakenOrRefused) {
  const Json values = Json::parse(
      R"([null, true, 0, 1, -1, 16, 64, 1e300, -0.5, 9223372036854775807, 18446744073709551615, "", "a",
          "\u0000", [], [0], [-1], ["a"], [[]], [[1]], [null], {}, {"a": 1}, {"type": "text"}, {"5": 1},
          {"thinking": false}, {"type": "function", "function": {"name": "f"}},
          [{"type": "function", "function": {"name": "f", "parameters": {"properties": 5}}}],
          [{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]}],
          [{"role": "user", "content": [{"type": "text"}]}]])");
  const std::vector<std::string> names = {"model",
                                          "prompt",
                                          "messages",
                                          "max_tokens",
                                          "max_completion_tokens",
                                          "n",
                                          "temperature",
                                          "top_p",
                                          "top_k",
                                          "min_p",
                                          "repetition_penalty",
                                          "presence_penalty",
                                          "frequency_penalty",
                                          "seed",
                                          "stop",
                                          "stop_token_ids",
                                          "include_stop_str_in_output",
                                          "ignore_eos",
                                          "min_tokens",
                                          "logprobs",
                                          "top_logprobs",
                                          "prompt_logprobs",
                                          "echo",
                                          "logit_bias",
                                          "allowed_token_ids",
                                          "bad_words",
                                          "suffix",
                                          "repetition_detection",
                                          "thinking_token_budget",
                                          "return_prompt_text",
                                          "stream",
                                          "stream_options",
                                          "skip_special_tokens",
                                          "truncate_prompt_tokens",
                                          "truncation_side",
                                          "response_format",
                                          "priority",
                                          "request_id",
                                          "cache_salt",
                                          "return_token_ids",
                                          "tools",
                                          "tool_choice",
                                          "parallel_tool_calls",
                                          "chat_template_kwargs",
                                          "thinking",
                                          "reasoning_effort",
                                          "add_generation_prompt",
                                          "continue_final_message",
                                          "chat_template",
                                          "documents"};
  int num_taken = 0;
  int num_refused = 0;
  const auto check = [&](const auto& result) {
    if (!result.ok()) {
      ++num_refused;
      EXPECT_FALSE(result.failure().message.empty()) << body.dump();
      return;
    }
    ++num_taken;
    for (const engine::GenerateRequest& request : result.value().prompts) {
      ASSERT_FALSE(request.prompt.empty());
      ASSERT_GE(request.n, 1);
      ASSERT_GE(request.params.max_tokens, 1);
      ASSERT_LE(static_cast<int64_t>(request.prompt.size()) + request.params.max_tokens, 64);
      for (const TokenId id : request.prompt) ASSERT_LT(id, config.vocab_size);
    }
  };
  const auto try_body = [&] {
    check(parse_completion(body, {config, tokenizer, *chat_template}));
    check(parse_chat(body, {config, tokenizer, *chat_template}));
  };
  const Json plain = Json::parse(
      R"({"prompt": "a", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 1})");
  for (const std::string& name : names) {
    for (const Json& value : values) {
      body = plain;
      body[name] = value;
      try_body();
    }
  }
  std::mt19937 rng(5);
  for (int i = 0; i < 2000; ++i) {
    body = plain;
    for (int j = 0; j < 4; ++j) body[names[rng() % names.size()]] = values[rng() % values.size()];
    try_body();
  }
  EXPECT_GT(num_taken, 500);
  EXPECT_GT(num_refused, 500);
}

}  // namespace
}  // namespace eyrie::server
