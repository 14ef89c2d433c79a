// Anthropic's API: what of a request reaches the model, and what of its answer the client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "server/message_request.h"
#include "server/random_input.h"
#include "server/testing.h"

namespace eyrie::server {
namespace {

using chat::Json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kCall =
    "I think</think>Let me look.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
    "<|tool_call_argument_begin|>{\"city\": \"Łódź 🦅\"}<|tool_call_end|>"
    "<|tool_calls_section_end|>";

Json message(const std::string& more = "") {
  return Json::parse(R"({"model": "nano", "max_tokens": 200, "temperature": 0,
                         "messages": [{"role": "user", "content": "Hi"}])" +
                     more + "}");
}
const std::string kTools =
    R"(, "tools": [{"name": "f", "description": "Looks.", "input_schema": {"type": "object"}}])";

// The prompt that a request becomes.
std::string prompt_of(const Json& body) {
  ServerConfig config;
  config.served_model_names = {"nano"};
  config.max_model_len = 4096;
  config.vocab_size = byte_tokenizer().vocab_size();
  const auto chat_template = chat::make_kimi_template();
  const auto parsed = parse_message(body, {config, byte_tokenizer(), *chat_template});
  if (!parsed.ok()) return "refused: " + parsed.failure().message;
  return byte_tokenizer().decode(parsed.value().prompts.at(0).prompt, false);
}

TEST(MessagesTest, HistoryReachesThePrompt) {
  const Json body = Json::parse(R"({
    "max_tokens": 50,
    "system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
    "messages": [
      {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "I look.", "signature": "x"},
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"city": "Łódź"}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Rain."}]},
        {"type": "text", "text": "And now?"}]}]})");
  EXPECT_EQ(prompt_of(body),
            "<|im_system|>system<|im_middle|>Be brief.<|im_end|>"
            "<|im_user|>user<|im_middle|>Weather?<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|><think>I look.</think>Looking."
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
            "<|tool_call_argument_begin|>{\"city\": \"Łódź\"}<|tool_call_end|>"
            "<|tool_calls_section_end|><|im_end|>"
            "<|im_system|>tool<|im_middle|>## Return of functions.f:0\nRain.<|im_end|>"
            "<|im_user|>user<|im_middle|>And now?<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|><think>");
}

TEST(MessagesTest, AnAssistantsLastWordsAreContinued) {
  const Json body = Json::parse(R"({"max_tokens": 5, "messages": [
      {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hel"}]})");
  EXPECT_EQ(prompt_of(body),
            "<|im_user|>user<|im_middle|>Hi<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|><think></think>Hel");
}

TEST(MessagesTest, ThinkingIsSwitched) {
  EXPECT_THAT(prompt_of(message(R"(, "thinking": {"type": "disabled"})")),
              testing::EndsWith("<think></think>"));
  for (const char* on : {R"(, "thinking": {"type": "enabled", "budget_tokens": 1024})",
                         R"(, "thinking": {"type": "adaptive"})", ""}) {
    EXPECT_THAT(prompt_of(message(on)), testing::EndsWith("<think>"));
  }
}

TEST(MessagesTest, WholeAnswer) {
  ServerRig rig(engine::say(byte_tokenizer(), kCall));
  rig.start();
  const Response response = rig.post("/v1/messages", message(kTools));
  ASSERT_EQ(response.status, 200) << response.body;
  const Json answer = response.json();
  EXPECT_EQ(answer["type"], "message");
  EXPECT_EQ(answer["role"], "assistant");
  EXPECT_EQ(answer["model"], "nano");
  EXPECT_EQ(answer["id"].get<std::string>().rfind("msg_", 0), 0U);
  ASSERT_EQ(answer["content"].size(), 3U);
  EXPECT_EQ(answer["content"][0]["type"], "thinking");
  EXPECT_EQ(answer["content"][0]["thinking"], "I think");
  EXPECT_EQ(answer["content"][1], (Json{{"type", "text"}, {"text", "Let me look."}}));
  EXPECT_EQ(answer["content"][2]["type"], "tool_use");
  EXPECT_EQ(answer["content"][2]["id"], "functions.f:0");
  EXPECT_EQ(answer["content"][2]["name"], "f");
  EXPECT_EQ(answer["content"][2]["input"], (Json{{"city", "Łódź 🦅"}}));
  EXPECT_EQ(answer["stop_reason"], "tool_use");
  EXPECT_TRUE(answer["stop_sequence"].is_null());
  EXPECT_EQ(answer["usage"]["input_tokens"],
            rig.post("/v1/messages/count_tokens", message(kTools)).json()["input_tokens"]);
  EXPECT_GT(answer["usage"]["output_tokens"], 20);
}

TEST(MessagesTest, StopReasons) {
  ServerRig rig(engine::say(byte_tokenizer(), "hm</think>one two three"));
  rig.start();
  const auto answer = [&](const std::string& more) {
    return rig.post("/v1/messages", message(more)).json();
  };
  EXPECT_EQ(answer("")["stop_reason"], "end_turn");
  const Json stopped = answer(R"(, "stop_sequences": ["two"])");
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "two");
  EXPECT_EQ(stopped["content"][1]["text"], "one ");
  Json body = message();
  body["max_tokens"] = 5;
  EXPECT_EQ(rig.post("/v1/messages", body).json()["stop_reason"], "max_tokens");
}

