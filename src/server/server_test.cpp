// The server over loopback, with a tape for a model: endpoints, bad input, streams, clients that
// leave, floods, the end.
#include "server/server.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "server/testing.h"

namespace eyrie::server {
namespace {

using chat::Json;
using std::chrono::milliseconds;
using testing::HasSubstr;

engine::TapeRunner::Tape for_ever(TokenId token) {
  return
      [token](std::span<const TokenId>, const runtime::SamplingParams&, int64_t) { return token; };
}

template <typename Condition>
void wait_until(const char* what, Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << what;
    std::this_thread::sleep_for(milliseconds(2));
  }
}

const Json kChat = {{"messages", Json::array({{{"role", "user"}, {"content", "Hi"}}})}};

Json merged(Json base, const Json& more) {
  base.update(more);
  return base;
}

TEST(ServerTest, SmallEndpoints) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.start();
  EXPECT_EQ(rig.request("GET", "/health").status, 200);
  EXPECT_EQ(rig.request("GET", "/health").body, "");
  EXPECT_EQ(rig.request("POST", "/ping").status, 200);
  EXPECT_EQ(rig.request("GET", "/version").json(), (Json{{"version", "1.2.3"}}));
  EXPECT_EQ(rig.request("GET", "/load?x=1").json(), (Json{{"server_load", 0}}));
  const Json models = rig.request("GET", "/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "nano");
  EXPECT_EQ(models["data"][0]["max_model_len"], 2048);
  EXPECT_EQ(models["data"][0]["root"], "/models/nano");
  EXPECT_EQ(rig.request("GET", "/no/such").status, 404);
  EXPECT_EQ(rig.request("GET", "/no/such").json(), (Json{{"detail", "Not Found"}}));
  EXPECT_EQ(rig.request("GET", "/v1/completions").status, 405);
  EXPECT_EQ(rig.request("PUT", "/health").status, 405);

  const Json tokens =
      rig.post("/tokenize", {{"prompt", "a<think>ż"}, {"return_token_strs", true}}).json();
  EXPECT_EQ(tokens["count"], 4);
  EXPECT_EQ(tokens["token_strs"][1], "<think>");
  EXPECT_EQ(rig.post("/detokenize", {{"tokens", tokens["tokens"]}}).json()["prompt"], "a<think>ż");
  EXPECT_THAT(rig.post("/tokenize", kChat).body, HasSubstr("\"count\":"));
  EXPECT_EQ(rig.post("/tokenize", {{"model", "nano"}}).status, 400);
  EXPECT_EQ(rig.post("/detokenize", {{"tokens", {-1}}}).status, 400);

  const Response metrics = rig.request("GET", "/metrics");
  EXPECT_THAT(metrics.headers.at("content-type"), HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(metrics.body,
              HasSubstr("vllm:num_requests_running{engine=\"0\",model_name=\"nano\"} 0"));
  EXPECT_THAT(metrics.body,
              HasSubstr("http_requests_total{handler=\"none\",method=\"GET\",status=\"4xx\"} 2"));
}

TEST(ServerTest, Completion) {
  ServerRig rig(engine::say(byte_tokenizer(), "Hello."));
  rig.start();
  const Response response = rig.request("POST", "/v1/completions",
                                        R"({"model": "nano", "prompt": "abc", "temperature": 0})",
                                        "X-Request-Id: my-id\r\n");
  ASSERT_EQ(response.status, 200) << response.body;
  const Json answer = response.json();
  EXPECT_EQ(answer["id"], "cmpl-my-id");
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["choices"][0]["text"], "Hello.");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(answer["choices"][0]["stop_reason"].is_null());
  EXPECT_TRUE(answer["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 7);
  EXPECT_EQ(answer["usage"]["total_tokens"], 10);
}

TEST(ServerTest, ScoresAPromptAsEvaluationHarnessesAsk) {
  ServerRig rig(engine::say(byte_tokenizer(), "xyz"));
  rig.start();
  Json body = {
      {"prompt", "abc"}, {"max_tokens", 1}, {"logprobs", 1}, {"echo", true}, {"temperature", 0}};
  const Json choice = rig.post("/v1/completions", body).json()["choices"][0];
  EXPECT_EQ(choice["text"], "abcx");
  EXPECT_EQ(choice["logprobs"]["tokens"], (Json{"a", "b", "c", "x"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], (Json{0, 1, 2, 3}));
  ASSERT_EQ(choice["logprobs"]["token_logprobs"].size(), 4U);
  EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_TRUE(choice["logprobs"]["top_logprobs"][0].is_null());
  EXPECT_FLOAT_EQ(choice["logprobs"]["token_logprobs"][1].get<float>(),
                  engine::TapeRunner::logprob_of('b'));
  EXPECT_TRUE(choice["logprobs"]["top_logprobs"][3].contains("x"));
  body["max_tokens"] = 0;
  const Json scored = rig.post("/v1/completions", body).json();
  EXPECT_EQ(scored["choices"][0]["text"], "abc");
  EXPECT_EQ(scored["choices"][0]["logprobs"]["tokens"].size(), 3U);
  EXPECT_EQ(scored["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(scored["usage"]["completion_tokens"], 0);
}

TEST(ServerTest, PromptLogprobs) {
  ServerRig rig(engine::say(byte_tokenizer(), "xyz"));
  rig.start();
  const Json answer =
      rig.post("/v1/completions", {{"prompt", "ab"}, {"prompt_logprobs", 0}, {"temperature", 0}})
          .json();
  const Json& list = answer["choices"][0]["prompt_logprobs"];
  ASSERT_EQ(list.size(), 2U);
  EXPECT_TRUE(list[0].is_null());
  EXPECT_EQ(list[1]["98"]["decoded_token"], "b");
  EXPECT_EQ(list[1]["98"]["rank"], 1);
  const Json chat = rig.post("/v1/chat/completions",
                             merged(kChat, {{"prompt_logprobs", 0}, {"return_token_ids", true}}))
                        .json();
  EXPECT_EQ(chat["prompt_logprobs"].size(), chat["prompt_token_ids"].size());
  EXPECT_EQ(chat["prompt_logprobs"].size(), chat["usage"]["prompt_tokens"].get<size_t>());
}

// A stream put together must equal the whole answer, whatever is asked and however many tokens come
// at once.
struct Twin {
  const char* name;
  const char* says;
  Json body;
};

Json assembled(const std::vector<Json>& events) {
  Json choices = Json::object();
  for (const Json& event : events) {
    for (const Json& piece : event["choices"]) {
      Json& whole = choices[std::to_string(piece["index"].get<int>())];
      if (whole.is_null()) whole = Json::object();
      const Json& delta = piece.contains("delta") ? piece["delta"] : piece;
      for (const char* field : {"text", "content", "reasoning"}) {
        if (!delta.contains(field) || !delta[field].is_string()) continue;
        const std::string before = whole.value(field, "");
        whole[field] = before + delta[field].get<std::string>();
      }
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        Json& own = whole["tool_calls"][std::to_string(call["index"].get<int>())];
        if (own.is_null()) own = Json::object();
        if (call.contains("id")) own["id"] = call["id"];
        const Json& function = call["function"];
        if (function.contains("name")) own["name"] = function["name"];
        own["arguments"] = own.value("arguments", "") + function.value("arguments", "");
      }
      for (const char* field : {"finish_reason", "stop_reason"}) {
        if (piece.contains(field) && !piece[field].is_null()) whole[field] = piece[field];
      }
      for (const char* list :
           {"tokens", "token_logprobs", "top_logprobs", "text_offset", "content"}) {
        if (!piece["logprobs"].is_object() || !piece["logprobs"].contains(list)) continue;
        for (const Json& entry : piece["logprobs"][list]) whole["logprobs"][list].push_back(entry);
      }
      for (const Json& id : piece.value("token_ids", Json::array()))
        whole["token_ids"].push_back(id);
    }
  }
  // The chunk that names the role has an empty content, which is nothing.
  for (Json& whole : choices) {
    if (whole.value("content", "?").empty()) whole.erase("content");
  }
  return choices;
}

Json of_whole(const Json& answer) {
  Json choices = Json::object();
  for (const Json& choice : answer["choices"]) {
    Json& whole = choices[std::to_string(choice["index"].get<int>())];
    const Json& message = choice.contains("message") ? choice["message"] : choice;
    for (const char* field : {"text", "content", "reasoning"}) {
      if (message.contains(field) && message[field].is_string()) whole[field] = message[field];
    }
    int index = 0;
    for (const Json& call : message.value("tool_calls", Json::array())) {
      whole["tool_calls"][std::to_string(index++)] = {{"id", call["id"]},
                                                      {"name", call["function"]["name"]},
                                                      {"arguments", call["function"]["arguments"]}};
    }
    for (const char* field : {"finish_reason", "stop_reason"}) {
      if (!choice[field].is_null()) whole[field] = choice[field];
    }
    if (choice["logprobs"].is_object()) {
      for (const auto& [list, entries] : choice["logprobs"].items()) {
        if (!entries.empty()) whole["logprobs"][list] = entries;
      }
    }
    if (choice["token_ids"].is_array()) whole["token_ids"] = choice["token_ids"];
  }
  return choices;
}

// Compares as sorted JSON: the order of keys is not part of the answer.
nlohmann::json sorted(const Json& json) { return nlohmann::json::parse(json.dump()); }

TEST(ServerTest, StreamsEqualTheirUnstreamedTwins) {
  constexpr const char* kCalls =
      "I think</think>Let me look.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
      "<|tool_call_argument_begin|>{\"city\": \"Łódź "
      "🦅\"}<|tool_call_end|><|tool_call_begin|>functions.g:1"
      "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}},
                                     {"type": "function", "function": {"name": "g"}}])");
  const Json prompt = {{"prompt", "question"}, {"temperature", 0}, {"max_tokens", 60}};
  const Json chat = merged(kChat, {{"temperature", 0}});
  const std::vector<Twin> twins = {
      {"plain", "Hello, eagle 🦅.", prompt},
      {"stop", "one two three", merged(prompt, {{"stop", {"two", "🦅"}}})},
      {"stop that never comes", "one twtw", merged(prompt, {{"stop", "two"}})},
      {"length", "a long answer without end", merged(prompt, {{"max_tokens", 7}})},
      {"echo", "answer", merged(prompt, {{"echo", true}, {"logprobs", 2}})},
      {"logprobs", "aż🦅b", merged(prompt, {{"logprobs", 3}, {"return_token_ids", true}})},
      {"ids for logprobs", "ab",
       merged(prompt, {{"logprobs", 0}, {"return_tokens_as_token_ids", true}})},
      {"choices", "x", merged(prompt, {{"n", 3}, {"temperature", 1}})},
      {"prompts", "x", {{"prompt", {"a", "b"}}, {"temperature", 0}}},
      {"stop token", "abcd", merged(prompt, {{"stop_token_ids", {'c'}}})},
      {"thinking", "hm 🦅</think>The answer.", chat},
      {"thinking hidden", "hm</think>The answer.", merged(chat, {{"include_reasoning", false}})},
      {"all thought", "hm, hm", chat},
      {"no thinking", "Plain.", merged(chat, {{"chat_template_kwargs", {{"thinking", false}}}})},
      {"calls", kCalls, merged(chat, {{"tools", tools}})},
      {"calls with logprobs", kCalls,
       merged(chat, {{"tools", tools}, {"logprobs", true}, {"top_logprobs", 1}})},
      {"one call", kCalls, merged(chat, {{"tools", tools}, {"parallel_tool_calls", false}})},
      {"calls not wanted", kCalls, merged(chat, {{"tools", tools}, {"tool_choice", "none"}})},
      {"ids of chat", "a</think>b", merged(chat, {{"return_token_ids", true}})},
  };
  for (const int64_t num_right : {0, 3, 6}) {
    for (const Twin& twin : twins) {
      SCOPED_TRACE(std::string(twin.name) + ", drafts right: " + std::to_string(num_right));
      ServerRig rig(engine::say(byte_tokenizer(), twin.says), num_right);
      rig.start();
      const char* path =
          twin.body.contains("messages") ? "/v1/chat/completions" : "/v1/completions";
      const Response whole = rig.post(path, twin.body);
      ASSERT_EQ(whole.status, 200) << whole.body;
      const Response stream = rig.post(
          path,
          merged(twin.body, {{"stream", true}, {"stream_options", {{"include_usage", true}}}}));
      ASSERT_EQ(stream.status, 200) << stream.body;
      EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream; charset=utf-8");
      std::vector<Json> events = events_of(stream);
      ASSERT_GE(events.size(), 2U);
      const Json usage = events.back()["usage"];
      EXPECT_TRUE(events.back()["choices"].empty());
      events.pop_back();
      for (const Json& event : events) EXPECT_FALSE(event.contains("usage"));
      for (const char* count : {"prompt_tokens", "completion_tokens", "total_tokens"}) {
        EXPECT_EQ(usage[count], whole.json()["usage"][count]) << count;
      }
      EXPECT_EQ(sorted(assembled(events)), sorted(of_whole(whole.json())));
      for (const Json& choice : of_whole(whole.json())) {
        for (const char* field : {"text", "content", "reasoning"}) {
          EXPECT_EQ(choice.value(field, "").find("<|"), std::string::npos) << "a marker leaked";
        }
      }
    }
  }
}

TEST(ServerTest, ChatAnswerFields) {
  ServerRig rig(
      engine::say(byte_tokenizer(),
                  "why</think>So.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
                  "<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|>"
                  "<|tool_calls_section_end|>"));
  rig.start();
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  const Json answer = rig.post("/v1/chat/completions", merged(kChat, {{"tools", tools}})).json();
  EXPECT_EQ(answer["object"], "chat.completion");
  const Json& message = answer["choices"][0]["message"];
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["content"], "So.");
  EXPECT_EQ(message["reasoning"], "why");
  EXPECT_EQ(message["reasoning_content"], "why");
  EXPECT_EQ(message["tool_calls"][0]["id"], "functions.f:0");
  EXPECT_EQ(message["tool_calls"][0]["type"], "function");
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], "{\"a\": 1}");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "tool_calls");
}

