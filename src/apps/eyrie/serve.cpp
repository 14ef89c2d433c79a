// eyrie serve MODEL [flags]: binds the port, loads, plans the KV cache, prints where the time went,
// serves until SIGTERM, drains.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#include "apps/eyrie/commands.h"
#include "apps/eyrie/engine_setup.h"
#include "apps/eyrie/serve_config.h"
#include "apps/eyrie/serve_flags.h"
#include "base/error.h"
#include "base/human.h"
#include "base/log.h"
#include "base/version.h"
#include "chat/template.h"
#include "engine/engine.h"
#include "server/listener.h"
#include "server/server.h"
#include "tokenizer/tokenizer.h"

namespace eyrie::apps {
namespace {

using Clock = std::chrono::steady_clock;

// Where start-up time went: a line a phase, and their sum.
class Ledger {
 public:
  void close_phase(const std::string& name, const std::string& what) {
    const auto now = Clock::now();
    line(name, now - phase_start_, what);
    phase_start_ = now;
  }
  void ready(const std::string& what) const { line("ready", Clock::now() - start_, what); }

 private:
  static void line(const std::string& name, Clock::duration took, const std::string& what) {
    const double seconds = std::chrono::duration<double>(took).count();
    log::info("{:<8} {:>9}  {}", name, human_seconds(seconds), what);
  }
  const Clock::time_point start_ = Clock::now();
  Clock::time_point phase_start_ = start_;
};

// Signals are taken by sigwait on the main thread only; the mask is inherited by every thread.
sigset_t block_stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

std::string weights_line(const char* what, size_t bytes, double seconds) {
  return fmt::format("{} {} at {}/s", what, human_bytes(static_cast<double>(bytes)),
                     human_bytes(static_cast<double>(bytes) / std::max(seconds, 1e-9)));
}

// "fp8_e4m3", or "fp8_e4m3 (draft bfloat16)".
std::string cache_types(const runtime::KvLayout& layout) {
  const std::string_view target = runtime::kv_dtype_name(layout.target_dtype);
  const std::string_view draft = runtime::kv_dtype_name(layout.draft_dtype);
  if (layout.draft_width == 0 || target == draft) return std::string(target);
  return fmt::format("{} (draft {})", target, draft);
}

// "1 row 0.30 ms, 8 rows 1.2 ms, 64 rows 9.1 ms; draft pass 0.10, 0.20, 1.1 ms"
std::string step_costs_line(const sched::StepCosts& costs) {
  std::string target, draft;
  for (const int rows : {1, 8, 64}) {
    const double target_ms = 1e3 * (costs.forward.at(rows) + costs.head.at(rows));
    const double draft_ms = 1e3 * (costs.chain.at(rows) + costs.guess.at(rows));
    target += fmt::format("{}{} row{} {:.2f} ms", rows > 1 ? ", " : "", rows, rows > 1 ? "s" : "",
                          target_ms);
    if (draft_ms > 0) draft += fmt::format("{}{:.2f}", rows > 1 ? ", " : "; draft pass ", draft_ms);
  }
  return target + draft + (draft.empty() ? "" : " ms");
}

std::string drafts_phrase(const SpeculativeConfig& speculative) {
  const std::string who =
      speculative.ngram ? fmt::format("n-gram look-up of {} to {} tokens",
                                      speculative.ngram->min_length, speculative.ngram->max_length)
                        : "EAGLE-3";
  return fmt::format("{} with {}{} drafts", who, speculative.adaptive ? "0 to " : "",
                     speculative.num_speculative_tokens);
}

// tokenizer_config.json with the chat template, as a client that does without the files needs it.
chat::Json tokenizer_info(const std::string& folder) {
  std::ifstream file(folder + "/tokenizer_config.json");
  chat::Json info = chat::Json::parse(file, nullptr, false);
  if (!info.is_object()) info = chat::Json::object();
  if (!info.contains("tokenizer_class")) info["tokenizer_class"] = "TikTokenTokenizer";
  if (std::ifstream jinja(folder + "/chat_template.jinja"); jinja) {
    info["chat_template"] = std::string(std::istreambuf_iterator<char>(jinja), {});
  }
  return info;
}

server::ServerConfig server_config(const ServeConfig& config, const KvPlan& plan,
                                   const model::ModelConfig& model, DType cache_dtype) {
  server::ServerConfig out = config.server;
  out.max_model_len = static_cast<int32_t>(plan.max_model_len);
  out.vocab_size = static_cast<int32_t>(model.vocab_size);
  out.defaults = sampling_defaults(config);
  if (config.tokenizer_info) out.tokenizer_info = tokenizer_info(config.tokenizer_path);
  out.cache_config_labels = {
      {"block_size", fmt::format("{}", plan.block_size)},
      {"num_gpu_blocks", fmt::format("{}", plan.num_blocks)},
      {"cache_dtype", std::string(runtime::kv_dtype_name(cache_dtype))},
      {"enable_prefix_caching", config.enable_prefix_caching ? "True" : "False"}};
  return out;
}

// While requests drain: a second SIGTERM ends the process at once, except right after the first,
// since some supervisors send it to the process and to its group; a Ctrl-C always does.
void end_at_next_signal(const sigset_t& signals) {
  static constexpr std::chrono::seconds kSameSignal{1};
  std::thread([signals, start = Clock::now()] {
    int signal = 0;
    do {
      sigwait(&signals, &signal);
    } while (signal == SIGTERM && Clock::now() - start < kSameSignal);
    log::warning("signal {}: ending at once", signal);
    std::_Exit(128 + signal);
  }).detach();
}

void serve_until_signal(const ServeConfig& config, server::Server& server, engine::Engine& engine,
                        const sigset_t& signals) {
  int signal = 0;
  sigwait(&signals, &signal);
  if (engine.dead()) return;
  log::info("signal {}: no new requests; {} running sequences have {} s to finish", signal,
            engine.num_live_sequences(), config.shutdown_seconds);
  end_at_next_signal(signals);
  server.stop_accepting();
  engine.drain(std::chrono::seconds(config.shutdown_seconds));
  server.drain(std::chrono::seconds(5));
}

int serve(const ParsedFlags& flags) {
  Ledger ledger;
  const sigset_t signals = block_stop_signals();
  const ServeConfig config = serve_config_from(flags);
  log::info("eyrie {} serves {}", kVersion, config.model);
  log::info("flags: {}", flags.given());
  for (const std::string& note : config.notes) log::info("{}", note);
  server::Listener listener(config.host, config.port);
  const Tokenizer tokenizer = Tokenizer::load(config.tokenizer_path);
  const auto chat_template = chat::load_chat_template(config.chat_template);
  log::info("chat template: {}", chat_template->origin());
  ledger.close_phase("config",
                     fmt::format("{}, {} tokens", config.model_path, tokenizer.vocab_size()));

  auto owned_runner = std::make_unique<runtime::Runner>(config.runner);
  runtime::Runner& runner = *owned_runner;
  const runtime::LoadReport& load = runner.load_report();
  std::string weights = weights_line("target", load.target_bytes, load.target_seconds);
  if (load.draft_bytes > 0)
    weights += ", " + weights_line("draft", load.draft_bytes, load.draft_seconds);
  ledger.close_phase("weights", weights);

  const KvPlan plan = plan_cache(config, runner);
  runner.allocate_kv(plan.num_blocks, static_cast<int32_t>(plan.block_size));
  ledger.close_phase("KV", fmt::format("{} blocks of {} tokens, {} bytes a token in {}, {}",
                                       plan.num_blocks, plan.block_size,
                                       runner.kv_bytes_per_token(), cache_types(runner.kv_layout()),
                                       human_bytes(static_cast<double>(plan.kv_bytes))));
  log::info("GPU KV cache size: {} tokens", plan.num_tokens());
  log::info("Maximum concurrency for {} tokens per request: {:.2f}x", plan.max_model_len,
            static_cast<double>(plan.num_tokens()) / static_cast<double>(plan.max_model_len));

  engine::EngineConfig engine_options = engine_config(config, plan);
  if (config.speculative && config.speculative->adaptive) {
    engine_options.draft_sizer = size_drafts(*config.speculative, config.max_num_seqs, runner);
    ledger.close_phase("steps", step_costs_line(engine_options.draft_sizer->costs));
  }

  const model::ModelConfig model = runner.model_config();
  const DType cache_dtype = runner.kv_layout().target_dtype;
  const std::string device =
      runner.gpu() != nullptr
          ? runner.gpu()->info().name
          : fmt::format("{} ({} threads)", ops::cpu_isa(), runner.num_threads());
  engine::Engine engine(engine_options, std::move(owned_runner), tokenizer);
  engine.set_death_handler([](const std::string& what) {
    log::error("the engine died: {}", what);
    ::kill(::getpid(), SIGTERM);
  });
  server::Server server(server_config(config, plan, model, cache_dtype), std::move(listener),
                        engine, tokenizer, *chat_template);
  engine.start();
  ledger.ready(fmt::format(
      "{}://{}:{} on {}{}", config.server.tls.cert_file.empty() ? "http" : "https", config.host,
      server.port(), device, config.speculative ? ", " + drafts_phrase(*config.speculative) : ""));
  if (engine_options.synthetic_acceptance) {
    log::warning(
        "acceptance is synthetic: drafts are accepted by chance, and the text is nonsense. For "
        "measuring only");
  }
  log::info("Application startup complete.");
  server.start();  // last: whoever sees an answer finds the lines above in the log

  serve_until_signal(config, server, engine, signals);
  server.stop();
  log::info("stopped");
  return engine.dead() ? 1 : 0;
}

}  // namespace

int run_serve(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  for (const std::string& arg : args) {
    if (arg != "--help" && arg != "-h" && !arg.starts_with("--help=")) continue;
    const std::string search = arg.starts_with("--help=") ? arg.substr(7) : "";
    fmt::print("eyrie serve MODEL [flags]: OpenAI-compatible server\n\n{}",
               flags_help(serve_flags(), search == "all" ? "" : search));
    return 0;
  }
  return serve(parse_flags(serve_flags(), args));
}

}  // namespace eyrie::apps
