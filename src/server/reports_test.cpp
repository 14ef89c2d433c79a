// Reports by users of other servers about their HTTP interfaces, as small trials of ours. A name
// begins with the report's number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/testing.h"

namespace eyrie::server {
namespace {

using chat::Json;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

const std::string kChat = R"({"temperature": 0, "messages": [{"role": "user", "content": "Hi"}])";
const std::string kTools =
    R"(, "tools": [{"type": "function", "function": {"name": "f",
       "parameters": {"type": "object", "properties": {}}}}])";

std::string call_of(const std::string& id) {
  return "hm</think><|tool_calls_section_begin|><|tool_call_begin|>" + id +
         "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
}

Json chat(const std::string& more = "") { return Json::parse(kChat + more + "}"); }

// The text that a chat request becomes.
std::string prompt_of(ServerRig& rig, const Json& body) {
  const Json tokens = rig.post("/tokenize", body).json();
  return rig.post("/detokenize", {{"tokens", tokens["tokens"]}}).json()["prompt"];
}

TEST(ReportsTest, A10_ForeignCallIdsAreRewrittenAndUnderstood) {
  ServerRig rig(engine::say(byte_tokenizer(), call_of("call_ab12")));
  rig.start();
  const Json history = Json::parse(R"({"messages": [
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": null, "tool_calls": [
        {"id": "call_ab12", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "call_ab12", "content": "done"}]})");
  EXPECT_THAT(prompt_of(rig, history), HasSubstr("<|tool_call_begin|>functions.f:0<"));
  EXPECT_THAT(prompt_of(rig, history), HasSubstr("## Return of functions.f:0\ndone"));
  EXPECT_THAT(prompt_of(rig, history), Not(HasSubstr("call_ab12")));
  // A model that writes such an id all the same, with the one function it can mean.
  const Json answer = rig.post("/v1/chat/completions", chat(kTools)).json();
  const Json& call = answer["choices"][0]["message"]["tool_calls"][0];
  EXPECT_EQ(call["function"]["name"], "f");
  EXPECT_EQ(call["id"], "functions.f:0");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "tool_calls");
}

TEST(ReportsTest, A13_ToolChoiceNoneGivesTextOnly) {
  ServerRig rig(engine::say(byte_tokenizer(), "why</think>So." + call_of("functions.f:0")));
  rig.start();
  const Json answer =
      rig.post("/v1/chat/completions", chat(kTools + R"(, "tool_choice": "none")")).json();
  const Json& choice = answer["choices"][0];
  EXPECT_TRUE(choice["message"]["tool_calls"].empty());
  EXPECT_THAT(choice["message"]["content"].get<std::string>(), testing::StartsWith("So."));
  EXPECT_EQ(choice["message"]["reasoning"], "why");
  EXPECT_EQ(choice["finish_reason"], "stop");
}

// "required" and named functions need constrained decoding: the same clear refusal, streamed or
// not, and "auto" ends with the same reason in both.
TEST(ReportsTest, A14_FinishReasonsAreTheSameStreamedAndNot) {
  ServerRig rig(engine::say(byte_tokenizer(), call_of("functions.f:0")));
  rig.start();
  for (const char* choice :
       {R"("required")", R"({"type": "function", "function": {"name": "f"}})"}) {
    for (const char* stream : {"true", "false"}) {
      const Response refused =
          rig.post("/v1/chat/completions",
                   chat(kTools + R"(, "tool_choice": )" + choice + R"(, "stream": )" + stream));
      EXPECT_EQ(refused.status, 400);
      EXPECT_EQ(refused.json()["error"]["param"], "tool_choice");
      EXPECT_THAT(refused.error(), HasSubstr("constrained decoding"));
    }
  }
  EXPECT_EQ(rig.post("/v1/chat/completions", chat(kTools)).json()["choices"][0]["finish_reason"],
            "tool_calls");
  const std::vector<Json> events =
      events_of(rig.post("/v1/chat/completions", chat(kTools + R"(, "stream": true)")));
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "tool_calls");
}

TEST(ReportsTest, A15_IdsOfCallsSurviveTheNextTurn) {
  ServerRig rig(engine::say(byte_tokenizer(), call_of("functions.f:0")));
  rig.start();
  Json body = chat(kTools);
  for (int turn = 0; turn < 3; ++turn) {
    const Json message = rig.post("/v1/chat/completions", body).json()["choices"][0]["message"];
    const std::string id = message["tool_calls"][0]["id"];
    EXPECT_EQ(id.rfind("functions.f:", 0), 0U) << id;
    body["messages"].push_back(message);
    body["messages"].push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", "done"}});
    EXPECT_THAT(prompt_of(rig, body), HasSubstr("<|tool_call_begin|>" + id + "<"));
    EXPECT_THAT(prompt_of(rig, body), HasSubstr("## Return of " + id + "\ndone<|im_end|>"));
  }
}

