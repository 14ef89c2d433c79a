#include "bench/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/mapped_file.h"
#include "bench/fingerprint.h"
#include "bench/server_info.h"
#include "bench/shell_words.h"

extern char** environ;

namespace eyrie::bench {
namespace fs = std::filesystem;
namespace {

// Draft models named inside JSON flags ("--speculative-config {"model": …}").
std::string named_models(const std::vector<std::string>& args) {
  std::string out;
  for (const auto& arg : args) {
    const size_t brace = arg.find('{');
    if (brace == std::string::npos) continue;
    const auto json = nlohmann::json::parse(arg.substr(brace), nullptr, false);
    if (!json.is_object() || !json.contains("model") || !json["model"].is_string()) continue;
    out += path_identity(json["model"].get<std::string>()) + ";";
  }
  return out;
}

// Settings of the server that come from outside its command line.
std::string environment_settings() {
  std::vector<std::string> settings;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with("VLLM_") || text.starts_with("EYRIE_")) settings.emplace_back(text);
  }
  std::sort(settings.begin(), settings.end());
  return join_shell_words(settings);
}

std::string dataset_identity(const DatasetOptions& dataset) {
  if (dataset.name == "custom") {
    return fmt::format("custom {} {:016x} out={} shuffle={} template={}", dataset.path,
                       fnv1a(read_text_file(dataset.path)), dataset.custom_output_len.value_or(0),
                       !dataset.disable_shuffle, !dataset.skip_chat_template);
  }
  return fmt::format("{} in={} out={} prefix={} ratio={}/{} mode={} template={}", dataset.name,
                     dataset.input_len, dataset.output_len, dataset.prefix_len,
                     dataset.input_range_ratio.value_or(-1.0),
                     dataset.output_range_ratio.value_or(-1.0),
                     static_cast<int>(dataset.effective_mode()), dataset.use_chat_template);
}

std::vector<std::string> server_args(const SweepPlan& plan, const SweepConfig& config) {
  std::vector<std::string> args = plan.common_args;
  args.insert(args.end(), config.args.begin(), config.args.end());
  return args;
}

// Every run of the point that the store has; nullopt as soon as one is missing.
std::optional<SweepPoint> stored_point(const SweepPlan& plan, const RunStore& store,
                                       size_t config_idx, int64_t concurrency) {
  if (plan.fresh) return std::nullopt;
  SweepPoint point;
  point.config_idx = config_idx;
  point.concurrency = concurrency;
  for (int64_t repeat = 0; repeat < plan.repeats; ++repeat) {
    const auto text = store.find(sweep_key(plan, plan.configs[config_idx], concurrency, repeat));
    if (!text) return std::nullopt;
    point.add(OrderedJson::parse(*text), /*stored=*/true);
  }
  return point;
}

SweepPoint measure_point(const SweepPlan& plan, RunStore& store, SweepBackend& backend,
                         size_t config_idx, int64_t concurrency) {
  const SweepConfig& config = plan.configs[config_idx];
  SweepPoint point;
  point.config_idx = config_idx;
  point.concurrency = concurrency;
  for (int64_t repeat = 0; repeat < plan.repeats; ++repeat) {
    const std::string key = sweep_key(plan, config, concurrency, repeat);
    const auto stored = plan.fresh ? std::nullopt : store.find(key);
    if (stored) {
      point.add(OrderedJson::parse(*stored), /*stored=*/true);
      continue;
    }
    OrderedJson result = backend.measure(config, options_for(plan, concurrency));
    const RunSummary run = summarize_run(result);
    if (run.failed == 0 && run.completed > 0) {
      // A server's error text may be cut inside a character.
      store.put(key, config.name, concurrency,
                result.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
    }
    point.add(std::move(result), /*stored=*/false);
  }
  return point;
}

// Stops the server on every way out.
class RunningServer {
 public:
  RunningServer(SweepBackend& backend, const SweepConfig& config) : backend_(backend) {
    backend_.start_server(config);
  }
  ~RunningServer() { backend_.stop_server(); }
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;

 private:
  SweepBackend& backend_;
};

}  // namespace

std::string path_identity(const std::string& path) {
  const std::string dir = find_model_dir(path);
  const fs::path root = dir.empty() ? fs::path(path) : fs::path(dir);
  std::error_code code;
  std::vector<std::string> entries;
  const auto add = [&](const fs::path& file) {
    const auto size = fs::file_size(file, code);
    const auto time = fs::last_write_time(file, code).time_since_epoch().count();
    entries.push_back(fmt::format("{} {} {}", file.filename().string(), size, time));
  };
  if (fs::is_regular_file(root, code)) {
    add(root);
  } else {
    for (const auto& entry : fs::directory_iterator(root, code)) {
      if (entry.is_regular_file(code)) add(entry.path());
    }
  }
  std::sort(entries.begin(), entries.end());
  std::string all;
  for (const auto& entry : entries) all += entry + "\n";
  return fmt::format("{}#{:016x}", path, fnv1a(all));
}

ServeOptions options_for(const SweepPlan& plan, int64_t concurrency) {
  constexpr int64_t kMostWarmups = 8;
  ServeOptions options = plan.client;
  options.model = plan.model;
  options.max_concurrency = concurrency;
  options.dataset.num_prompts = plan.prompts_per_concurrency * concurrency;
  if (!plan.warmups_given) options.num_warmups = std::min(concurrency, kMostWarmups);
  options.percentile_metrics = {"ttft", "tpot", "itl", "e2el"};
  options.percentiles = {50.0, 90.0, 99.0};
  return options;
}

std::string sweep_key(const SweepPlan& plan, const SweepConfig& config, int64_t concurrency,
                      int64_t repeat) {
  const ServeOptions options = options_for(plan, concurrency);
  const auto args = server_args(plan, config);
  const nlohmann::json client = {{"backend", options.backend},
                                 {"ignore_eos", options.ignore_eos},
                                 {"sampling", options.sampling},
                                 {"extra", options.extra_body},
                                 {"template", options.chat_template_kwargs},
                                 {"warmups", options.num_warmups},
                                 {"rate", fmt::format("{}", options.arrivals.request_rate)},
                                 {"burst", fmt::format("{}", options.arrivals.burstiness)},
                                 {"seed", options.dataset.seed},
                                 {"prompts", options.dataset.num_prompts}};
  return fmt::format(
      "sweep 1\nconfig {}={}\nmodel {}\ndrafts {}\ndataset {}\nclient {}\nenvironment {}\n"
      "concurrency {}\nrepeat {}\nmachine {}\nprogram {}",
      config.name, join_shell_words(args), path_identity(plan.model), named_models(args),
      dataset_identity(options.dataset), client.dump(), environment_settings(), concurrency, repeat,
      plan.machine, plan.program);
}

void run_sweep(const SweepPlan& plan, RunStore& store, SweepBackend& backend,
               const SweepEvents& events, SweepResult& result) {
  const auto keep = [&](SweepPoint point) {
    result.points.push_back(std::move(point));
    if (events.on_point) events.on_point(result.points.back());
  };
  for (size_t i = 0; i < plan.configs.size(); ++i) {
    std::optional<RunningServer> server;
    for (const int64_t concurrency : plan.concurrencies) {
      if (auto stored = stored_point(plan, store, i, concurrency)) {
        keep(std::move(*stored));
        continue;
      }
      if (!server) server.emplace(backend, plan.configs[i]);
      keep(measure_point(plan, store, backend, i, concurrency));
    }
  }
}

}  // namespace eyrie::bench
