// eyrie quantize IN OUT: flags, a progress line on a terminal, one line of result.
#include "quantize/quantize.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>

#include "apps/eyrie/commands.h"
#include "apps/eyrie/flag_parser.h"
#include "base/error.h"
#include "base/human.h"
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
             .help = "not needed: every scheme finds the scales of activations at run time"},
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
  if (flags.has("calibration")) {
    fail("--calibration {} is not needed: every scheme finds the scales of activations at run time",
         flags.string("calibration"));
  }
  options.input = checkpoint::resolve_model_path(flags.positionals()[0]);
  options.output = flags.positionals()[1];
  if (flags.has("exclude")) options.exclude = flags.list("exclude");
  options.include = flags.list("include");
  options.overwrite = flags.has("overwrite");
  const int64_t threads = flags.integer("threads", 0);
  if (threads < 0 || threads > 1024) fail("--threads {} must be 0 (all cores) to 1024", threads);
  options.num_threads = static_cast<int>(threads);
  if (stderr_is_terminal()) options.on_progress = show_progress;

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
