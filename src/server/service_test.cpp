// How the server treats its clients beyond what they ask: queue, limits, time, browsers, health.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "server/answer.h"
#include "server/cors.h"
#include "server/event_template.h"
#include "server/testing.h"
#include "server/tls.h"

namespace eyrie::server {
namespace {

using chat::Json;
using std::chrono::milliseconds;
using testing::HasSubstr;

engine::TapeRunner::Tape endless() {
  return [](std::span<const TokenId>, const runtime::SamplingParams&, int64_t) {
    return TokenId{'x'};
  };
}

template <typename Condition>
void wait_until(const char* what, Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << what;
    std::this_thread::sleep_for(milliseconds(2));
  }
}

constexpr const char* kLongStream = R"({"prompt": "a", "max_tokens": 2000, "stream": true})";

TEST(ServiceTest, AFullQueueIsSaidAtOnceAndHowLongToWait) {
  ServerRig rig(endless());
  rig.engine_config.scheduler.max_num_seqs = 1;
  rig.engine_config.max_sequences = 2;  // one runs, one waits
  rig.before_step = [] { std::this_thread::sleep_for(milliseconds(2)); };
  rig.start();
  Connection runs(rig.server->port());
  runs.send_request("POST", "/v1/completions", kLongStream);
  EXPECT_TRUE(runs.read_until("data: "));
  Connection waits(rig.server->port());
  waits.send_request("POST", "/v1/completions", kLongStream);
  wait_until("the second waits", [&] { return rig.engine->num_live_sequences() == 2; });
  const Response refused = rig.post("/v1/completions", {{"prompt", "a"}});
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(refused.json()["error"]["type"], "RateLimitError");
  EXPECT_EQ(rig.request("GET", "/health").status, 200);
}

TEST(ServiceTest, ARequestEndsWhenItsTimeIsUp) {
  ServerRig rig(endless());
  rig.config.request_timeout = milliseconds(100);
  rig.before_step = [] { std::this_thread::sleep_for(milliseconds(5)); };
  rig.start();
  const Response whole = rig.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 2000}});
  EXPECT_EQ(whole.status, 504);
  EXPECT_THAT(whole.error(), HasSubstr("0.1 s"));
  const Response stream = rig.request("POST", "/v1/completions", kLongStream);
  EXPECT_EQ(stream.status, 200);
  EXPECT_EQ(events_of(stream).back()["error"]["code"], 504);
  wait_until("both leave the engine", [&] { return rig.engine->num_live_sequences() == 0; });
  wait_until("and their blocks", [&] { return rig.engine->stats().kv_usage == 0.0; });
  // One that is quick enough is not touched, on the same connection as one that was not.
  Connection connection(rig.server->port());
  connection.send_request("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 2000})");
  EXPECT_EQ(connection.read_response().status, 504);
  connection.send_request("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 2})");
  EXPECT_EQ(connection.read_response().json()["choices"][0]["text"], "xx");
}

TEST(ServiceTest, HealthSaysThatAStepTakesTooLong) {
  std::atomic<bool> stalls{false};
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.engine_config.health_deadline = milliseconds(1200);  // the idle engine ticks every 500
  rig.before_step = [&] {
    while (stalls.load()) std::this_thread::sleep_for(milliseconds(1));
  };
  rig.start();
  EXPECT_EQ(rig.request("GET", "/health").status, 200);
  stalls.store(true);
  Connection stuck(rig.server->port());
  stuck.send_request("POST", "/v1/completions", R"({"prompt": "a"})");
  wait_until("health is bad", [&] { return rig.request("GET", "/health").status == 503; });
  EXPECT_TRUE(rig.request("GET", "/health").headers.contains("retry-after"));
  EXPECT_EQ(rig.request("GET", "/version").status, 200);  // the front end is not stuck
  stalls.store(false);
  EXPECT_EQ(stuck.read_response().json()["choices"][0]["text"], "ok");
  wait_until("health is good again", [&] { return rig.request("GET", "/health").status == 200; });
}

TEST(ServiceTest, MethodsAreAsHttpHasThem) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.config.api_keys = {"key"};
  rig.start();
  Connection connection(rig.server->port());
  connection.send_text("HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  connection.send_request("GET", "/version");
  EXPECT_TRUE(connection.read_until("\r\n\r\n"));
  EXPECT_TRUE(connection.read_until("\"version\""));  // no body lay between
  EXPECT_EQ(rig.request("GET", "/health").status, 200);
  const Response wrong = rig.request("DELETE", "/health");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "GET, HEAD, OPTIONS");
  const Response options = rig.request("OPTIONS", "/v1/completions");
  EXPECT_EQ(options.status, 200);
  EXPECT_EQ(options.headers.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(rig.request("OPTIONS", "/nothing").status, 404);
}

