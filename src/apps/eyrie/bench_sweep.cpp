// eyrie bench sweep MODEL --config … : one server per configuration, every concurrency, one table.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <optional>
#include <set>

#include "apps/eyrie/bench_flags.h"
#include "base/error.h"
#include "base/human.h"
#include "base/mapped_file.h"
#include "base/version.h"
#include "bench/draft_sizing.h"
#include "bench/html_report.h"
#include "bench/machine.h"
#include "bench/progress_line.h"
#include "bench/report.h"
#include "bench/serve.h"
#include "bench/server_process.h"
#include "bench/shell_words.h"
#include "bench/sweep.h"
#include "bench/sweep_tables.h"
#include "bench/verdict.h"

namespace eyrie::apps {
namespace {

namespace fs = std::filesystem;
using K = FlagKind;

constexpr FlagSpec kSweepFlags[] = {
    {"config", K::kRepeated, "",
     "NAME or NAME=SERVER FLAGS, once for each configuration; the first "
     "is the baseline",
     ""},
    {"concurrency", K::kString, "", "comma list [4,8,16,32,64]", ""},
    {"prompts-per-concurrency", K::kInt, "", "num-prompts = this × C [10]", ""},
    {"repeats", K::kInt, "", "runs of every point; the median counts, the spread is noise [1]", ""},
    {"serve-args", K::kString, "", "server flags of every configuration", ""},
    {"server", K::kString, "", "executable that is called as `SERVER serve MODEL …` [this program]",
     ""},
    {"start-timeout", K::kFloat, "", "seconds a server may take to be ready [600]", ""},
    {"devices", K::kInt, "", "for tok/s per device [--tensor-parallel-size, else 1]", ""},
    {"out", K::kString, "", "folder of report, JSON, Markdown, logs and store [sweep]", ""},
    {"store", K::kString, "", "SQLite file of finished runs [OUT/runs.sqlite]", ""},
    {"fresh", K::kSwitch, "", "measure again what the store has", ""},
    {"title", K::kString, "", "of the report", ""},
    {"reference", K::kString, "", "published table to stand beside: amd-mi355x-tp4, or a file", ""},
    {"noise", K::kFloat, "", "percent within which two figures are called equal [3]", ""},
    {"same-hardware", K::kSwitch, "", "this is the reference's hardware: judge absolute speeds too",
     ""},
};

// Client flags that the sweep sets itself.
const std::set<std::string_view> kNotInSweep = {"base-url",
                                                "host",
                                                "endpoint",
                                                "model",
                                                "served-model-name",
                                                "max-concurrency",
                                                "num-prompts",
                                                "save-result",
                                                "save-detailed",
                                                "append-result",
                                                "result-dir",
                                                "result-filename",
                                                "label",
                                                "metadata",
                                                "goodput",
                                                "percentile-metrics",
                                                "metric-percentiles",
                                                "ready-check-timeout-sec",
                                                "profile"};

std::vector<FlagSpec> sweep_flag_table() {
  std::vector<FlagSpec> table(std::begin(kSweepFlags), std::end(kSweepFlags));
  for (const auto& spec : bench_client_flags()) {
    if (!kNotInSweep.contains(spec.name)) table.push_back(spec);
  }
  return table;
}

std::vector<int64_t> parse_concurrencies(const std::string& text) {
  std::vector<int64_t> values;
  for (size_t pos = 0; pos <= text.size();) {
    const size_t end = std::min(text.find(',', pos), text.size());
    const auto value = parse_human_integer(text.substr(pos, end - pos));
    if (!value || *value < 1) {
      fail("--concurrency {}: must be whole numbers of at least 1 with commas between", text);
    }
    if (std::find(values.begin(), values.end(), *value) == values.end()) values.push_back(*value);
    pos = end + 1;
  }
  return values;
}

// The tensor-parallel size among server flags; 1 when none is given.
int64_t devices_of(const std::vector<std::string>& args) {
  int64_t devices = 1;
  for (size_t i = 0; i < args.size(); ++i) {
    for (const std::string name : {"--tensor-parallel-size", "--tensor_parallel_size", "-tp"}) {
      std::string value;
      if (args[i] == name && i + 1 < args.size()) value = args[i + 1];
      if (args[i].starts_with(name + "=")) value = args[i].substr(name.size() + 1);
      if (const auto number = parse_human_integer(value)) devices = *number;
    }
  }
  return devices;
}

struct SweepSetup {
  bench::SweepPlan plan;
  bench::SweepResult result;
  std::string server;
  int64_t port = 0;  // 0 = any free one
  double start_timeout_s = 600.0;
  fs::path out;
  std::string store;
  std::optional<bench::Reference> reference;
  bench::VerdictOptions verdicts;
  bool disable_progress = false;
};

std::string dataset_line(const bench::SweepPlan& plan) {
  const auto& dataset = plan.client.dataset;
  std::string line = dataset.name == "custom" ? fmt::format("custom, {}", dataset.path)
                                              : fmt::format("{}, {} in, {} out", dataset.name,
                                                            dataset.input_len, dataset.output_len);
  const bool ignores_eos = plan.client.ignore_eos || dataset.name == "random";
  line += fmt::format(", {} × C prompts, seed {}, {}", plan.prompts_per_concurrency, dataset.seed,
                      ignores_eos ? "answers of full length" : "answers end by themselves");
  for (const auto& [key, value] : plan.client.sampling.items()) {
    line += fmt::format(", {} {}", key, value.dump());
  }
  return line;
}

std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return fmt::format("{:%Y-%m-%d %H:%M}", local);
}

SweepSetup read_setup(const ParsedFlags& flags, const std::vector<std::string>& args) {
  if (flags.positionals().size() != 1) fail("bench sweep takes one MODEL (a directory or hub id)");
  SweepSetup setup;
  auto& plan = setup.plan;
  plan.model = flags.positionals().front();
  plan.common_args = bench::split_shell_words(flags.string("serve-args"));
  for (const auto& text : flags.list("config")) {
    plan.configs.push_back(bench::parse_sweep_config(text));
    for (size_t i = 0; i + 1 < plan.configs.size(); ++i) {
      if (plan.configs[i].name == plan.configs.back().name) {
        fail("--config {}: two configurations of this name", plan.configs[i].name);
      }
    }
  }
  if (plan.configs.empty()) plan.configs.push_back({"default", {}});
  plan.concurrencies = parse_concurrencies(flags.string("concurrency", "4,8,16,32,64"));
  plan.prompts_per_concurrency = flags.integer("prompts-per-concurrency", 10);
  plan.repeats = flags.integer("repeats", 1);
  if (plan.prompts_per_concurrency < 1 || plan.repeats < 1) {
    fail("--prompts-per-concurrency and --repeats must be at least 1");
  }
  plan.fresh = flags.boolean("fresh", false);
  plan.client = serve_options_from(flags);
  plan.client.port_given = true;
  plan.warmups_given = flags.has("num-warmups");
  plan.machine = bench::describe_machine();
  setup.server = flags.string("server", bench::own_executable());
  plan.program = bench::path_identity(setup.server);
  setup.port = flags.integer("port", 0);
  setup.start_timeout_s = flags.number("start-timeout", 600.0);
  setup.out = flags.string("out", "sweep");
  setup.store = flags.string("store", (setup.out / "runs.sqlite").string());
  setup.disable_progress = plan.client.disable_progress;
  if (flags.has("reference")) {
    setup.reference = bench::load_reference(flags.string("reference"));
  }
  setup.verdicts = {.noise = flags.number("noise", 3.0) / 100.0,
                    .same_hardware = flags.boolean("same-hardware", false)};

  auto& result = setup.result;
  const std::string name = fs::path(plan.model).filename().string();
  result.title = flags.string("title", fmt::format("{} across concurrencies", name));
  result.model = plan.model;
  result.machine = plan.machine;
  result.version = kVersion;
  result.date = local_time();
  result.command = "eyrie bench sweep " + bench::join_shell_words(args);
  result.dataset = dataset_line(plan);
  result.devices = flags.integer("devices", devices_of(plan.common_args));
  if (result.devices < 1) fail("--devices {}: must be at least 1", result.devices);
  const auto& sampling = plan.client.sampling;
  result.greedy = sampling.contains("temperature") && sampling["temperature"] == 0.0;
  result.common_args = plan.common_args;
  result.configs = plan.configs;
  result.concurrencies = plan.concurrencies;
  return setup;
}

// The real world: servers are processes, runs are loads.
class ProcessBackend final : public bench::SweepBackend {
 public:
  explicit ProcessBackend(const SweepSetup& setup) : setup_(setup) {}

