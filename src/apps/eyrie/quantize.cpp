// eyrie quantize IN OUT: flags, a progress line on a terminal, one line of result.
#include "quantize/quantize.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>

#include "apps/eyrie/calibrate.h"
#include "apps/eyrie/calibration_prompts.h"
#include "apps/eyrie/commands.h"
#include "apps/eyrie/flag_parser.h"
#include "apps/eyrie/kv_plan.h"
#include "base/error.h"
#include "base/human.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"

namespace eyrie::apps {
namespace {

constexpr std::array kFlags = {
    FlagSpec{.name = "scheme",
             .help = "mxfp4 (4.25 bits a weight), nvfp4 or int4-g32 (4.5 bits), fp8 (E4M3, a scale "
                     "per output row), fp8-block (a scale per 128x128)"},
    FlagSpec{.name = "producer",
             .help = "whose layout and rounding: mxfp4 quark|compressed-tensors, nvfp4 "
                     "modelopt|quark|compressed-tensors, fp8 eyrie|quark|compressed-tensors, "
                     "fp8-block deepseek|transformers, int4-g32 compressed-tensors. Default: the "
                     "first"},
    FlagSpec{.name = "global-scale",
             .help =
                 "nvfp4: shared (default; one for gate and up, and for q, k and v, which engines "
                 "run as one) or own (one a tensor, as Quark's file-to-file tool writes)"},
    FlagSpec{.name = "kv-cache-scheme",
             .help = "fp8: the config asks engines for an FP8 KV cache (scales 1)"},
    FlagSpec{.name = "calibration",
             .help = "nvfp4: FILE.jsonl of prompts (prompt, messages, question or text) that the "
                     "model is run over for the activations' static scales, which vLLM's loaders "
                     "of modelopt and quark ask for; compressed-tensors becomes W4A4. The other "
                     "schemes need none"},
    FlagSpec{.name = "calibration-samples",
             .kind = FlagKind::kInt,
             .help = "rows of the file that are used, from the top. Default: 512"},
    FlagSpec{.name = "calibration-tokens",
             .kind = FlagKind::kInt,
             .help = "what a row is cut to. Default: 512"},
    FlagSpec{.name = "exclude",
             .kind = FlagKind::kList,
             .help = "layers to leave as they are: names, globs or re:regexes. Default: attention, "
                     "router, head, projector and vision (4 bits: also dense and shared MLPs); fc "
                     "and lm_head of a draft"},
    FlagSpec{
        .name = "include", .kind = FlagKind::kList, .help = "layers to quantize even if excluded"},
    FlagSpec{.name = "overwrite",
             .kind = FlagKind::kSwitch,
             .help = "replace an existing OUT, once the new one is complete"},
    FlagSpec{.name = "threads", .kind = FlagKind::kInt, .help = "default: all cores"},
    FlagSpec{.name = "help", .kind = FlagKind::kSwitch, .alias = "h", .help = "this text"},
};

std::string scheme_names() {
  std::string names;
  for (const formats::WeightFormat* format : quantize::schemes()) {
    names += (names.empty() ? "" : "|") + std::string(format->name);
  }
  return names;
}

const formats::WeightFormat* scheme_of(const ParsedFlags& flags) {
  if (!flags.has("scheme")) fail("--scheme is missing; accepted are {}", scheme_names());
  const std::string name = flags.string("scheme");
  for (const formats::WeightFormat* format : quantize::schemes()) {
    if (format->name == name) return format;
  }
  fail("--scheme {} is unknown; accepted are {}", name, scheme_names());
}

const formats::Recipe* recipe_of(const ParsedFlags& flags) {
  const formats::WeightFormat* format = scheme_of(flags);
  const std::string producer = flags.has("producer") ? flags.string("producer") : "";
  if (const formats::Recipe* recipe = formats::find_recipe(*format, producer)) return recipe;
  std::string accepted;
  for (const formats::Recipe& recipe : formats::all_recipes()) {
    if (recipe.format != format) continue;
    accepted += (accepted.empty() ? "" : ", ") + std::string(recipe.producer);
  }
  fail("--producer {} does not make {}; accepted are {}", producer, format->name, accepted);
}

bool wants_fp8_kv(const ParsedFlags& flags) {
  if (!flags.has("kv-cache-scheme")) return false;
  const std::string scheme = flags.string("kv-cache-scheme");
  if (scheme != "fp8") fail("--kv-cache-scheme {} is unknown; accepted is fp8", scheme);
  return true;
}

bool shares_global_scales(const ParsedFlags& flags, const formats::WeightFormat& format) {
  if (!flags.has("global-scale")) return true;
  const std::string choice = flags.string("global-scale");
  if (!format.has_global_scale) fail("--global-scale {}: {} has none", choice, format.name);
  if (choice != "shared" && choice != "own") {
    fail("--global-scale {} is unknown; accepted are shared and own", choice);
  }
  return choice == "shared";
}

void show_progress(const quantize::Progress& progress) {
  const auto done = static_cast<double>(progress.bytes_done);
  const auto total = static_cast<double>(progress.bytes_total);
  const double rate = done / std::max(progress.seconds, 1e-9);
  fmt::print(stderr, "\r{:5.1f} %  {} of {}  {:.2f} GB/s  {} left\x1b[K", 100 * done / total,
             human_bytes(done), human_bytes(total), rate / 1e9,
             human_seconds((total - done) / std::max(rate, 1.0)));
  std::fflush(stderr);
}

std::optional<CalibrationFile> calibration_file(const ParsedFlags& flags,
                                                const formats::Recipe& recipe) {
  if (!flags.has("calibration")) {
    for (const char* flag : {"calibration-samples", "calibration-tokens"}) {
      if (flags.has(flag))
        fail("--{} {} needs --calibration FILE.jsonl", flag, flags.integer(flag, 0));
    }
    return std::nullopt;
  }
  CalibrationFile file;
  file.path = flags.string("calibration");
  if (!recipe.has_input_scale()) {
    fail("--calibration {} is not needed: {} finds the scales of activations at run time",
         file.path, recipe.format->name);
  }
  file.max_samples = flags.integer("calibration-samples", file.max_samples);
  file.max_tokens = flags.integer("calibration-tokens", file.max_tokens);
  if (file.max_samples < 1) fail("--calibration-samples {} must be at least 1", file.max_samples);
  if (file.max_tokens < 1) fail("--calibration-tokens {} must be at least 1", file.max_tokens);
  return file;
}

void show_calibration(const CalibrationProgress& progress) {
  const auto done = static_cast<double>(progress.tokens_done);
  const auto total = static_cast<double>(progress.tokens_total);
  const double rate = done / std::max(progress.seconds, 1e-9);
  fmt::print(stderr, "\rcalibration {:5.1f} %  {} of {} tokens  {:.0f} tok/s  {} left\x1b[K",
             100 * done / total, progress.tokens_done, progress.tokens_total, rate,
             human_seconds((total - done) / std::max(rate, 1e-3)));
  std::fflush(stderr);
}

// Calibration runs the whole model, where quantizing takes a tensor or two at a time.
void check_memory(const checkpoint::Checkpoint& files) {
  const auto needed = static_cast<double>(files.total_bytes());
  const auto usable = static_cast<double>(usable_memory_bytes());
  if (needed <= usable) {
    fmt::print("calibration runs the model: {} of weights, {} of memory\n", human_bytes(needed),
               human_bytes(usable));
    return;
  }
  fail(
      "--calibration runs the model, whose weights are {}, and the memory is {}; a machine with "
      "more is needed, or --producer compressed-tensors without --calibration",
      human_bytes(needed), human_bytes(usable));
}

// Fills options->input_amax.
void run_calibration(CalibrationFile file, quantize::Options* options) {
  const std::vector<std::string> modules = quantize::selected_modules(*options);
  checkpoint::Checkpoint files = checkpoint::Checkpoint::open(options->input);
  if (quantize::is_draft(files.config())) {
    fail(
        "--calibration {}: {} is a draft, which does not run without its target; the fp8 schemes "
        "need no calibration",
        file.path, options->input);
  }
  const model::ModelConfig config = model::ModelConfig::parse(files.config());
  file.model = options->input;
  file.vocab_size = config.vocab_size;
  file.max_tokens = std::min(file.max_tokens, config.max_position_embeddings);
  const auto prompts = read_calibration_prompts(file);
  check_memory(files);
  std::function<void(const CalibrationProgress&)> on_progress;
  if (stderr_is_terminal()) on_progress = show_calibration;
  const Calibration result = calibrate(&files, modules, prompts, options->num_threads, on_progress);
  if (stderr_is_terminal()) fmt::print(stderr, "\r\x1b[K");
  fmt::print("calibrated {} layers on {} prompts, {} tokens\n", result.amax.size(), prompts.size(),
             result.num_tokens);
  if (result.num_idle_experts > 0) {
    log::warning(
        "[calibration] {} of {} experts met no token; their scale is their layer's, as every "
        "expert's is, but more prompts would show more",
        result.num_idle_experts, result.num_experts);
  }
  options->input_amax = result.amax;
}

}  // namespace

int run_quantize(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  const ParsedFlags flags = parse_flags(kFlags, args);
  if (flags.has("help")) {
    fmt::print("eyrie quantize IN OUT --scheme {} [flags]\n\n{}\n", scheme_names(),
               flags_help(kFlags));
    return 0;
  }
  if (flags.positionals().size() != 2) {
    fail(
        "two folders are expected, the checkpoint and where to put the quantized one: "
        "eyrie quantize IN OUT --scheme {}",
        scheme_names());
  }
  quantize::Options options;
  options.recipe = recipe_of(flags);
  options.kv_cache_fp8 = wants_fp8_kv(flags);
  options.share_global_scales = shares_global_scales(flags, *options.recipe->format);
  options.input = checkpoint::resolve_model_path(flags.positionals()[0]);
  options.output = flags.positionals()[1];
  if (flags.has("exclude")) options.exclude = flags.list("exclude");
  options.include = flags.list("include");
  options.overwrite = flags.has("overwrite");
  const int64_t threads = flags.integer("threads", 0);
  if (threads < 0 || threads > 1024) fail("--threads {} must be 0 (all cores) to 1024", threads);
  options.num_threads = static_cast<int>(threads);
  if (stderr_is_terminal()) options.on_progress = show_progress;
  if (const auto file = calibration_file(flags, *options.recipe)) run_calibration(*file, &options);

  const quantize::Report report = quantize::quantize(options);
  if (stderr_is_terminal()) fmt::print(stderr, "\r\x1b[K");
  if (report.num_resumed_shards > 0) {
    fmt::print("{} finished shards of an interrupted run were kept\n", report.num_resumed_shards);
  }
  const auto bytes_in = static_cast<double>(report.bytes_in);
  const auto bytes_out = static_cast<double>(report.bytes_out);
  fmt::print("{}: {} layers to {}, {} tensors kept; {} to {} ({:.1f} %) in {} ({:.2f} GB/s)\n",
             options.output, report.num_quantized, options.recipe->format->name, report.num_kept,
             human_bytes(bytes_in), human_bytes(bytes_out), 100 * bytes_out / bytes_in,
             human_seconds(report.seconds), bytes_in / 1e9 / std::max(report.seconds, 1e-9));
  return 0;
}

}  // namespace eyrie::apps
