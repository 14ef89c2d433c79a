// OpenAI's Responses API: what of a request reaches the model, and what of its answer the client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "server/random_input.h"
#include "server/response_request.h"
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
const std::string kTools =
    R"(, "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}])";

Json ask(const std::string& more = "") {
  return Json::parse(R"({"model": "nano", "temperature": 0, "input": "Hi")" + more + "}");
}

// The prompt that a request becomes.
std::string prompt_of(const std::string& body) {
  ServerConfig config;
  config.served_model_names = {"nano"};
  config.max_model_len = 4096;
  config.vocab_size = byte_tokenizer().vocab_size();
  const auto chat_template = chat::make_kimi_template();
  ResponseStore store;
  const auto parsed =
      parse_response(Json::parse(body), {config, byte_tokenizer(), *chat_template}, store);
  if (!parsed.ok()) return "refused: " + parsed.failure().message;
  return byte_tokenizer().decode(parsed.value().prompts.at(0).prompt, false);
}

TEST(ResponsesTest, ItemsReachThePrompt) {
  EXPECT_EQ(prompt_of(R"({"instructions": "Be brief.", "input": [
      {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
      {"type": "reasoning", "id": "rs_1", "summary": [],
       "content": [{"type": "reasoning_text", "text": "I look."}]},
      {"type": "message", "role": "assistant", "id": "msg_1",
       "content": [{"type": "output_text", "text": "Looking.", "annotations": []}]},
      {"type": "function_call", "call_id": "call_ab", "name": "f", "arguments": "{\"city\":\"Łódź\"}"},
      {"type": "function_call_output", "call_id": "call_ab", "output": "Rain."}]})"),
            "<|im_system|>system<|im_middle|>Be brief.<|im_end|>"
            "<|im_user|>user<|im_middle|>Weather?<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|><think>I look.</think>Looking."
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
            "<|tool_call_argument_begin|>{\"city\": \"Łódź\"}<|tool_call_end|>"
            "<|tool_calls_section_end|><|im_end|>"
            "<|im_system|>tool<|im_middle|>## Return of functions.f:0\nRain.<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|><think>");
  // Two answers in a row stay two messages.
  EXPECT_EQ(prompt_of(R"({"reasoning": {"effort": "none"}, "input": [
      {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]})"),
            "<|im_assistant|>assistant<|im_middle|><think></think>a<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|><think></think>b<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|><think></think>");
}

TEST(ResponsesTest, WholeAnswer) {
  ServerRig rig(engine::say(byte_tokenizer(), kCall));
  rig.start();
  const Response response = rig.post(
      "/v1/responses", ask(kTools + R"(, "metadata": {"k": "v"}, "max_output_tokens": 300)"));
  ASSERT_EQ(response.status, 200) << response.body;
  const Json answer = response.json();
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["status"], "completed");
  EXPECT_EQ(answer["metadata"], (Json{{"k", "v"}}));
  EXPECT_EQ(answer["max_output_tokens"], 300);
  EXPECT_EQ(answer["tools"][0]["name"], "f");
  ASSERT_EQ(answer["output"].size(), 3U);
  EXPECT_EQ(answer["output"][0]["type"], "reasoning");
  EXPECT_EQ(answer["output"][0]["content"][0]["text"], "I think");
  EXPECT_EQ(answer["output"][1]["type"], "message");
  EXPECT_EQ(answer["output"][1]["content"][0]["type"], "output_text");
  EXPECT_EQ(answer["output"][1]["content"][0]["text"], "Let me look.");
  EXPECT_EQ(answer["output"][2]["type"], "function_call");
  EXPECT_EQ(answer["output"][2]["call_id"], "functions.f:0");
  EXPECT_EQ(answer["output"][2]["name"], "f");
  EXPECT_EQ(answer["output"][2]["arguments"], "{\"city\": \"Łódź 🦅\"}");
  const Json& usage = answer["usage"];
  // "I think" and the mark that ends the thought.
  EXPECT_EQ(usage["output_tokens_details"]["reasoning_tokens"], 8);
  EXPECT_EQ(usage["total_tokens"].get<int>(),
            usage["input_tokens"].get<int>() + usage["output_tokens"].get<int>());
}