  void start_server(const bench::SweepConfig& config) override {
    const int64_t port = setup_.port != 0 ? setup_.port : bench::find_free_port();
    base_url_ = fmt::format("http://127.0.0.1:{}", port);
    std::vector<std::string> argv = {setup_.server, "serve", setup_.plan.model};
    argv.insert(argv.end(), setup_.plan.common_args.begin(), setup_.plan.common_args.end());
    argv.insert(argv.end(), config.args.begin(), config.args.end());
    argv.insert(argv.end(), {"--host", "127.0.0.1", "--port", fmt::format("{}", port)});
    const fs::path log = setup_.out / "logs" / (config.name + ".log");
    bench::ProgressLine line(config.name + ": ");
    if (!setup_.disable_progress) line.show_text("starting the server …");
    server_.emplace(argv, log.string());
    server_->wait_ready(base_url_ + "/health", setup_.start_timeout_s);
  }

  bench::OrderedJson measure(const bench::SweepConfig& config,
                             const bench::ServeOptions& options) override {
    bench::ServeOptions client = options;
    client.base_url = base_url_;
    client.model.clear();  // whatever name the server gives it
    bench::ProgressLine line(fmt::format("{} C={}: ", config.name, *options.max_concurrency));
    bench::ServeHooks hooks;
    hooks.say = [&](const std::string& text) {
      if (!text.starts_with("WARNING")) return;
      line.clear();
      fmt::print(stderr, "{}\n", text);
    };
    if (!setup_.disable_progress) {
      line.show_text("warming up …");
      hooks.on_progress = [&](const bench::Progress& progress) { line.show(progress); };
    }
    return bench::result_json(client, bench::run_serve(client, hooks));
  }

