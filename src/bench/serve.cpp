#include "bench/serve.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <ctime>
#include <random>
#include <thread>

#include "base/error.h"
#include "bench/report.h"
#include "bench/server_info.h"
#include "bench/warnings.h"

namespace eyrie::bench {
namespace {

using nlohmann::json;

std::vector<std::string> request_headers(const ServeOptions& options) {
  std::vector<std::string> headers = options.headers;
  const char* key = std::getenv("OPENAI_API_KEY");
  if (key != nullptr && *key != '\0')
    headers.push_back(fmt::format("Authorization: Bearer {}", key));
  return headers;
}

std::string random_hex8() {
  std::random_device device;
  return fmt::format("{:08x}", device());
}

std::string local_date() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return fmt::format("{:%Y%m%d-%H%M%S}", local);
}

// The run's steps share these; built once.
struct Session {
  const ServeOptions& options;
  const ServeHooks& hooks;
  ServerInfo server;
  std::unique_ptr<TextCodec> codec;
  std::string model_id;
  std::vector<PreparedRequest> requests;
  LoadOptions load;

  HttpRequest get(const std::string& path) const {
    HttpRequest request;
    request.url = options.base() + path;
    request.headers = load.headers;
    request.insecure = options.insecure;
    request.timeout_s = 60.0;  // a saturated server answers late
    return request;
  }
  ServerCounters counters() const {
    const HttpResponse page = http_fetch(get("/metrics"));
    return page.ok() ? parse_server_counters(page.body) : ServerCounters{};
  }
  // Copies of the first request, as many at a time as the run will have.
  LoadResult send_first(int64_t copies) const {
    LoadOptions quiet = load;
    quiet.arrivals.clear();
    quiet.on_progress = nullptr;
    return run_load(quiet,
                    std::vector<PreparedRequest>(static_cast<size_t>(copies), requests.front()));
  }
};

void prepare_requests(Session& session, const Dataset& dataset) {
  const ServeOptions& options = session.options;
  const std::string prefix = options.request_id_prefix.empty()
                                 ? fmt::format("bench-{}-", random_hex8())
                                 : options.request_id_prefix;
  for (size_t i = 0; i < dataset.prompts.size(); ++i) {
    const auto& prompt = dataset.prompts[i];
    session.requests.push_back(
        {.body = request_body(options, session.model_id, prompt, session.server.continuous_usage),
         .request_id = fmt::format("{}{}", prefix, i),
         .prompt_len = prompt.prompt_len,
         .asked_tokens = prompt.output_len});
  }
}

// vLLM's ready check: the first request, whole, again and again until it works or time is up.
void ready_check(const Session& session) {
  const auto& [options, hooks] = std::tie(session.options, session.hooks);
  hooks.say("Starting initial single prompt test run...");
  if (options.ready_check_timeout_s <= 0.0) {
    hooks.say("Skipping endpoint ready check.");
    return;
  }
  constexpr double kRetryPeriod = 5.0;
  const auto begin = Clock::now();
  while (true) {
    const LoadResult result = session.send_first(1);
    if (result.records.front().ok) break;
    const double left = options.ready_check_timeout_s - seconds_between(begin, Clock::now());
    if (left <= 0.0) {
      fail("the initial test request to {} failed for {} s: {}", session.load.url,
           options.ready_check_timeout_s, result.records.front().error);
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, kRetryPeriod)));
  }
  hooks.say("Initial test run completed.");
}

void warm_up(const Session& session) {
  const int64_t copies = session.options.num_warmups;
  if (copies <= 0) return;
  session.hooks.say(fmt::format("Warming up with {} requests...", copies));
  const LoadResult result = session.send_first(copies);
  int64_t failed = 0;
  for (const auto& record : result.records) failed += record.ok ? 0 : 1;
  if (failed == copies) fail("every warm-up request failed: {}", result.records.front().error);
  session.hooks.say("Warmup run completed.");
}

void say_traffic(const Session& session) {
  const auto& options = session.options;
  session.hooks.say("Starting main benchmark run...");
  if (options.arrivals.ramp_up.empty()) {
    session.hooks.say(
        fmt::format("Traffic request rate: {}", python_float(options.arrivals.request_rate)));
  } else {
    session.hooks.say(fmt::format("Traffic ramp-up strategy: {}, {} to {} requests per second",
                                  options.arrivals.ramp_up, options.arrivals.ramp_start,
                                  options.arrivals.ramp_end));
  }
  session.hooks.say(
      fmt::format("Burstiness factor: {} ({})", python_float(options.arrivals.burstiness),
                  options.arrivals.burstiness == 1.0 ? "Poisson process" : "Gamma distribution"));
  session.hooks.say(options.max_concurrency
                        ? fmt::format("Maximum request concurrency: {}", *options.max_concurrency)
                        : "Maximum request concurrency: None");
}