// The message that a stream's events build.
Json built_of(const std::vector<Json>& events) {
  Json built;
  std::string arguments;
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (type == "message_start") built = event["message"];
    if (type == "content_block_start") {
      EXPECT_EQ(event["index"], built["content"].size());
      built["content"].push_back(event["content_block"]);
      arguments.clear();
    }
    if (type == "content_block_delta") {
      Json& block = built["content"].back();
      for (const auto& [name, value] : event["delta"].items()) {
        if (name == "type") continue;
        if (name == "partial_json") {
          arguments += value.get<std::string>();
        } else {
          block[name] = block[name].get<std::string>() + value.get<std::string>();
        }
      }
    }
    if (type == "content_block_stop" && built["content"].back()["type"] == "tool_use") {
      const Json input = Json::parse(arguments, nullptr, false);
      built["content"].back()["input"] = input.is_object() ? input : Json::object();
    }
    if (type == "message_delta") {
      built.update(event["delta"]);
      built["usage"] = event["usage"];
    }
  }
  return built;
}

// A stream put together equals the whole answer.
void expect_twins(const std::string& says, const std::string& more, int64_t num_right) {
  SCOPED_TRACE(says + " | " + more + " | drafts right: " + std::to_string(num_right));
  ServerRig rig(engine::say(byte_tokenizer(), says), num_right);
  rig.start();
  Json whole = rig.post("/v1/messages", message(more)).json();
  const std::vector<Json> events =
      named_events_of(rig.post("/v1/messages", message(more + R"(, "stream": true)")));
  Json built = built_of(events);
  ASSERT_TRUE(built.is_object());
  for (Json* one : {&built, &whole}) {
    (*one)["id"] = "id";
    for (Json& block : (*one)["content"]) {
      if (block.contains("signature")) block["signature"] = "s";
    }
  }
  EXPECT_EQ(built, whole);
  EXPECT_EQ(types_of(events).front(), "message_start");
  EXPECT_EQ(types_of(events).back(), "message_stop");
}

TEST(MessagesTest, StreamsEqualTheirUnstreamedTwins) {
  const std::vector<std::pair<const char*, std::string>> cases = {
      {kCall, kTools},
      {kCall, kTools + R"(, "stop_sequences": ["🦅"])"},
      {kCall, ""},
      {kCall, kTools + R"(, "tool_choice": {"type": "none"})"},
      {"all thought", ""},
      {"no thought 🦅", R"(, "thinking": {"type": "disabled"})"},
      {"", ""},
  };
  for (const int64_t num_right : {0, 3, 6}) {
    for (const auto& [says, more] : cases) expect_twins(says, more, num_right);
  }
}

TEST(MessagesTest, GeneratedStreamsEqualTheirUnstreamedTwins) {
  const std::vector<std::string> ends = {
      "", kTools, kTools + R"(, "stop_sequences": ["b<", "🦅", "ab"])",
      kTools + R"(, "tool_choice": {"type": "auto", "disable_parallel_tool_use": true})"};
  for (uint32_t seed = 0; seed < 250 && !testing::Test::HasFailure(); ++seed) {
    std::mt19937 dice(seed);
    expect_twins(random_answer(dice), ends[dice() % ends.size()], dice() % 7);
  }
}

// Whatever stands where, the answer is a checked request or a sentence.
TEST(MessagesTest, AnyBodyIsTakenOrRefused) {
  const std::vector<std::string> words = {
      "model",       "max_tokens",  "messages", "role",           "user",     "assistant",
      "content",     "type",        "text",     "thinking",       "tool_use", "tool_result",
      "tool_choice", "auto",        "tools",    "name",           "input",    "input_schema",
      "id",          "tool_use_id", "system",   "stop_sequences", "stream",   "image"};
  int num_taken = 0;
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    std::mt19937 dice(seed);
    Json body = random_json(dice, words, 5);
    if (!body.is_object()) body = Json::object();
    if (dice() % 2 == 0) {
      body["max_tokens"] = 5;
      body["messages"] = Json::array({{{"role", dice() % 2 == 0 ? "user" : "assistant"},
                                       {"content", random_json(dice, words, 3)}}});
    }
    const std::string prompt = prompt_of(body);
    EXPECT_NE(prompt, "refused: ") << body.dump();
    num_taken += prompt.rfind("refused: ", 0) != 0;
  }
  EXPECT_GT(num_taken, 100);
}