TEST(ResponsesTest, EventsComeInOpenAisOrder) {
  ServerRig rig(engine::say(byte_tokenizer(),
                            "a</think>b<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
                            "<|tool_call_argument_begin|>{}<|tool_call_end|>"
                            "<|tool_calls_section_end|>"));
  rig.start();
  const std::vector<Json> events =
      named_events_of(rig.post("/v1/responses", ask(kTools + R"(, "stream": true)")));
  EXPECT_THAT(
      types_of(events),
      ElementsAre(
          "response.created", "response.in_progress", "response.output_item.added",
          "response.content_part.added", "response.reasoning_text.delta",
          "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
          "response.output_item.added", "response.content_part.added", "response.output_text.delta",
          "response.output_text.done", "response.content_part.done", "response.output_item.done",
          "response.output_item.added", "response.function_call_arguments.delta",
          "response.function_call_arguments.delta", "response.function_call_arguments.done",
          "response.output_item.done", "response.completed"));
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i]["sequence_number"], i);
}

// A stream put together equals the whole answer.
void expect_twins(const std::string& says, const std::string& more, int64_t num_right) {
  SCOPED_TRACE(says + " | " + more + " | drafts right: " + std::to_string(num_right));
  ServerRig rig(engine::say(byte_tokenizer(), says), num_right);
  rig.start();
  Json whole = rig.post("/v1/responses", ask(more)).json();
  const std::vector<Json> events =
      named_events_of(rig.post("/v1/responses", ask(more + R"(, "stream": true)")));
  ASSERT_FALSE(events.empty());
  Json last = events.back()["response"];
  // What the events said piece by piece, and what the last one says at once.
  Json items = Json::array();
  std::string grown;
  size_t num_logprobs = 0;
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (type == "response.output_item.added") {
      grown.clear();
      num_logprobs = 0;
    }
    if (event.contains("delta")) {
      grown += event["delta"].get<std::string>();
      num_logprobs += event.value("logprobs", Json::array()).size();
    }
    if (type != "response.output_item.done") continue;
    const Json& item = event["item"];
    items.push_back(item);
    EXPECT_EQ(event["output_index"], items.size() - 1);
    EXPECT_EQ(grown, item.contains("arguments") ? item["arguments"] : item["content"][0]["text"]);
    if (item["type"] == "message") {
      EXPECT_EQ(num_logprobs, item["content"][0]["logprobs"].size());
    }
  }
  EXPECT_EQ(items, last["output"]);
  for (Json* one : {&whole, &last}) {
    (*one)["id"] = "id";
    (*one)["created_at"] = 0;
    for (Json& item : (*one)["output"]) item["id"] = "id";
  }
  EXPECT_EQ(last, whole);
  EXPECT_EQ(events.back()["type"],
            whole["status"] == "incomplete" ? "response.incomplete" : "response.completed");
  const Json& usage = whole["usage"];
  EXPECT_LE(usage["output_tokens_details"]["reasoning_tokens"], usage["output_tokens"]);
}

TEST(ResponsesTest, StreamsEqualTheirUnstreamedTwins) {
  const std::vector<std::pair<const char*, std::string>> cases = {
      {kCall, kTools},
      {kCall, kTools + R"(, "parallel_tool_calls": false)"},
      {kCall, kTools + R"(, "max_output_tokens": 40)"},
      {kCall, ""},
      {"hm</think>a 🦅", R"(, "include": ["message.output_text.logprobs"], "top_logprobs": 2)"},
      {"all thought", R"(, "max_output_tokens": 5)"},
      {"no thought", R"(, "reasoning": {"effort": "none"}, "stop": ["ght"])"},
      {"", ""},
  };
  for (const int64_t num_right : {0, 3, 6}) {
    for (const auto& [says, more] : cases) expect_twins(says, more, num_right);
  }
}

TEST(ResponsesTest, GeneratedStreamsEqualTheirUnstreamedTwins) {
  const std::string logprobs =
      R"(, "include": ["message.output_text.logprobs"], "top_logprobs": 1)";
  const std::vector<std::string> ends = {"", kTools, kTools + logprobs,
                                         kTools + R"(, "stop": ["b<", "🦅", "ab"])",
                                         kTools + R"(, "max_output_tokens": 30)"};
  for (uint32_t seed = 0; seed < 250 && !testing::Test::HasFailure(); ++seed) {
    std::mt19937 dice(seed);
    expect_twins(random_answer(dice), ends[dice() % ends.size()], dice() % 7);
  }
}