TEST(ServiceTest, BodiesMayComeInChunks) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.config.max_body_bytes = 1000;
  rig.start();
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n";
  Connection connection(rig.server->port());
  connection.send_text(head + "5\r\n{\"pro\r\n");
  connection.send_text("b\r\nmpt\": \"ab\"}\r\n0\r\n\r\n");
  EXPECT_EQ(connection.read_response().json()["usage"]["prompt_tokens"], 2);
  Connection large(rig.server->port());
  large.send_text(head + "400\r\n" + std::string(1024, ' ') + "\r\n");
  EXPECT_EQ(large.read_response().status, 413);
}

TEST(ServiceTest, HeaderFieldsAreCounted) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.config.max_header_count = 20;
  rig.start();
  std::string many;
  for (int i = 0; i < 30; ++i) many += "X-" + std::to_string(i) + ": y\r\n";
  const Response refused = rig.request("GET", "/health", "", many);
  EXPECT_EQ(refused.status, 431);
  EXPECT_THAT(refused.error(), HasSubstr("20 header fields"));
  EXPECT_EQ(rig.request("GET", "/health", "", "X-1: y\r\n").status, 200);
}

TEST(ServiceTest, APrefixOfAProxyIsTakenOff) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.config.root_path = "/llm";
  rig.start();
  EXPECT_EQ(rig.request("GET", "/llm/version").status, 200);
  EXPECT_EQ(rig.request("GET", "/version").status, 200);
  EXPECT_EQ(rig.request("GET", "/llmversion").status, 404);
  EXPECT_EQ(rig.request("GET", "/llm").status, 404);
}

TEST(ServiceTest, RequestIdsAreEchoedOrMade) {
  ServerRig rig(engine::say(byte_tokenizer(), "ok"));
  rig.config.request_id_headers = true;
  rig.start();
  EXPECT_EQ(rig.request("GET", "/health", "", "X-Request-Id: mine\r\n").headers.at("x-request-id"),
            "mine");
  const Response made = rig.post("/v1/completions", {{"prompt", "a"}});
  const std::string id = made.headers.at("x-request-id");
  EXPECT_EQ(id.size(), 32U);
  EXPECT_EQ(made.json()["id"], "cmpl-" + id);
  EXPECT_NE(rig.request("GET", "/health").headers.at("x-request-id"), id);
}