TEST(ServerTest, ContinuousUsageCountsTokens) {
  ServerRig rig(engine::say(byte_tokenizer(), "abcdefgh"), 3);
  rig.start();
  const Response response =
      rig.post("/v1/completions",
               {{"prompt", "ab"},
                {"temperature", 0},
                {"stream", true},
                {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}});
  int64_t before = 0;
  for (const Json& event : events_of(response)) {
    const int64_t now = event["usage"]["completion_tokens"].get<int64_t>();
    EXPECT_GE(now, before);
    if (!event["choices"].empty()) {
      EXPECT_GT(now, before);
    }
    before = now;
  }
  EXPECT_EQ(before, 9);

  // The chunk that names the role comes before any token.
  const Response chat = rig.post(
      "/v1/chat/completions",
      merged(kChat,
             {{"stream", true},
              {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}}));
  const std::vector<Json> events = events_of(chat);
  EXPECT_EQ(events.at(0)["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events.at(0)["usage"]["completion_tokens"], 0);
  EXPECT_GT(events.at(1)["usage"]["completion_tokens"], 0);
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 9);
}

TEST(ServerTest, BadRequestsAreAnsweredAndTheServerLives) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.config.max_body_bytes = 100000;
  rig.config.max_header_bytes = 8000;
  rig.start();
  const auto refused = [&](int status, const std::string& says, const Response& response) {
    EXPECT_EQ(response.status, status) << response.body;
    EXPECT_THAT(response.error(), HasSubstr(says));
    EXPECT_EQ(response.json()["error"]["code"], status);
    EXPECT_TRUE(response.json()["error"].contains("param"));
    EXPECT_EQ(rig.request("GET", "/health").status, 200);
  };
  refused(400, "JSON", rig.request("POST", "/v1/completions", "{\"model\": "));
  refused(400, "JSON", rig.request("POST", "/v1/completions", ""));
  refused(400, "max_tokens",
          rig.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", "many"}}));
  refused(400, "2048", rig.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 2048}}));
  refused(400, "prompt", rig.post("/v1/completions", {{"prompt", ""}}));
  refused(404, "other", rig.post("/v1/completions", {{"prompt", "a"}, {"model", "other"}}));
  refused(400, "application/json",
          rig.request("POST", "/v1/completions", "{}", "Content-Type: text/plain\r\n"));
  refused(400, "image",
          rig.post("/v1/chat/completions", Json::parse(R"({"messages": [{"role": "user", "content":
                     [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]})")));
  refused(413, "100000 bytes", rig.request("POST", "/v1/completions", std::string(100001, ' ')));
  refused(431, "8000 bytes",
          rig.request("GET", "/health", "", "X-Long: " + std::string(9000, 'x') + "\r\n"));
  {
    Connection connection(rig.server->port());
    connection.send_text("NONSENSE\r\n\r\n");
    refused(400, "HTTP", connection.read_response());
  }
  // Bytes of every kind, and requests cut short: nothing to answer, nothing may break.
  for (const std::string& junk :
       {std::string("\x16\x03\x01\x02\0\x01", 6), std::string("GET "),
        std::string("POST /v1/completions HTTP/1.1\r\nContent-Length: 50\r\n\r\n{")}) {
    Connection connection(rig.server->port());
    connection.send_text(junk);
  }
  EXPECT_EQ(rig.post("/v1/completions", {{"prompt", "a"}}).status, 200);
}