  void stop_server() override {
    constexpr double kDrain = 30.0;
    if (server_) server_->stop(kDrain);
    server_.reset();
  }

 private:
  const SweepSetup& setup_;
  std::optional<bench::ServerProcess> server_;
  std::string base_url_;
};

// Files beside the store; prints where they are.
void write_reports(const SweepSetup& setup, const std::vector<bench::Verdict>& verdicts) {
  const bench::Reference* reference = setup.reference ? &*setup.reference : nullptr;
  bench::OrderedJson json = bench::sweep_json(setup.result);
  if (reference != nullptr) {
    json["reference"] = reference->name;
    json["verdicts"] = bench::OrderedJson::array();
    for (const auto& verdict : verdicts) {
      json["verdicts"].push_back({{"outcome", bench::outcome_word(verdict.outcome)},
                                  {"criterion", verdict.criterion},
                                  {"detail", verdict.detail}});
    }
  }
  const auto path = [&](const char* name) { return (setup.out / name).string(); };
  write_file_atomically(
      path("sweep.json"),
      json.dump(1, ' ', false, bench::OrderedJson::error_handler_t::replace) + "\n");
  write_file_atomically(path("sweep.md"), bench::sweep_markdown(setup.result, reference, verdicts));
  write_file_atomically(path("report.html"), bench::sweep_html(setup.result, reference, verdicts));
  fmt::print("\nReport: {}\n        {}, {}, {}\n", fs::absolute(path("report.html")).string(),
             path("sweep.md"), path("sweep.json"), setup.store);
}

}  // namespace

int run_bench_sweep(const std::vector<std::string>& args) {
  const auto table = sweep_flag_table();
  if (std::any_of(args.begin(), args.end(), is_help_flag)) {
    fmt::print("eyrie bench sweep MODEL [flags of the sweep and of the client]\n\n{}",
               flags_help(table));
    return 0;
  }
  const ParsedFlags flags = parse_flags(table, args);
  for (const auto& note : flags.notes()) fmt::print(stderr, "note: {}\n", note);
  SweepSetup setup = read_setup(flags, args);
  std::error_code code;
  fs::create_directories(setup.out / "logs", code);
  if (code) fail("--out {}: {}", setup.out.string(), code.message());

  fmt::print("{} · {}\nDataset: {}\n\n{}\n", setup.result.model, setup.result.machine,
             setup.result.dataset, bench::live_header(setup.result));
  std::fflush(stdout);
  bench::RunStore store(setup.store);
  ProcessBackend backend(setup);
  bool clean = true;
  bench::SweepEvents events;
  events.on_point = [&](const bench::SweepPoint& point) {
    clean = clean && point.run().failed == 0 && point.run().completed > 0;
    fmt::print("{}\n", bench::live_row(setup.result, point));
    std::fflush(stdout);
  };
  bench::run_sweep(setup.plan, store, backend, events, setup.result);

  const bench::Reference* reference = setup.reference ? &*setup.reference : nullptr;
  fmt::print("\ntok/s per device (speedup over {})\n{}", setup.plan.configs[0].name,
             format_table(bench::comparison_rows(setup.result, reference)));
  if (const std::string answers = setup.result.answers_sentence(); !answers.empty()) {
    fmt::print("\n{}\n", answers);
  }
  std::vector<bench::Verdict> verdicts;
  if (reference != nullptr) {
    verdicts = bench::judge(*reference, setup.result, setup.verdicts);
    fmt::print("\nBeside {} ({}):\n{}", reference->title, reference->source_url,
               bench::verdict_text(verdicts));
  }
  if (const auto lines = bench::draft_sizing_sentences(setup.result); !lines.empty()) {
    fmt::print("\nDraft lengths:\n");
    for (const auto& line : lines) fmt::print("{}\n", line);
    fmt::print("{}", bench::verdict_text(bench::judge_draft_sizing(setup.result)));
  }
  for (const auto& warning : bench::sweep_warnings(setup.result)) {
    fmt::print("WARNING: {}\n", warning);
  }
  write_reports(setup, verdicts);
  return clean ? 0 : 1;
}

}  // namespace eyrie::apps