void post_profile(const Session& session, const char* path) {
  if (!session.options.profile) return;
  HttpRequest request = session.get(path);
  request.method = "POST";
  request.body = "{}";
  request.headers.push_back("Content-Type: application/json");
  const HttpResponse response = http_fetch(request);
  if (!response.ok()) {
    session.hooks.say(fmt::format("POST {} answered {}: the server has no profiler configured",
                                  path, response.result.status));
  }
}

}  // namespace

std::string request_body(const ServeOptions& options, const std::string& model,
                         const BenchPrompt& prompt, bool continuous_usage) {
  json body = {{"model", model}, {"stream", true}};
  body["stream_options"] = {{"include_usage", true}};
  if (continuous_usage) body["stream_options"]["continuous_usage_stats"] = true;
  if (options.is_chat()) {
    body["messages"] =
        json::array({{{"role", "user"},
                      {"content", json::array({{{"type", "text"}, {"text", prompt.text}}})}}});
    body["max_completion_tokens"] = prompt.output_len;
    if (!options.chat_template_kwargs.empty()) {
      body["chat_template_kwargs"] = options.chat_template_kwargs;
    }
    if (options.logprobs) {
      body["logprobs"] = true;
      body["top_logprobs"] = *options.logprobs;
    }
  } else {
    body["prompt"] = prompt.text;
    body["max_tokens"] = prompt.output_len;
    if (options.is_inferencex()) {
      body["temperature"] = 0.0;  // InferenceX always decodes greedily
    } else {
      body["repetition_penalty"] = 1.0;
    }
    if (options.logprobs) body["logprobs"] = *options.logprobs;
  }
  if (options.ignore_eos) body["ignore_eos"] = true;
  body.update(options.sampling);
  body.update(options.extra_body);
  // Random tokens may decode to text that is cut inside a character: never fail on it.
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

ServeRun run_serve(const ServeOptions& given, const ServeHooks& hooks) {
  validate(given);
  ServeOptions options = given;
  // Random text has no natural end; vLLM forces this too.
  if (options.dataset.name == "random") options.ignore_eos = true;

  Session session{.options = options,
                  .hooks = hooks,
                  .server = {},
                  .codec = {},
                  .model_id = {},
                  .requests = {},
                  .load = {}};
  session.load.url = options.endpoint_url();
  session.load.headers = request_headers(options);
  session.load.insecure = options.insecure;
  session.load.is_chat = options.is_chat();
  session.load.max_concurrency = options.max_concurrency.value_or(0);

  session.server = ask_server(session.get("/v1/models"), options);
  ServeRun run;
  run.model_id = session.model_id = session.server.model_name;
  run.max_model_len = session.server.max_model_len;
  const auto tokenizer = open_tokenizer(options, session.server);
  session.codec = load_codec_if_any(tokenizer, options);
  run.tokenizer_id = tokenizer.id;
  if (session.codec) {
    session.load.count_text = [&](const std::string& text) {
      return static_cast<int64_t>(session.codec->encode(text).size());
    };
  }

  const Dataset dataset =
      make_dataset(options.dataset, session.codec.get(), /*wrap_on_client=*/!options.is_chat());
  prepare_requests(session, dataset);
  run.notes = dataset.notes;
  if (!options.is_inferencex() && !options.sampling.contains("temperature") &&
      !options.extra_body.contains("temperature")) {
    run.notes.push_back(
        "No --temperature given: the server's default sampling applies, and acceptance and "
        "answers depend on it");
  }
  for (const auto& note : run.notes) hooks.say(note);
  for (const auto& line : warnings_before(options, dataset, session.server)) hooks.say(line);

  ready_check(session);
  warm_up(session);
  say_traffic(session);
  post_profile(session, "/start_profile");

  auto rng = MersenneTwister::numpy_seed(static_cast<uint32_t>(options.dataset.seed));
  session.load.arrivals =
      arrival_times(options.arrivals, static_cast<int64_t>(session.requests.size()), rng);
  session.load.on_progress = hooks.on_progress;
  const ServerCounters before = session.counters();
  run.date = local_date();
  LoadResult load = run_load(session.load, session.requests);
  const ServerCounters after = session.counters();
  post_profile(session, "/stop_profile");

  if (load.refused && load.records.front().status == 0) {
    hooks.say(refused_hint(options));
  }
  run.metrics =
      compute_metrics(load.records, load.duration_s, options.percentiles, options.goodput);
  run.spec = spec_stats(before, after);
  run.draft_sizing = draft_sizing(before.draft_sizing, after.draft_sizing);
  run.client_cpu_share = load.cpu_share;
  const double queries = after.prefix_queries - before.prefix_queries;
  if (queries > 0.0) run.prefix_hit_rate = (after.prefix_hits - before.prefix_hits) / queries;
  run.records = std::move(load.records);
  run.warnings =
      warnings_after(options, dataset, session.server, run, after.preemptions - before.preemptions);
  return run;
}

}  // namespace eyrie::bench