TEST(ServerTest, KeysGuardOnlyTheApi) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.config.api_keys = {"one", "two"};
  rig.start();
  const auto status = [&](const std::string& path, const std::string& headers) {
    return rig.request("GET", path, "", headers).status;
  };
  EXPECT_EQ(status("/health", ""), 200);
  EXPECT_EQ(status("/metrics", ""), 200);
  EXPECT_EQ(status("/v1/models", ""), 401);
  EXPECT_EQ(rig.request("GET", "/v1/models").json(), (Json{{"error", "Unauthorized"}}));
  for (const char* bad : {"", "one", "Bearer", "Bearer ", "Bearer on", "Bearer oneone",
                          "Bearer three", "Basic one"}) {
    EXPECT_EQ(status("/v1/models", std::string("Authorization: ") + bad + "\r\n"), 401) << bad;
  }
  EXPECT_EQ(status("/v1/models", "Authorization: Bearer one\r\n"), 200);
  EXPECT_EQ(status("/v1/models", "Authorization: Bearer two\r\n"), 200);
  EXPECT_EQ(status("/v1/nothing", ""), 401);
}

TEST(ServerTest, ConnectionsAreKeptAndPipelined) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.config.request_id_headers = true;
  rig.start();
  Connection connection(rig.server->port());
  for (int i = 0; i < 3; ++i) {
    connection.send_request("POST", "/v1/completions", R"({"prompt": "a", "stream": true})");
    EXPECT_TRUE(connection.read_response().complete);
    connection.send_request("POST", "/v1/completions", R"({"prompt": "a"})",
                            "X-Request-Id: r" + std::to_string(i) + "\r\n");
    const Response response = connection.read_response();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.headers.at("x-request-id"), "r" + std::to_string(i));
  }
  for (int i = 0; i < 5; ++i)
    connection.send_request("POST", "/v1/completions", R"({"prompt": "a"})");
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(connection.read_response().json()["choices"][0]["text"], "ok");
  connection.send_request("GET", "/health", "", "Connection: close\r\n");
  EXPECT_EQ(connection.read_response().status, 200);
  EXPECT_TRUE(connection.closed());
}