// The whole prompt of a tool loop, written out: reasoning of the loop under way is kept, that of
// finished turns is not, and after the results the model is asked to think.
TEST(ReportsTest, A17_ToolLoopsKeepTheirReasoningInThePrompt) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.start();
  const Json body = Json::parse(R"({"messages": [
      {"role": "user", "content": "One?"},
      {"role": "assistant", "reasoning": "old", "content": "Two."},
      {"role": "user", "content": "Both?"},
      {"role": "assistant", "reasoning": "first a", "content": "", "tool_calls": [
        {"id": "functions.a:0", "type": "function", "function": {"name": "a", "arguments": "{\"x\":1}"}}]},
      {"role": "tool", "tool_call_id": "functions.a:0", "content": "A"},
      {"role": "assistant", "reasoning_content": "then b", "content": null, "tool_calls": [
        {"id": "functions.b:1", "type": "function", "function": {"name": "b", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "functions.b:1", "content": "B"}]})");
  EXPECT_EQ(
      prompt_of(rig, body),
      "<|im_user|>user<|im_middle|>One?<|im_end|>"
      "<|im_assistant|>assistant<|im_middle|><think></think>Two.<|im_end|>"
      "<|im_user|>user<|im_middle|>Both?<|im_end|>"
      "<|im_assistant|>assistant<|im_middle|><think>first a</think>"
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0"
      "<|tool_call_argument_begin|>{\"x\": 1}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
      "<|im_system|>tool<|im_middle|>## Return of functions.a:0\nA<|im_end|>"
      "<|im_assistant|>assistant<|im_middle|><think>then b</think>"
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.b:1"
      "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
      "<|im_system|>tool<|im_middle|>## Return of functions.b:1\nB<|im_end|>"
      "<|im_assistant|>assistant<|im_middle|><think>");
}

TEST(ReportsTest, B23_B24_EverySpellingTurnsThinkingOff) {
  ServerRig rig(engine::say(byte_tokenizer(), "Plain."));
  rig.start();
  for (const char* off : {R"(, "chat_template_kwargs": {"enable_thinking": false})",
                          R"(, "chat_template_kwargs": {"thinking": false})",
                          R"(, "thinking": {"type": "disabled"})"}) {
    EXPECT_THAT(prompt_of(rig, chat(off)), EndsWith("<think></think>")) << off;
    const Json message =
        rig.post("/v1/chat/completions", chat(off)).json()["choices"][0]["message"];
    EXPECT_EQ(message["content"], "Plain.") << off;
    EXPECT_TRUE(message["reasoning"].is_null()) << off;
  }
  const Response refused =
      rig.post("/v1/chat/completions", chat(R"(, "thinking": {"type": "sometimes"})"));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "thinking");
}

TEST(ReportsTest, B25_APromptEndsWithTheAssistantsHeader) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.start();
  EXPECT_THAT(prompt_of(rig, chat()), EndsWith("<|im_assistant|>assistant<|im_middle|><think>"));
  EXPECT_THAT(prompt_of(rig, chat(R"(, "add_generation_prompt": false)")),
              EndsWith("Hi<|im_end|>"));
}

// kwargs, then Moonshot's own field, then the effort.
TEST(ReportsTest, B27_OneSwitchOfThinkingComesBeforeTheOther) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.start();
  const auto thinks = [&](const std::string& more) {
    return prompt_of(rig, chat(more)).ends_with("<think>");
  };
  EXPECT_TRUE(thinks(R"(, "reasoning_effort": "none", "thinking": {"type": "enabled"})"));
  EXPECT_FALSE(thinks(R"(, "reasoning_effort": "high", "thinking": {"type": "disabled"})"));
  EXPECT_FALSE(
      thinks(R"(, "thinking": {"type": "enabled"}, "chat_template_kwargs": {"thinking": false})"));
  EXPECT_TRUE(thinks(R"(, "reasoning_effort": "low")"));
  EXPECT_FALSE(thinks(R"(, "reasoning_effort": "none")"));
  EXPECT_EQ(rig.post("/v1/chat/completions", chat(R"(, "top_p": 1.0)")).status, 200);
}

TEST(ReportsTest, E59_NullMaxTokensIsAbsent) {
  ServerRig rig(engine::say(byte_tokenizer(), "a text of more than sixteen tokens"));
  rig.start();
  const Response response =
      rig.request("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": null})");
  ASSERT_EQ(response.status, 200);
  EXPECT_EQ(response.json()["choices"][0]["text"], "a text of more than sixteen tokens");
}