// Whatever stands where, the answer is a checked request or a sentence.
TEST(ResponsesTest, AnyBodyIsTakenOrRefused) {
  const std::vector<std::string> words = {"input",
                                          "role",
                                          "user",
                                          "assistant",
                                          "content",
                                          "type",
                                          "message",
                                          "reasoning",
                                          "summary",
                                          "text",
                                          "input_text",
                                          "output_text",
                                          "function_call",
                                          "function_call_output",
                                          "call_id",
                                          "name",
                                          "arguments",
                                          "output",
                                          "instructions",
                                          "tools",
                                          "function",
                                          "tool_choice",
                                          "auto",
                                          "include",
                                          "previous_response_id",
                                          "store",
                                          "stream",
                                          "metadata"};
  int num_taken = 0;
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    std::mt19937 dice(seed);
    Json body = random_json(dice, words, 5);
    if (!body.is_object()) body = Json::object();
    if (dice() % 2 == 0) body["input"] = random_json(dice, words, 3);
    const std::string prompt = prompt_of(body.dump());
    EXPECT_NE(prompt, "refused: ") << body.dump();
    num_taken += prompt.rfind("refused: ", 0) != 0;
  }
  EXPECT_GT(num_taken, 100);
}

TEST(ResponsesTest, LengthIsIncomplete) {
  ServerRig rig(engine::say(byte_tokenizer(), "a long thought"));
  rig.start();
  const Json answer = rig.post("/v1/responses", ask(R"(, "max_output_tokens": 4)")).json();
  EXPECT_EQ(answer["status"], "incomplete");
  EXPECT_EQ(answer["incomplete_details"], (Json{{"reason", "max_output_tokens"}}));
  EXPECT_EQ(answer["output"][0]["status"], "incomplete");
}

TEST(ResponsesTest, LogprobsAreThoseOfTheText) {
  ServerRig rig(engine::say(byte_tokenizer(), "hm</think>ab"));
  rig.start();
  const Json answer =
      rig.post("/v1/responses",
               ask(R"(, "include": ["message.output_text.logprobs"], "top_logprobs": 1)"))
          .json();
  const Json& logprobs = answer["output"][1]["content"][0]["logprobs"];
  ASSERT_EQ(logprobs.size(), 2U);
  EXPECT_EQ(logprobs[0]["token"], "a");
  EXPECT_FLOAT_EQ(logprobs[1]["logprob"].get<float>(), engine::TapeRunner::logprob_of('b'));
  EXPECT_EQ(logprobs[1]["top_logprobs"].size(), 1U);
}

TEST(ResponsesTest, ConversationsGoOnFromAStoredAnswer) {
  ServerRig rig(engine::say(byte_tokenizer(), "hm</think>First."));
  rig.start();
  const Json first = rig.post("/v1/responses", ask(R"(, "instructions": "One.")")).json();
  const std::string id = first["id"];
  EXPECT_EQ(rig.request("GET", "/v1/responses/" + id).json(), first);
  const Response second =
      rig.post("/v1/responses", ask(R"(, "stream": true, "previous_response_id": ")" + id + "\""));
  const Json answer = named_events_of(second).back()["response"];
  EXPECT_EQ(answer["previous_response_id"], id);
  // Hi, First., Hi: without the first turn's instructions.
  EXPECT_EQ(answer["usage"]["input_tokens"].get<size_t>(),
            rig.post("/tokenize", Json::parse(R"({"messages": [
                        {"role": "user", "content": "Hi"},
                        {"role": "assistant", "content": "First."},
                        {"role": "user", "content": "Hi"}]})"))
                .json()["count"]
                .get<size_t>());
  EXPECT_EQ(rig.request("POST", "/v1/responses/" + id + "/cancel", "{}").status, 400);
  EXPECT_EQ(rig.request("DELETE", "/v1/responses/" + id).json()["deleted"], true);
  EXPECT_EQ(rig.request("GET", "/v1/responses/" + id).status, 404);
  const Response gone =
      rig.post("/v1/responses", ask(R"(, "previous_response_id": ")" + id + "\""));
  EXPECT_EQ(gone.status, 404);
  EXPECT_EQ(gone.json()["error"]["param"], "previous_response_id");
  const Json unstored = rig.post("/v1/responses", ask(R"(, "store": false)")).json();
  EXPECT_EQ(unstored["store"], false);
  EXPECT_EQ(rig.request("GET", "/v1/responses/" + unstored["id"].get<std::string>()).status, 404);
}