TEST(ServerTest, OldClientsGetAPlainStream) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.start();
  Connection connection(rig.server->port());
  const std::string body = R"({"prompt": "a", "stream": true})";
  connection.send_text(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  const Response response = connection.read_response();
  EXPECT_FALSE(response.headers.contains("transfer-encoding"));
  EXPECT_EQ(assembled(events_of(response))["0"]["text"], "ok");
}

TEST(ServerTest, ClientsMayAskBeforeTheySendABody) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.start();
  Connection connection(rig.server->port());
  const std::string body = R"({"prompt": "a"})";
  connection.send_text(
      "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(connection.read_response().status, 100);
  connection.send_text(body);
  EXPECT_EQ(connection.read_response().status, 200);
}

TEST(ServerTest, AnswersGoOnInsideAPromptsCharacter) {
  // The prompt ends after two of the eagle's four bytes.
  const std::vector<TokenId> rest = {0xA6, 0x85, 'x'};
  const auto tape = [rest](std::span<const TokenId>, const runtime::SamplingParams&, int64_t idx) {
    return rest[static_cast<size_t>(std::min<int64_t>(idx, 2))];
  };
  ServerRig rig(tape, 2);
  rig.start();
  const Json body = {{"prompt", {'e', 0xF0, 0x9F}}, {"max_tokens", 4}, {"temperature", 0}};
  EXPECT_EQ(rig.post("/v1/completions", body).json()["choices"][0]["text"], "🦅xx");
  const Response stream = rig.post("/v1/completions", merged(body, {{"stream", true}}));
  EXPECT_EQ(assembled(events_of(stream))["0"]["text"], "🦅xx");
}

