// eyrie bench latency MODEL [flags]: vLLM's `bench latency`, a fixed batch again and again, and
// what a decoding step of it costs and reads. Several batch sizes share one load.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

#include "apps/eyrie/bench_flags.h"
#include "apps/eyrie/latency_report.h"
#include "apps/eyrie/local_bench.h"
#include "apps/eyrie/local_engine.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/version.h"
#include "bench/machine.h"

namespace eyrie::apps {
namespace {

constexpr auto kFlags = std::to_array<FlagSpec>({
    {.name = "input-len", .kind = FlagKind::kInt, .help = "tokens of a prompt [32]"},
    {.name = "output-len", .kind = FlagKind::kInt, .help = "tokens of an answer [128]"},
    {.name = "batch-size",
     .kind = FlagKind::kString,
     .help = "prompts at once; several with commas, measured one after the other [8]"},
    {.name = "n", .kind = FlagKind::kInt, .help = "answers to a prompt [1]"},
    {.name = "num-iters-warmup",
     .kind = FlagKind::kInt,
     .help = "iterations before the measured ones, of each batch size [10]"},
    {.name = "num-iters", .kind = FlagKind::kInt, .help = "measured iterations [30]"},
    {.name = "temperature", .kind = FlagKind::kFloat, .help = "of sampling [1.0]"},
    {.name = "output-json", .kind = FlagKind::kString, .help = "file for the result"},
    {.name = "bandwidth",
     .kind = FlagKind::kFloat,
     .help = "GB/s the machine reads: steps are held against it"},
    {.name = "peak-tflops",
     .kind = FlagKind::kFloat,
     .help = "TFLOP/s it computes; with --bandwidth, the slower of both is the limit"},
    {.name = "enable-prefix-caching",
     .kind = FlagKind::kBool,
     .help = "prompts are computed once, in the warm-up [off]"},
    {.name = "disable-detokenize",
     .kind = FlagKind::kSwitch,
     .explained = "text costs 0.1 us a token here and is made beside the step"},
    {.name = "use-beam-search", .kind = FlagKind::kSwitch, .explained = "there is no beam search"},
    {.name = "profile", .kind = FlagKind::kSwitch, .explained = "use perf or ncu"},
});

struct Options {
  std::vector<int32_t> batch_sizes;
  int32_t input_len = 32, output_len = 128, n = 1;
  int num_warmup = 10, num_iters = 30;
  runtime::SamplingParams sampling;
  MachineLimits limits;
  std::string output_json;
};

Options options_from(const ParsedFlags& flags) {
  Options o;
  o.batch_sizes = counts_from("batch-size", flags.string("batch-size", "8"));
  o.input_len = static_cast<int32_t>(count_from(flags, "input-len", 32, 1));
  o.output_len = static_cast<int32_t>(count_from(flags, "output-len", 128, 1));
  o.n = static_cast<int32_t>(count_from(flags, "n", 1, 1));
  o.num_warmup = static_cast<int>(count_from(flags, "num-iters-warmup", 10, 0));
  o.num_iters = static_cast<int>(count_from(flags, "num-iters", 30, 1));
  o.sampling = bench_sampling(flags);
  o.limits.bytes_per_second = 1e9 * flags.number("bandwidth", 0);
  o.limits.flops_per_second = 1e12 * flags.number("peak-tflops", 0);
  o.output_json = flags.string("output-json");
  return o;
}

// Where the user did not say: room for what is measured, no more.
ServeConfig config_from(const ParsedFlags& flags, const Options& options) {
  ServeConfig config = serve_config_from(flags);
  const int32_t most =
      options.n * *std::max_element(options.batch_sizes.begin(), options.batch_sizes.end());
  if (!flags.has("max-model-len")) config.kv.max_model_len = options.input_len + options.output_len;
  if (!flags.has("max-num-seqs")) {
    config.max_num_seqs = most;
    config.kv.max_num_seqs = 2 * most;  // a full cache would keep the last ones waiting
    config.runner.max_num_seqs = most;
  }
  config.enable_prefix_caching = flags.boolean("enable-prefix-caching", false);
  return config;
}

// A shape without weights may come without a vocabulary, and prompts are ids here.
Tokenizer tokenizer_of(const ServeConfig& config) {
  if (std::filesystem::exists(config.tokenizer_path + "/tiktoken.model")) {
    return Tokenizer::load(config.tokenizer_path);
  }
  return Tokenizer::bytes_only();
}

// The first prompts of a larger batch are those of a smaller one.
std::vector<LocalJob> make_jobs(const Options& options, int32_t batch_size, int64_t vocab_size,
                                uint64_t seed) {
  const NoiseStream noise(seed);
  std::vector<LocalJob> jobs(static_cast<size_t>(batch_size));
  for (size_t i = 0; i < jobs.size(); ++i) {
    LocalJob& job = jobs[i];
    job.max_tokens = options.output_len;
    job.n = options.n;
    for (int32_t t = 0; t < options.input_len; ++t) {
      const PhiloxBlock block = noise.block(static_cast<uint64_t>(t), static_cast<uint32_t>(i));
      job.prompt.push_back(static_cast<TokenId>(block[0] % static_cast<uint64_t>(vocab_size)));
    }
  }
  return jobs;
}

LatencyPoint measure(LocalEngine& engine, const Options& options, const ServeConfig& config,
                     int32_t batch_size) {
  const std::vector<LocalJob> jobs =
      make_jobs(options, batch_size, engine.model_config().vocab_size, config.seed);
  for (int i = 0; i < options.num_warmup; ++i) (void)engine.run(jobs, options.sampling);
  LatencyPoint point;
  point.batch_size = batch_size * options.n;
  point.num_drafts = config.speculative ? config.speculative->num_speculative_tokens : 0;
  const bool fixed = config.speculative && !config.speculative->adaptive;
  int64_t num_tokens = 0;
  double seconds = 0, progress = 0;
  for (int i = 0; i < options.num_iters; ++i) {
    const LocalRun run = engine.run(jobs, options.sampling);
    const DecodeSteps steps = decode_steps(run);
    point.latencies.push_back(run.seconds);
    point.step_seconds.insert(point.step_seconds.end(), steps.seconds.begin(), steps.seconds.end());
    point.target_seconds.insert(point.target_seconds.end(), steps.target_seconds.begin(),
                                steps.target_seconds.end());
    point.draft_seconds.insert(point.draft_seconds.end(), steps.draft_seconds.begin(),
                               steps.draft_seconds.end());
    num_tokens += steps.num_tokens;
    seconds += steps.total_seconds();
    progress += steps.mean_progress / options.num_iters;
    point.draft_length += (fixed ? point.num_drafts : run.draft_length()) / options.num_iters;
  }
  if (!point.step_seconds.empty()) {
    point.tokens_per_sequence = static_cast<double>(num_tokens) /
                                static_cast<double>(point.step_seconds.size()) / point.batch_size;
    point.output_tokens_per_second = static_cast<double>(num_tokens) / seconds;
  }
  point.context = options.input_len + progress;
  point.read = advise::step_read(engine.traffic(), {.num_sequences = point.batch_size,
                                                    .num_drafts = point.draft_length,
                                                    .context = point.context});
  return point;
}

int measure_all(const ParsedFlags& flags) {
  const Options options = options_from(flags);
  const ServeConfig config = config_from(flags, options);
  say_notes(config);
  LocalEngine engine(config, tokenizer_of(config), config.max_num_seqs);
  fmt::print("{} · {}\n{}\n", config.model, bench::describe_machine(), engine.summary());
  std::fflush(stdout);
  std::vector<LatencyPoint> points;
  for (const int32_t batch_size : options.batch_sizes) {
    points.push_back(measure(engine, options, config, batch_size));
    if (options.batch_sizes.size() > 1) fmt::print("\nBatch size {}\n", batch_size);
    fmt::print("{}", latency_text(points.back()));
    std::fflush(stdout);
  }
  fmt::print("\n{}", step_tables(points, options.limits));
  nlohmann::ordered_json json = latency_json(points, options.limits);
  json["eyrie"]["version"] = std::string(kVersion);
  json["eyrie"]["model"] = config.model;
  json["eyrie"]["machine"] = bench::describe_machine();
  json["eyrie"]["flags"] = flags.given();
  json["eyrie"]["load"] = engine.summary();
  write_json(options.output_json, json);
  return 0;
}

}  // namespace

int run_bench_latency(const std::vector<std::string>& args) {
  if (std::any_of(args.begin(), args.end(), is_help_flag)) {
    fmt::print("eyrie bench latency MODEL [flags, and those of serve]\n\n{}", flags_help(kFlags));
    return 0;
  }
  return measure_all(parse_flags(with_engine_flags(kFlags), args));
}

}  // namespace eyrie::apps