TEST(MessagesTest, EventsComeInAnthropicsOrder) {
  ServerRig rig(engine::say(byte_tokenizer(), "a</think>b"));
  rig.start();
  EXPECT_THAT(
      types_of(named_events_of(rig.post("/v1/messages", message(R"(, "stream": true)")))),
      ElementsAre("message_start", "ping", "content_block_start", "content_block_delta",
                  "content_block_delta", "content_block_stop", "content_block_start",
                  "content_block_delta", "content_block_stop", "message_delta", "message_stop"));
}

TEST(MessagesTest, BadRequestsHaveAnthropicsShape) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.config.api_keys = {"key"};
  rig.start();
  const auto refused = [&](int status, const std::string& type, const std::string& says,
                           const std::string& body, const std::string& key = "key") {
    const Response response =
        rig.request("POST", "/v1/messages", body, "x-api-key: " + key + "\r\n");
    EXPECT_EQ(response.status, status) << response.body;
    EXPECT_EQ(response.json()["type"], "error");
    EXPECT_EQ(response.json()["error"]["type"], type);
    EXPECT_THAT(response.error(), HasSubstr(says)) << body;
  };
  const auto invalid = [&](const std::string& says, const std::string& body) {
    refused(400, "invalid_request_error", says, body);
  };
  const std::string ok = R"("max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}])";
  refused(401, "authentication_error", "key", "{" + ok + "}", "other");
  EXPECT_EQ(rig.request("POST", "/v1/messages", "{" + ok + "}", "x-api-key: key\r\n").status, 200);
  EXPECT_EQ(
      rig.request("POST", "/v1/messages", "{" + ok + "}", "Authorization: Bearer key\r\n").status,
      200);
  refused(404, "not_found_error", "other", R"({"model": "other", )" + ok + "}");
  invalid("JSON", "{");
  invalid("max_tokens is required", R"({"messages": [{"role": "user", "content": "Hi"}]})");
  invalid("max_tokens", R"({"max_tokens": 0, "messages": [{"role": "user", "content": "Hi"}]})");
  invalid("messages", R"({"max_tokens": 5})");
  invalid("no content", R"({"max_tokens": 5, "messages": [{"role": "user", "content": []}]})");
  invalid("messages[0].role",
          R"({"max_tokens": 5, "messages": [{"role": "king", "content": ""}]})");
  invalid("messages[0].content[0].type",
          R"({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "smell"}]}]})");
  invalid(
      "messages[0].tool_calls[0].function.name",
      R"({"max_tokens": 5, "messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]})");
  invalid(
      "image",
      R"({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]})");
  invalid("constrained decoding", "{" + ok + kTools + R"(, "tool_choice": {"type": "any"}})");
  invalid("constrained decoding",
          "{" + ok + R"(, "output_config": {"format": {"type": "json_schema"}}})");
  invalid("tools[0]", "{" + ok + R"(, "tools": [{"type": "web_search_20250305", "name": "w"}]})");
  invalid("thinking.type", "{" + ok + R"(, "thinking": {"type": "loud"}})");
  invalid("stop_sequences", "{" + ok + R"(, "stop_sequences": 5})");
  invalid("temperature", "{" + ok + R"(, "temperature": "hot"})");
  invalid("4000", R"({"max_tokens": 4000, "messages": [{"role": "user", "content": "Hi"}]})");
}

TEST(MessagesTest, AFaultInTheStreamIsAnErrorEvent) {
  const auto tape = [](std::span<const TokenId>, const runtime::SamplingParams&, int64_t idx) {
    return idx < 2 ? TokenId{'k'} : runtime::Sampler::kNumericFault;
  };
  ServerRig rig(tape);
  rig.start();
  const std::vector<Json> events =
      named_events_of(rig.post("/v1/messages", message(R"(, "stream": true)")));
  EXPECT_EQ(events.back()["type"], "error");
  EXPECT_EQ(events.back()["error"]["type"], "api_error");
  const Response whole = rig.post("/v1/messages", message());
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.json()["type"], "error");
}

}  // namespace
}  // namespace eyrie::server