TEST(ServerTest, BrowsersMayAsk) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.config.api_keys = {"key"};
  rig.start();
  const Response preflight =
      rig.request("OPTIONS", "/v1/completions", "",
                  "Origin: http://x\r\nAccess-Control-Request-Method: POST\r\n");
  EXPECT_EQ(preflight.status, 200);
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "*");
  EXPECT_EQ(rig.request("GET", "/health", "", "Origin: http://x\r\n")
                .headers.at("access-control-allow-origin"),
            "*");
}

class LeavingClientTest : public testing::TestWithParam<bool> {};

TEST_P(LeavingClientTest, GivesItsBlocksBack) {
  ServerRig rig(for_ever('x'));
  rig.before_step = [] { std::this_thread::sleep_for(milliseconds(1)); };
  rig.start();
  const std::string stream = GetParam() ? "true" : "false";
  for (int i = 0; i < 5; ++i) {
    // The one that left before must not be taken for this one.
    wait_until("nothing runs", [&] { return rig.engine->num_live_sequences() == 0; });
    Connection connection(rig.server->port());
    connection.send_request("POST", "/v1/completions",
                            R"({"prompt": "a", "max_tokens": 2000, "stream": )" + stream + "}");
    if (GetParam()) {
      EXPECT_TRUE(connection.read_until("data: "));
    } else {
      wait_until("the request runs", [&] { return rig.engine->num_live_sequences() > 0; });
    }
  }
  wait_until("requests of departed clients end",
             [&] { return rig.engine->num_live_sequences() == 0; });
  wait_until("their blocks come back", [&] { return rig.engine->stats().kv_usage == 0.0; });
  EXPECT_EQ(rig.engine->stats().finished[2], 5);
  wait_until("connections close", [&] { return rig.server->num_connections() == 0; });
}

