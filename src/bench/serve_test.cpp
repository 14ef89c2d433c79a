#include "bench/serve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include "base/error.h"
#include "bench/report.h"
#include "bench/scratch_path.h"
#include "bench/server_info.h"
#include "bench/server_process.h"

// The client against a server of 150 lines of Python (tests/e2e/fake_server.py): one that streams
// several tokens a chunk at a fixed pace and keeps vLLM's counters.
namespace eyrie::bench {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::HasSubstr;

class FakeServer {
 public:
  explicit FakeServer(const std::vector<std::string>& flags) {
    const int port = find_free_port();
    url = "http://127.0.0.1:" + std::to_string(port);
    std::vector<std::string> argv = {"python3", "tests/e2e/fake_server.py", "serve", "fake-model",
                                     "--port",  std::to_string(port)};
    argv.insert(argv.end(), flags.begin(), flags.end());
    process.emplace(argv, scratch_path("fake_server.log"));
    process->wait_ready(url + "/health", 120.0);
  }
  std::string url;
  std::optional<ServerProcess> process;
};

std::string prompts_file() {
  const std::string path = scratch_path("serve_prompts.jsonl");
  std::ofstream file(path);
  for (int i = 0; i < 20; ++i) {
    file << R"({"prompt":"tell me about number )" << i << R"(","output_tokens":)" << 20 + i
         << "}\n";
  }
  return path;
}

ServeOptions options_for(const FakeServer& server, int64_t n) {
  ServeOptions options;
  options.backend = "vllm";
  options.base_url = server.url;
  options.dataset.name = "custom";
  options.dataset.path = prompts_file();
  options.dataset.skip_chat_template = true;
  options.dataset.num_prompts = n;
  options.max_concurrency = 4;
  return options;
}

struct Said {
  std::vector<std::string> lines;
  ServeHooks hooks() {
    return {.say = [this](const std::string& text) { lines.push_back(text); },
            .on_progress = [this](const Progress& p) { last = p; }};
  }
  Progress last;
};

#define SKIP_WITHOUT_PYTHON()                                    \
  if (std::system("python3 -c '' 2>/dev/null") != 0) {           \
    GTEST_SKIP() << "the fake server needs python3 in the PATH"; \
  }

TEST(ServeRunTest, MeasuresTokensNotChunks) {
  SKIP_WITHOUT_PYTHON();
  const FakeServer server(
      {"--speculative-config", R"({"num_speculative_tokens":4})", "--step", "0.02"});
  Said said;
  auto options = options_for(server, 20);
  options.num_warmups = 2;
  options.ready_check_timeout_s = 60.0;
  const ServeRun run = run_serve(options, said.hooks());
  EXPECT_EQ(run.model_id, "fake-model");
  EXPECT_EQ(run.metrics.completed, 20);
  EXPECT_EQ(run.metrics.failed, 0);
  EXPECT_EQ(run.metrics.total_output, 20 * 20 + 190);
  EXPECT_EQ(said.last.done, 20);
  EXPECT_EQ(said.last.output_tokens, 20 * 20 + 190);
  EXPECT_DOUBLE_EQ(said.last.fraction, 1.0);
  // Four tokens come every 20 ms: 5 ms a token, never the 20 ms of a chunk. (No upper bound on a
  // busy machine, but a chunk cannot come before its time.)
  for (const auto& record : run.records) {
    EXPECT_EQ(record.token_source, TokenSource::kUsage);
    EXPECT_EQ(record.inter_token_gaps().size(), static_cast<size_t>(record.output_tokens - 1));
    const auto chunks = static_cast<double>(record.chunks.size());
    EXPECT_LT(chunks, static_cast<double>(record.output_tokens) / 3.0);
    EXPECT_GE(record.latency() - record.ttft(), 0.018 * (chunks - 1));
  }
  ASSERT_TRUE(run.spec.has_value());
  EXPECT_DOUBLE_EQ(run.spec->acceptance_length, 4.0);
  EXPECT_THAT(run.spec->per_position, testing::ElementsAre(1.0, 1.0, 1.0, 0.0));
  EXPECT_THAT(said.lines, Contains("Initial test run completed."));
  EXPECT_THAT(said.lines, Contains("Warmup run completed."));
  EXPECT_THAT(said.lines, Contains("Maximum request concurrency: 4"));
  EXPECT_THAT(said.lines, Contains("Burstiness factor: 1.0 (Poisson process)"));
}

TEST(ServeRunTest, KeepsTheConcurrencyLimit) {
  SKIP_WITHOUT_PYTHON();
  const FakeServer server({});
  auto options = options_for(server, 12);
  options.max_concurrency = 3;
  const ServeRun run = run_serve(options, Said().hooks());
  ASSERT_EQ(run.metrics.completed, 12);
  for (const auto& record : run.records) {
    int alive = 0;  // requests in flight just after this one began
    for (const auto& other : run.records) {
      alive += other.start <= record.start && record.start < other.end ? 1 : 0;
    }
    EXPECT_LE(alive, 3);
  }
}

TEST(ServeRunTest, ManyStreamsAtOnce) {
  SKIP_WITHOUT_PYTHON();
  const FakeServer server({});
  auto options = options_for(server, 300);
  options.max_concurrency.reset();
  const ServeRun run = run_serve(options, Said().hooks());
  EXPECT_EQ(run.metrics.completed, 300);
  EXPECT_EQ(run.metrics.max_concurrent_requests, 300);
  EXPECT_THAT(run.warnings, Contains(HasSubstr("280 of 300 prompts repeat")));
}

TEST(ServeRunTest, ChatCountsFromTheFirstContent) {
  SKIP_WITHOUT_PYTHON();
  const FakeServer server({"--owner", "somebody"});  // not asked for usage in every chunk
  auto options = options_for(server, 5);
  options.backend = "openai-chat";
  const ServeRun run = run_serve(options, Said().hooks());
  EXPECT_EQ(run.metrics.completed, 5);
  for (const auto& record : run.records) {
    EXPECT_EQ(record.token_source, TokenSource::kOnePerChunk);
    EXPECT_EQ(record.prompt_tokens, 5);
  }
}

TEST(ServeRunTest, RefusalsAreFailedRequestsWithTheServersWords) {
  SKIP_WITHOUT_PYTHON();
  const FakeServer server({"--max-model-len", "30"});
  Said said;
  auto options = options_for(server, 20);
  const ServeRun run = run_serve(options, said.hooks());
  EXPECT_EQ(run.max_model_len, 30);
  EXPECT_EQ(run.metrics.completed, 6);  // 5 words of prompt and 20 … 25 tokens fit in 30
  EXPECT_EQ(run.metrics.failed, 14);
  EXPECT_THAT(run.warnings,
              Contains(HasSubstr("HTTP 400 Bad Request: This model's maximum context length")));
}

TEST(ServeRunTest, WarnsOfShortAnswersAndCachedPrompts) {
  SKIP_WITHOUT_PYTHON();
  const FakeServer server({"--stop-after", "7", "--hits", "25"});
  const ServeRun run = run_serve(options_for(server, 10), Said().hooks());
  EXPECT_EQ(run.metrics.total_output, 70);
  EXPECT_NEAR(run.prefix_hit_rate, 0.25, 1e-9);
  EXPECT_THAT(run.warnings, Contains(HasSubstr("10 of 10 answers ended before")));
  EXPECT_THAT(run.warnings, Contains(HasSubstr("25.0 % of prompt tokens came from")));
  auto options = options_for(server, 10);
  options.ignore_eos = true;
  EXPECT_THAT(run_serve(options, Said().hooks()).warnings,
              testing::Not(Contains(HasSubstr("ended before"))));
}

TEST(ServeRunTest, AServerThatVanishesFailsTheRestOfTheRun) {
  SKIP_WITHOUT_PYTHON();
  FakeServer server({"--step", "0.05"});
  auto options = options_for(server, 8);
  Said said;
  ServeHooks hooks = said.hooks();
  hooks.on_progress = [&](const Progress& p) {
    if (p.output_tokens > 4 && server.process) server.process.reset();
  };
  const ServeRun run = run_serve(options, hooks);
  EXPECT_EQ(run.metrics.failed, 8);
  EXPECT_THAT(run.warnings, Contains(HasSubstr("8 of 8 requests failed")));
}

TEST(ServeRunTest, NobodyListens) {
  ServeOptions options;
  options.port = find_free_port();
  options.dataset.name = "custom";
  options.dataset.path = prompts_file();
  try {
    run_serve(options, Said().hooks());
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("needs --port 8888 here too"));
  }
  options.port_given = true;
  EXPECT_THAT(refused_hint(options), testing::Not(HasSubstr("8888")));
}