TEST(ResponsesTest, WhatCannotBeDoneIsNamed) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.start();
  const auto refused = [&](const std::string& says, const std::string& body) {
    const Response response = rig.request("POST", "/v1/responses", body);
    EXPECT_EQ(response.status, 400) << body << response.body;
    EXPECT_THAT(response.error(), HasSubstr(says)) << body;
  };
  const auto refused_field = [&](const std::string& says, const std::string& more) {
    refused(says, R"({"input": "Hi", )" + more + "}");
  };
  refused("input", "{}");
  refused("input", R"({"input": []})");
  refused("input", R"({"input": 5})");
  refused("input[0].type", R"({"input": [{"type": "web_search_call"}]})");
  refused("input[1].role", R"({"input": [{"role": "user", "content": "a"}, {"content": "b"}]})");
  refused("input[0].tool_calls[0].function.name",
          R"({"input": [{"type": "function_call", "call_id": "x"}]})");
  refused("image", R"({"input": [{"role": "user", "content":
                       [{"type": "input_image", "image_url": "data:,"}]}]})");
  refused("input_file", R"({"input": [{"role": "user", "content": [{"type": "input_file"}]}]})");
  refused_field("constrained", R"("text": {"format": {"type": "json_schema"}})");
  refused_field("constrained", R"("tool_choice": "required", "tools":
                               [{"type": "function", "name": "f"}])");
  refused_field("tools[0]", R"("tools": [{"type": "web_search"}])");
  refused_field("background", R"("background": true)");
  refused_field("conversation", R"("conversation": "c")");
  refused_field("max_output_tokens", R"("max_output_tokens": 0)");
  refused_field("instructions", R"("instructions": 5)");
  refused_field("truncation", R"("truncation": "some")");
  refused_field("reasoning_effort", R"("reasoning": {"effort": "huge"})");
  EXPECT_EQ(rig.request("GET", "/v1/responses/resp_none").status, 404);
  EXPECT_EQ(rig.request("PUT", "/v1/responses/resp_none").status, 405);
  EXPECT_EQ(rig.request("GET", "/v1/responses/").status, 404);
}

TEST(ResponsesTest, AFaultInTheStreamFailsTheResponse) {
  const auto tape = [](std::span<const TokenId>, const runtime::SamplingParams&, int64_t idx) {
    return idx < 2 ? TokenId{'k'} : runtime::Sampler::kNumericFault;
  };
  ServerRig rig(tape);
  rig.start();
  const std::vector<Json> events =
      named_events_of(rig.post("/v1/responses", ask(R"(, "stream": true)")));
  EXPECT_EQ(events.back()["type"], "response.failed");
  EXPECT_THAT(events.back()["response"]["error"]["message"].get<std::string>(),
              HasSubstr("numeric fault"));
}

TEST(ResponseStoreTest, TheLeastRecentlyUsedMakesRoom) {
  ResponseStore store(2, 100);
  store.put("a", {"1", "x"});
  store.put("b", {"2", "x"});
  EXPECT_TRUE(store.find("a"));
  store.put("c", {"3", "x"});
  EXPECT_TRUE(store.find("a"));
  EXPECT_FALSE(store.find("b"));
  EXPECT_EQ(store.find("c")->body, "3");
  store.put("c", {"4", "x"});
  EXPECT_EQ(store.find("c")->body, "4");
  store.put("d", {std::string(98, 'd'), ""});  // all of the room
  EXPECT_FALSE(store.find("a"));
  EXPECT_FALSE(store.find("c"));
  EXPECT_TRUE(store.find("d"));
  store.put("e", {std::string(200, 'e'), ""});  // more than there is
  EXPECT_FALSE(store.find("d"));
  EXPECT_FALSE(store.find("e"));
  EXPECT_FALSE(store.erase("e"));
  ResponseStore none(0, 100);
  none.put("a", {"1", "x"});
  EXPECT_FALSE(none.find("a"));
}

}  // namespace
}  // namespace eyrie::server