INSTANTIATE_TEST_SUITE_P(StreamedOrNot, LeavingClientTest, testing::Bool());

TEST(ServerTest, AClientThatDoesNotReadLosesItsRequest) {
  // Logprobs make each token's event large, so that socket buffers fill.
  ServerRig rig(for_ever('x'));
  rig.config.write_timeout = std::chrono::seconds(1);
  rig.config.max_logprobs = -1;
  rig.start();
  Connection connection(rig.server->port());
  const int small = 4096;
  setsockopt(connection.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  connection.send_request(
      "POST", "/v1/completions",
      R"({"prompt": "a", "max_tokens": 2000, "stream": true, "logprobs": 250, "temperature": 0})");
  wait_until("the request starts", [&] { return rig.engine->stats().generation_tokens > 0; });
  wait_until("the server lets go", [&] { return rig.server->num_connections() == 0; });
  EXPECT_EQ(rig.request("GET", "/health").status, 200);
}

TEST(ServerTest, AThousandAtOnceAreAllAnswered) {
  ServerRig rig(engine::say(byte_tokenizer(), "short answer"));
  rig.engine_config.max_sequences = 300;  // so that some are refused
  rig.before_step = [] { std::this_thread::sleep_for(milliseconds(1)); };
  rig.start();
  constexpr int kRequests = 1000;
  std::vector<std::unique_ptr<Connection>> connections;
  for (int i = 0; i < kRequests; ++i) {
    connections.push_back(std::make_unique<Connection>(rig.server->port()));
    ASSERT_TRUE(connections.back()->connected());
    connections.back()->send_request(
        "POST", "/v1/completions",
        R"({"prompt": "abc", "stream": )" + std::string(i % 2 == 0 ? "true}" : "false}"));
  }
  std::map<int, int> statuses;
  for (auto& connection : connections) {
    const Response response = connection->read_response();
    EXPECT_TRUE(response.complete);
    ++statuses[response.status];
    if (response.status == 429) {
      EXPECT_THAT(response.error(), HasSubstr("try again"));
    }
  }
  EXPECT_EQ(statuses[200] + statuses[429], kRequests);
  EXPECT_GE(statuses[200], 300);
  EXPECT_EQ(rig.request("GET", "/health").status, 200);
  wait_until("all sequences end", [&] { return rig.runner->num_sequences.load() == 0; });
}

TEST(ServerTest, NumericFaultIsAnErrorOfItsRequestOnly) {
  const auto tape = [](std::span<const TokenId>, const runtime::SamplingParams&, int64_t idx) {
    return idx < 2 ? TokenId{'k'} : runtime::Sampler::kNumericFault;
  };
  ServerRig rig(tape);
  rig.start();
  const Response whole = rig.post("/v1/completions", {{"prompt", "a"}});
  EXPECT_EQ(whole.status, 500);
  EXPECT_THAT(whole.error(), HasSubstr("numeric fault"));
  const Response stream = rig.post("/v1/completions", {{"prompt", "a"}, {"stream", true}});
  EXPECT_EQ(stream.status, 200);
  EXPECT_EQ(events_of(stream).back()["error"]["code"], 500);
  EXPECT_EQ(rig.request("GET", "/health").status, 200);
}

TEST(ServerTest, DeadEngineIsUnhealthyAndSaysSo) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.before_step = [] { fail("out of luck"); };
  rig.start();
  const Response first = rig.post("/v1/completions", {{"prompt", "a"}});
  EXPECT_EQ(first.status, 500);
  EXPECT_THAT(first.error(), HasSubstr("out of luck"));
  wait_until("the engine is dead", [&] { return rig.engine->dead(); });
  EXPECT_EQ(rig.request("GET", "/health").status, 503);
  EXPECT_EQ(rig.post("/v1/completions", {{"prompt", "a"}}).status, 503);
}