TEST(ServerProcessTest, SaysWhyAServerDidNotStart) {
  SKIP_WITHOUT_PYTHON();
  ServerProcess dead(
      {"python3", "tests/e2e/fake_server.py", "serve", "m", "--die", "no such model"},
      scratch_path("dead.log"));
  try {
    dead.wait_ready("http://127.0.0.1:9/health", 120.0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("ended with code 1"));
    EXPECT_THAT(error.what(), HasSubstr("no such model"));
  }
  ServerProcess missing({"/no/such/program"}, scratch_path("missing.log"));
  EXPECT_THROW(missing.wait_ready("http://127.0.0.1:9/health", 120.0), Error);
}

TEST(ServerProcessTest, StopsWithSigterm) {
  SKIP_WITHOUT_PYTHON();
  FakeServer server({});
  EXPECT_EQ(server.process->stop(60.0), 0);
  ServerProcess stubborn({"sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"},
                         scratch_path("stubborn.log"));
  usleep(200'000);
  EXPECT_EQ(stubborn.stop(0.1), 128 + 9);
}

ServeOptions completion_options() {
  ServeOptions options;
  options.ignore_eos = true;
  return options;
}

TEST(RequestBodyTest, WhatVllmsClientSends) {
  const BenchPrompt prompt{"hello", 1, 32};
  EXPECT_EQ(json::parse(request_body(completion_options(), "m", prompt, false)),
            json::parse(R"({"model":"m","prompt":"hello","repetition_penalty":1.0,"max_tokens":32,
                            "stream":true,"stream_options":{"include_usage":true},
                            "ignore_eos":true})"));
  ServeOptions chat;
  chat.backend = "openai-chat";
  EXPECT_EQ(json::parse(request_body(chat, "m", prompt, true)),
            json::parse(R"({"model":"m","max_completion_tokens":32,"stream":true,
                            "messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}],
                            "stream_options":{"include_usage":true,
                                              "continuous_usage_stats":true}})"));
}

TEST(RequestBodyTest, InferenceXDecodesGreedilyAndTheExtraBodyWins) {
  ServeOptions options = completion_options();
  options.dataset.use_chat_template = true;
  auto body = json::parse(request_body(options, "m", {"x", 1, 2}, false));
  EXPECT_EQ(body["temperature"], 0.0);
  EXPECT_FALSE(body.contains("repetition_penalty"));
  options.sampling = {{"temperature", 0.5}, {"top_p", 0.9}};
  options.extra_body = {{"temperature", 0.7}, {"max_tokens", 9}};
  body = json::parse(request_body(options, "m", {"x", 1, 2}, false));
  EXPECT_EQ(body["temperature"], 0.7);
  EXPECT_EQ(body["top_p"], 0.9);
  EXPECT_EQ(body["max_tokens"], 9);
  EXPECT_NO_THROW(request_body(options, "m", {"cut \xF0\x9F", 1, 2}, false));
}

TEST(ServeOptionsTest, NamesTheWrongFlag) {
  const auto message = [](auto&& change) {
    ServeOptions options;
    change(options);
    try {
      validate(options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("fine");
  };
  EXPECT_EQ(message([](ServeOptions&) {}), "fine");
  EXPECT_THAT(message([](ServeOptions& o) { o.backend = "tgi"; }), HasSubstr("--backend tgi"));
  EXPECT_THAT(message([](ServeOptions& o) {
                o.backend = "openai-chat";
                o.endpoint = "/v1/completions";
              }),
              HasSubstr("must end with \"chat/completions\""));
  EXPECT_THAT(message([](ServeOptions& o) { o.endpoint = "/v1/chat/completions"; }),
              HasSubstr("--backend openai-chat"));
  EXPECT_THAT(message([](ServeOptions& o) { o.dataset.num_prompts = 0; }),
              HasSubstr("--num-prompts 0"));
  EXPECT_THAT(message([](ServeOptions& o) { o.max_concurrency = 0; }),
              HasSubstr("--max-concurrency 0"));
  EXPECT_THAT(message([](ServeOptions& o) { o.arrivals.request_rate = 0.0; }),
              HasSubstr("--request-rate"));
  EXPECT_THAT(message([](ServeOptions& o) { o.percentiles = {101.0}; }),
              HasSubstr("--metric-percentiles 101"));
  EXPECT_THAT(message([](ServeOptions& o) { o.percentile_metrics = {"ttfb"}; }),
              HasSubstr("--percentile-metrics ttfb"));
  EXPECT_THAT(message([](ServeOptions& o) {
                o.arrivals.ramp_up = "exponential";
                o.arrivals.ramp_end = 5.0;
              }),
              HasSubstr("above 0 for an exponential ramp"));
}

TEST(ServeOptionsTest, Urls) {
  ServeOptions options;
  EXPECT_EQ(options.endpoint_url(), "http://127.0.0.1:8000/v1/completions");
  options.host = "::1";
  EXPECT_EQ(options.base(), "http://[::1]:8000");
  options.base_url = "https://x.org/api/";
  options.backend = "openai-chat";
  EXPECT_EQ(options.endpoint_url(), "https://x.org/api/v1/chat/completions");
}

TEST(ArrivalsTest, StretchedToEndAtNOverRate) {
  auto rng = MersenneTwister::numpy_seed(0);
  const auto times = arrival_times(
      {.request_rate = 2.0, .burstiness = 1.0, .ramp_up = "", .ramp_start = 0.0, .ramp_end = 0.0},
      10, rng);
  ASSERT_EQ(times.size(), 10U);
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_GT(times.front(), 0.0);
  EXPECT_NEAR(times.back(), 5.0, 1e-12);
}

TEST(ArrivalsTest, AllAtOnceEvenlyAndRamped) {
  auto rng = MersenneTwister::numpy_seed(0);
  ArrivalOptions options;
  EXPECT_TRUE(arrival_times(options, 5, rng).empty());
  options.request_rate = 4.0;
  options.burstiness = std::numeric_limits<double>::infinity();
  EXPECT_THAT(arrival_times(options, 3, rng), testing::ElementsAre(0.25, 0.5, 0.75));
  options.ramp_up = "linear";
  options.ramp_start = 1.0;
  options.ramp_end = 3.0;
  const auto times = arrival_times(options, 3, rng);
  EXPECT_NEAR(times[0], 1.0, 1e-12);
  EXPECT_NEAR(times[1], 1.5, 1e-12);
  EXPECT_NEAR(times[2], 1.5 + 1.0 / 3.0, 1e-12);
}

TEST(ServerInfoTest, ReadsTheModelCard) {
  const std::string body =
      R"({"data":[{"id":"a","owned_by":"vllm","root":"/m/a","max_model_len":2304},{"id":"b"}]})";
  ServeOptions options;
  const auto first = read_models(body, options);
  EXPECT_EQ(first.model_name, "a");
  EXPECT_EQ(first.model_root, "/m/a");
  EXPECT_EQ(first.max_model_len, 2304);
  EXPECT_TRUE(first.continuous_usage);
  options.model = "b";
  const auto second = read_models(body, options);
  EXPECT_EQ(second.model_name, "b");
  EXPECT_TRUE(second.is_listed);
  EXPECT_EQ(second.served_names, "a, b");
  EXPECT_FALSE(second.continuous_usage);
  options.model = "/path/to/model";  // served under another name: the first card still informs
  EXPECT_FALSE(read_models(body, options).is_listed);
  EXPECT_EQ(read_models(body, options).max_model_len, 2304);
  options.served_model_name = "a";
  EXPECT_TRUE(read_models(body, options).is_listed);
  EXPECT_EQ(read_models(body, options).model_name, "a");
  EXPECT_EQ(read_models("not json", options).model_name, "a");
  EXPECT_THROW(read_models("{}", ServeOptions{}), Error);
}

TEST(ServerInfoTest, FindsModelsInTheHubCache) {
  namespace fs = std::filesystem;
  const fs::path hub = scratch_path("hub");
  const fs::path repo = hub / "models--org--name";
  fs::create_directories(repo / "refs");
  fs::create_directories(repo / "snapshots" / "abc");
  std::ofstream(repo / "refs" / "main") << "abc\n";
  setenv("HF_HUB_CACHE", hub.c_str(), 1);
  EXPECT_EQ(find_model_dir("org/name"), (repo / "snapshots" / "abc").string());
  EXPECT_EQ(find_model_dir("org/other"), "");
  EXPECT_EQ(find_model_dir(""), "");
  EXPECT_EQ(find_model_dir(hub.string()), hub.string());
  ServeOptions options;
  options.tokenizer = "org/other";
  EXPECT_THROW(open_tokenizer(options, {}), Error);
  unsetenv("HF_HUB_CACHE");
}

}  // namespace
}  // namespace eyrie::bench