TEST(ReportsTest, E60_NoTokensWithEchoScoresThePrompt) {
  ServerRig rig(engine::say(byte_tokenizer(), "xyz"));
  rig.start();
  const Json body = {{"prompt", "abc"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}};
  const Json choice = rig.post("/v1/completions", body).json()["choices"][0];
  EXPECT_EQ(choice["logprobs"]["token_logprobs"].size(), 3U);
  EXPECT_EQ(choice["text"], "abc");
  EXPECT_EQ(rig.post("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 0}}).status, 400);
}

TEST(ReportsTest, E62_APromptThatEndsInsideACharacterIsNotRepeated) {
  // The prompt ends after three of the eagle's four bytes; the answer begins with the fourth.
  const std::vector<TokenId> rest = {0x85, 'x', 'y'};
  const auto tape = [rest](std::span<const TokenId>, const runtime::SamplingParams&, int64_t idx) {
    return rest[static_cast<size_t>(std::min<int64_t>(idx, 2))];
  };
  for (const int64_t num_right : {0, 2, 6}) {
    ServerRig rig(tape, num_right);
    rig.start();
    const Json body = {{"prompt", {'H', 'i', ' ', 0xF0, 0x9F, 0xA6}},
                       {"max_tokens", 3},
                       {"temperature", 0},
                       {"stream", true}};
    std::string text;
    for (const Json& event : events_of(rig.post("/v1/completions", body))) {
      text += event["choices"][0]["text"].get<std::string>();
    }
    EXPECT_EQ(text, "🦅xy");
  }
}

TEST(ReportsTest, E63_CharactersSplitOverTokensComeWhole) {
  const std::string says = "a🦅ď👩‍🚀b";
  for (int64_t num_right = 0; num_right <= 6; ++num_right) {
    SCOPED_TRACE(num_right);
    ServerRig rig(engine::say(byte_tokenizer(), says), num_right);
    rig.start();
    Json body = chat(R"(, "stream": true, "chat_template_kwargs": {"thinking": false})");
    const auto streamed = [&] {
      std::string text;
      for (const Json& event : events_of(rig.post("/v1/chat/completions", body))) {
        const std::string piece = event["choices"][0]["delta"].value("content", "");
        EXPECT_THAT(piece, Not(HasSubstr("\uFFFD")));
        text += piece;
      }
      return text;
    };
    EXPECT_EQ(streamed(), says);
    body["stop"] = "🦅";
    EXPECT_EQ(streamed(), "a");
    body["stop"] = "🚀";
    EXPECT_EQ(streamed(), "a🦅ď👩‍");
  }
}

TEST(ReportsTest, E64_AnImageForATextModelIsRefusedWithTheReason) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.start();
  for (const char* part :
       {R"({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})",
        R"({"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}})",
        R"({"type": "input_image", "image_url": "file:///etc/passwd"})",
        R"({"type": "video_url", "video_url": {"url": "data:,"}})"}) {
    const Response response = rig.request(
        "POST", "/v1/chat/completions",
        std::string(
            R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "See"}, )") +
            part + "]}]}");
    EXPECT_EQ(response.status, 400) << part;
    EXPECT_THAT(response.error(), HasSubstr("text only")) << part;
    EXPECT_EQ(response.json()["error"]["param"], "messages");
  }
}

// Not from a report: best_of shows the likeliest of its candidates, counts all of them.
TEST(BestOfTest, ShowsTheLikeliest) {
  // The tape's logprobs fall with the token's id: a candidate that says 'a' is likelier than 'c'.
  const auto tape = [](std::span<const TokenId>, const runtime::SamplingParams& params, int64_t) {
    return static_cast<TokenId>('a' + params.seed % 7);
  };
  ServerRig rig(tape);
  rig.start();
  const Json all =
      rig.post("/v1/completions", {{"prompt", "q"}, {"n", 5}, {"seed", 11}, {"max_tokens", 2}})
          .json();
  std::vector<std::string> texts;
  for (const Json& choice : all["choices"]) texts.push_back(choice["text"]);
  std::stable_sort(texts.begin(), texts.end());
  ASSERT_NE(texts.front(), texts.back());
  const Json best =
      rig.post("/v1/completions",
               {{"prompt", "q"}, {"n", 2}, {"best_of", 5}, {"seed", 11}, {"max_tokens", 2}})
          .json();
  ASSERT_EQ(best["choices"].size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(best["choices"][i]["index"], i);
    EXPECT_EQ(best["choices"][i]["text"], texts[i]);
    EXPECT_TRUE(best["choices"][i]["logprobs"].is_null());
  }
  EXPECT_EQ(best["usage"]["completion_tokens"], 10);
}

}  // namespace
}  // namespace eyrie::server