TEST(ServerTest, DrainLetsStreamsFinishAndTakesNothingNew) {
  ServerRig rig(engine::say(byte_tokenizer(), "every word of this answer arrives"));
  rig.before_step = [] { std::this_thread::sleep_for(milliseconds(2)); };
  rig.start();
  Connection kept(rig.server->port());
  kept.send_request("GET", "/health");
  EXPECT_EQ(kept.read_response().status, 200);
  Connection running(rig.server->port());
  running.send_request("POST", "/v1/completions",
                       R"({"prompt": "a", "stream": true, "max_tokens": 100})");
  EXPECT_TRUE(running.read_until("data: "));
  rig.server->stop_accepting();
  std::thread drain([&] {
    rig.engine->drain(milliseconds(30000));
    EXPECT_TRUE(rig.server->drain(milliseconds(30000)));
  });
  EXPECT_EQ(assembled(events_of(running.read_response()))["0"]["text"],
            "every word of this answer arrives");
  drain.join();
  kept.send_request("POST", "/v1/completions", R"({"prompt": "a"})");
  EXPECT_EQ(kept.read_response().status, 503);
  EXPECT_TRUE(kept.closed());
  rig.server->stop();
}

TEST(ServerTest, StopInTheMiddleOfEverything) {
  ServerRig rig(for_ever('x'));
  rig.start();
  std::vector<std::unique_ptr<Connection>> connections;
  for (int i = 0; i < 20; ++i) {
    connections.push_back(std::make_unique<Connection>(rig.server->port()));
    connections.back()->send_request("POST", "/v1/completions",
                                     R"({"prompt": "a", "max_tokens": 2000, "stream": true})");
  }
  EXPECT_TRUE(connections[0]->read_until("data: "));
  rig.server.reset();  // the engine goes on publishing into streams that nobody reads
  EXPECT_TRUE(connections[0]->closed());
}

TEST(ListenerTest, TakenPortIsNamed) {
  const Listener first("127.0.0.1", 0);
  EXPECT_GT(first.port(), 0);
  try {
    const Listener second("127.0.0.1", first.port());
    FAIL() << "two listeners on one port";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(std::to_string(first.port())));
    EXPECT_THAT(error.what(), HasSubstr("in use"));
  }
  EXPECT_THROW(Listener("no-such-host.invalid", 0), Error);
  EXPECT_THROW(Listener("127.0.0.1", 70000), Error);
}

}  // namespace
}  // namespace eyrie::server