// Reads a byte now and then; the others get their whole answers meanwhile, and so does it.
TEST(ServiceTest, ASlowReaderHarmsNobody) {
  ServerRig rig(endless());
  rig.start();
  Connection slow(rig.server->port());
  const int small = 4096;
  setsockopt(slow.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  // Some 40 kB, ten times what the socket holds.
  slow.send_request("POST", "/v1/completions",
                    R"({"prompt": "a", "max_tokens": 200, "stream": true})");
  for (int i = 0; i < 10; ++i) {
    char byte = 0;
    EXPECT_EQ(recv(slow.fd(), &byte, 1, 0), 1);
    const Response other =
        rig.post("/v1/completions", {{"prompt", "b"}, {"max_tokens", 50}, {"stream", true}});
    EXPECT_EQ(events_of(other).back()["choices"][0]["finish_reason"], "length");
    EXPECT_EQ(rig.request("GET", "/health").status, 200);
  }
  EXPECT_TRUE(slow.read_until("[DONE]"));
}

TEST(ServiceTest, WhatNobodyTakesIsBounded) {
  int notified = 0;
  engine::OutputStream stream([&] { ++notified; });
  const auto large = [] {
    engine::OutputChunk chunk;
    chunk.pieces.resize(10000);
    return chunk;
  };
  int taken = 0;
  while (stream.publish(large())) ++taken;
  EXPECT_TRUE(stream.overrun());
  EXPECT_LE(static_cast<size_t>(taken) * 10000 * sizeof(TextPiece),
            engine::OutputStream::kMaxPendingBytes);
  EXPECT_EQ(notified, 1);
  EXPECT_FALSE(stream.publish({}));
  EXPECT_EQ(stream.take().size(), static_cast<size_t>(taken));

  engine::OutputStream read([] {});
  for (int i = 0; i < 3 * taken; ++i) {
    EXPECT_TRUE(read.publish(large()));
    EXPECT_EQ(read.take().size(), 1U);
  }
}

// A client that pipelines a second request and leaves is noticed while the first one runs.
TEST(ServiceTest, LeavingWithARequestStillUnreadIsLeaving) {
  ServerRig rig(endless());
  rig.before_step = [] { std::this_thread::sleep_for(milliseconds(5)); };
  rig.start();
  {
    Connection connection(rig.server->port());
    connection.send_request("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 2000})");
    connection.send_request("GET", "/health");
    wait_until("the request runs", [&] { return rig.engine->num_live_sequences() > 0; });
  }
  wait_until("it ends", [&] { return rig.engine->num_live_sequences() == 0; });
  EXPECT_EQ(rig.engine->stats().finished[2], 1);
}

std::string value_of(const Headers& headers, const std::string& name) {
  std::string found;
  for (const auto& [key, value] : headers) {
    if (key == name) found += found.empty() ? value : " & " + value;
  }
  return found;
}

// Expected values from Starlette 0.4x's CORSMiddleware on the same inputs.
TEST(CorsTest, AnswersPreflightsAsStarletteDoes) {
  const CorsConfig any;
  PreflightReply reply = preflight(any, "http://a", "POST", "authorization, x-thing");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "OK");
  EXPECT_EQ(value_of(reply.headers, "Access-Control-Allow-Origin"), "*");
  EXPECT_EQ(value_of(reply.headers, "Access-Control-Allow-Methods"),
            "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT");
  EXPECT_EQ(value_of(reply.headers, "Access-Control-Allow-Headers"), "authorization, x-thing");
  EXPECT_EQ(value_of(reply.headers, "Access-Control-Max-Age"), "600");

  CorsConfig some{{"http://a", "http://b"}, {"GET"}, {"X-Thing"}, true};
  reply = preflight(some, "http://b", "GET", "x-thing, CONTENT-TYPE");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(value_of(reply.headers, "Access-Control-Allow-Origin"), "http://b");
  EXPECT_EQ(value_of(reply.headers, "Access-Control-Allow-Credentials"), "true");
  EXPECT_EQ(value_of(reply.headers, "Access-Control-Allow-Headers"),
            "Accept, Accept-Language, Content-Language, Content-Type, X-Thing");
  EXPECT_EQ(value_of(reply.headers, "Vary"), "Origin");

  reply = preflight(some, "http://c", "POST", "x-other");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body, "Disallowed CORS origin, method, headers");
  EXPECT_EQ(value_of(reply.headers, "Access-Control-Allow-Origin"), "");
  EXPECT_EQ(preflight(some, "http://a", "GET", std::nullopt).status, 200);

  CorsConfig credentials;
  credentials.allow_credentials = true;
  reply = preflight(credentials, "http://c", "PUT", std::nullopt);
  EXPECT_EQ(value_of(reply.headers, "Access-Control-Allow-Origin"), "http://c");
}

TEST(CorsTest, MarksOtherRepliesAsStarletteDoes) {
  CorsConfig cors;
  EXPECT_EQ(value_of(cors_headers(cors, "http://a", false), "Access-Control-Allow-Origin"), "*");
  cors.allow_credentials = true;
  EXPECT_EQ(value_of(cors_headers(cors, "http://a", true), "Access-Control-Allow-Origin"),
            "http://a");
  cors.origins = {"http://a"};
  EXPECT_EQ(value_of(cors_headers(cors, "http://a", false), "Vary"), "Origin");
  EXPECT_EQ(value_of(cors_headers(cors, "http://c", false), "Access-Control-Allow-Origin"), "");
}

// Streams repeat an event's bytes; what asks for more (here: usage in every chunk) is built as
// JSON.
TEST(EventTemplateTest, GivesTheBytesOfTheJson) {
  const auto chunk = [](const std::string& text) {
    return Json{{"a", text}, {"b", {{"c", text}, {"n", nullptr}}}, {"z", "\\u001f"}};
  };
  const EventTemplate event(chunk(EventTemplate::kSlot));
  for (const std::string text : {"", "plain", "a \"quoted\" \\ one", "tab\tand\nline",
                                 "żółw 🦅", "\x7f", "cut \xf0\x9f", "</think>"}) {
    std::string expected;
    append_event(chunk(text), expected);
    std::string got;
    event.append(text, got);
    EXPECT_EQ(got, expected);
  }
}

TEST(TlsTest, MistakesNameTheirFlag) {
  EXPECT_EQ(make_tls_context({}), nullptr);
  const auto error_of = [](const TlsConfig& tls) -> std::string {
    try {
      make_tls_context(tls);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  TlsConfig tls;
  tls.cert_file = "/no/cert.pem";
  EXPECT_THAT(error_of(tls), HasSubstr("--ssl-keyfile"));
  tls.key_file = "/no/key.pem";
  EXPECT_THAT(error_of(tls), HasSubstr("--ssl-certfile /no/cert.pem"));
}

}  // namespace
}  // namespace eyrie::server
