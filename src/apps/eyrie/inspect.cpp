// eyrie inspect MODEL: what a checkpoint holds, as a table or JSON.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/eyrie/commands.h"
#include "apps/eyrie/flag_parser.h"
#include "apps/eyrie/inspect_text.h"
#include "base/error.h"
#include "base/human.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/compare.h"
#include "checkpoint/inventory.h"
#include "ops/ops.h"
#include "quantize/quantize.h"

namespace eyrie::apps {
namespace {

using checkpoint::Checkpoint;
using checkpoint::InventoryRow;
using nlohmann::json;

constexpr std::array kFlags = {
    FlagSpec{.name = "diff",
             .kind = FlagKind::kSwitch,
             .help = "compare two checkpoints tensor by tensor: eyrie inspect --diff A B"},
    FlagSpec{.name = "draft", .help = "an EAGLE-3 draft: does it fit this target?"},
    FlagSpec{.name = "json", .kind = FlagKind::kSwitch, .help = "the same as JSON"},
    FlagSpec{.name = "help", .kind = FlagKind::kSwitch, .alias = "h", .help = "this text"},
};

json totals_of(const std::vector<InventoryRow>& rows) {
  int64_t tensors = 0, parameters = 0;
  size_t bytes = 0;
  for (const InventoryRow& row : rows) {
    tensors += row.tensors;
    parameters += row.parameters;
    bytes += row.bytes;
  }
  return {{"tensors", tensors}, {"parameters", parameters}, {"bytes", bytes}};
}

// The fields a draft and its target must agree on.
json fit_of(const json& config, bool is_draft) {
  const json& text = config.contains("text_config") ? config["text_config"] : config;
  json fit = json::object();
  for (const char* key : {"hidden_size", "vocab_size", "num_hidden_layers"}) {
    if (text.contains(key)) fit[key] = text[key];
  }
  if (!is_draft) return fit;
  for (const char* key : {"target_hidden_size", "draft_vocab_size", "num_aux_hidden_states"}) {
    if (text.contains(key)) fit[key] = text[key];
  }
  const auto eagle = text.find("eagle_config");
  const char* layers = "eagle_aux_hidden_state_layer_ids";
  if (eagle != text.end() && eagle->is_object() && eagle->contains(layers)) {
    fit["aux_hidden_state_layer_ids"] = (*eagle)[layers];
  }
  return fit;
}

std::vector<std::string> linear_modules(const Checkpoint& files) {
  std::vector<std::string> modules;
  for (const std::string& name : files.names()) {
    if (checkpoint::is_linear_weight_name(name)) {
      modules.emplace_back(checkpoint::module_of(name));
    }
  }
  return modules;
}

// Exclusion patterns with the linear layers each one covers: 0 tells a misspelt one.
json exclusions_of(const Checkpoint& files) {
  const std::vector<std::string> modules = linear_modules(files);
  const checkpoint::ModuleList& exclude = files.quant_config().exclude;
  const std::vector<int64_t> counts = exclude.count_matches(modules);
  json result = json::array();
  for (size_t i = 0; i < counts.size(); ++i) {
    result.push_back({{"pattern", exclude.patterns()[i]}, {"layers", counts[i]}});
  }
  return result;
}

// Layer numbers as * and no wrapper's prefix, so that hundreds of exact names become a few rows.
std::string kind_of(const std::string& pattern) {
  std::string result;
  for (size_t i = pattern.starts_with("language_model.") ? 15 : 0; i < pattern.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(pattern[i])) != 0;
    if (!digit || (i > 0 && pattern[i - 1] != '.')) {
      result += pattern[i];
      continue;
    }
    while (i + 1 < pattern.size() && std::isdigit(static_cast<unsigned char>(pattern[i + 1]))) ++i;
    result += '*';
  }
  return result;
}

// The exclusions by kind with the layers each kind covers, the widest first; 0 is a misspelt one or
// a part that this checkpoint lacks.
json excluded_kinds(const Checkpoint& files) {
  std::map<std::string, std::vector<std::string>> kinds;
  for (const std::string& pattern : files.quant_config().exclude.patterns()) {
    kinds[kind_of(pattern)].push_back(pattern);
  }
  const std::vector<std::string> modules = linear_modules(files);
  json result = json::array();
  for (const auto& [kind, patterns] : kinds) {
    const checkpoint::ModuleList list(patterns);
    const int64_t layers =
        std::count_if(modules.begin(), modules.end(),
                      [&](const std::string& module) { return list.matches(module); });
    result.push_back({{"group", kind}, {"patterns", patterns.size()}, {"layers", layers}});
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const json& a, const json& b) { return a["layers"] > b["layers"]; });
  return result;
}

// What would multiply by it on this machine; "" for what is no linear layer.
std::string kernel_of(const InventoryRow& row) {
  const formats::WeightFormat* format = formats::find_format(row.format);
  const bool linear = checkpoint::is_linear_weight_name(row.group) && !row.is_vector;
  return format != nullptr && linear ? ops::kernel_name(*format) : "";
}

json describe(const Checkpoint& files) {
  const json& config = files.config();
  const bool is_draft = quantize::is_draft(config);
  const std::vector<InventoryRow> rows = checkpoint::inventory(files);
  json groups = json::array();
  for (const InventoryRow& row : rows) {
    groups.push_back({{"group", row.group},
                      {"format", row.format},
                      {"kernel", kernel_of(row)},
                      {"tensors", row.tensors},
                      {"parameters", row.parameters},
                      {"bytes", row.bytes}});
  }
  json quantization = nullptr;
  if (!files.quant_config().method.empty()) {
    quantization = {{"method", files.quant_config().method},
                    {"kv_cache_fp8", files.quant_config().kv_cache_fp8},
                    {"scheme", files.quant_config().scheme},
                    {"exclude", exclusions_of(files)},
                    {"excluded", excluded_kinds(files)}};
  }
  return {{"path", files.path()},
          {"architectures", config.value("architectures", json::array())},
          {"role", is_draft ? "draft" : "target"},
          {"shards", files.files().size()},
          {"fit", fit_of(config, is_draft)},
          {"quantization", quantization},
          {"text", text_side(files.path())},
          {"total", totals_of(rows)},
          {"groups", groups}};
}

std::string join(const json& names, const char* separator) {
  std::string text;
  for (const json& name : names) {
    if (!text.empty()) text += separator;
    text += name.is_string() ? name.get<std::string>() : name.dump();
  }
  return text;
}

// "hidden_size 256, num_hidden_layers 7"
std::string shape_line(const json& fit) {
  json parts = json::array();
  for (const auto& [key, value] : fit.items()) parts.push_back(key + " " + value.dump());
  return join(parts, ", ");
}

void print_matches(const json& excluded) {
  constexpr size_t kMostRows = 12;
  std::vector<std::vector<std::string>> rows = {{"excluded", "patterns", "layers matched"}};
  for (size_t i = 0; i < std::min(kMostRows, excluded.size()); ++i) {
    rows.push_back(
        {excluded[i]["group"], excluded[i]["patterns"].dump(), excluded[i]["layers"].dump()});
  }
  fmt::print("\n{}", format_table(rows));
  if (excluded.size() > kMostRows) {
    fmt::print("and {} other kinds; --json lists every pattern\n", excluded.size() - kMostRows);
  }
}

void print_exclusions(const json& quantization) {
  const json& exclude = quantization["exclude"];
  int idle = 0;
  for (const json& entry : exclude) idle += entry["layers"] == 0;
  fmt::print("quantization  {}, {}; {} exclusions", quantization["method"].get<std::string>(),
             quantization["scheme"].get<std::string>(), exclude.size());
  if (quantization["kv_cache_fp8"] == true) fmt::print(", FP8 KV cache");
  if (idle > 0) fmt::print(", {} of them match nothing here", idle);
  fmt::print("\n");
}

void print_table(const json& model) {
  const auto total_bytes = model["total"]["bytes"].get<double>();
  std::vector<std::vector<std::string>> rows = {
      {"tensors", "format", "count", "parameters", "size", "share", "kernel here"}};
  const auto add = [&](const std::string& name, const std::string& format, const json& row,
                       const std::string& kernel) {
    const auto bytes = row["bytes"].get<double>();
    rows.push_back({name, format, fmt::format("{}", row["tensors"].get<int64_t>()),
                    fmt::format("{}", row["parameters"].get<int64_t>()), human_bytes(bytes),
                    fmt::format("{:.1f} %", total_bytes > 0 ? 100 * bytes / total_bytes : 0),
                    kernel});
  };
  for (const json& group : model["groups"]) {
    add(group["group"], group["format"], group, group["kernel"]);
  }
  add("total", "", model["total"], "");

  fmt::print("{}\n", model["path"].get<std::string>());
  fmt::print("architecture  {} ({})\n", join(model["architectures"], ", "),
             model["role"].get<std::string>());
  fmt::print("shape         {}\n", shape_line(model["fit"]));
  if (model["quantization"].is_object()) print_exclusions(model["quantization"]);
  if (model["text"].is_object()) {
    fmt::print("tokens        {}\n", model["text"]["tokens"].get<std::string>());
    fmt::print("template      {}\n", model["text"]["template"].get<std::string>());
  }
  fmt::print("\n{}", format_table(rows));
  if (model["quantization"].is_object() && !model["quantization"]["excluded"].empty()) {
    print_matches(model["quantization"]["excluded"]);
  }
}

// What a draft and its target must agree on, each with both sides and whether it holds.
json draft_fit(const Checkpoint& target, const Checkpoint& draft) {
  const json want = fit_of(target.config(), false), has = fit_of(draft.config(), true);
  json rows = json::array();
  const auto add = [&](const char* what, const json& of_target, const json& of_draft, bool fits) {
    rows.push_back({{"what", what}, {"target", of_target}, {"draft", of_draft}, {"fits", fits}});
  };
  const json hidden = want.value("hidden_size", json());
  const char* hidden_key =
      has.contains("target_hidden_size") ? "target_hidden_size" : "hidden_size";
  const json draft_hidden = has.value(hidden_key, json());
  add("hidden size", hidden, draft_hidden, hidden == draft_hidden);
  const json vocab = want.value("vocab_size", json()),
             draft_vocab = has.value("vocab_size", json());
  add("vocabulary", vocab, draft_vocab, vocab == draft_vocab);
  const json ids = has.value("aux_hidden_state_layer_ids", json::array());
  const json layers = want.value("num_hidden_layers", json());
  bool inside = layers.is_number();
  for (const json& id : ids) inside = inside && id.is_number() && id < layers;
  if (!ids.empty()) add("captured layers", layers, ids, inside);
  const Tensor* fc = draft.find("fc.weight");
  if (fc != nullptr && fc->rank() == 2 && hidden.is_number() && !ids.empty()) {
    const formats::WeightFormat* format = draft.format_of("fc");
    const int64_t bits = fc->dim(1) * 8 * static_cast<int64_t>(dtype_bytes(fc->dtype()));
    const int64_t in = format == nullptr ? fc->dim(1) : bits / format->bits_per_element;
    const int64_t wide = hidden.get<int64_t>() * static_cast<int64_t>(ids.size());
    add("inputs of fc", wide, in, wide == in);
  }
  return rows;
}

bool print_fit(const json& fit) {
  std::vector<std::vector<std::string>> rows = {{"draft fit", "target", "draft", ""}};
  bool fits = true;
  for (const json& row : fit) {
    rows.push_back({row["what"], row["target"].dump(), row["draft"].dump(),
                    row["fits"] == true ? "fits" : "DOES NOT FIT"});
    fits = fits && row["fits"] == true;
  }
  fmt::print("\n{}", format_table(rows));
  return fits;
}

json describe(const checkpoint::Comparison& comparison) {
  json tensors = json::array();
  for (const checkpoint::TensorDifference& t : comparison.tensors) {
    tensors.push_back({{"name", t.name},
                       {"a", t.format_a},
                       {"b", t.format_b},
                       {"elements", t.elements},
                       {"max_error", t.max_error},
                       {"rms_error", t.rms_error},
                       {"relative_rms", t.relative_rms},
                       {"cosine", t.cosine}});
  }
  return {{"tensors", tensors},
          {"only_a", comparison.only_a},
          {"only_b", comparison.only_b},
          {"other_shape", comparison.other_shape}};
}

// Tensors that differ, one a row; a list of everything equal would hide them.
void print_diff(const json& diff) {
  std::vector<std::vector<std::string>> rows = {
      {"tensor", "A", "B", "elements", "max error", "RMS error", "RMS / RMS of A", "cosine"}};
  int equal = 0;
  for (const json& t : diff["tensors"]) {
    if (t["max_error"] == 0.0) {
      ++equal;
      continue;
    }
    rows.push_back({t["name"], t["a"], t["b"], t["elements"].dump(),
                    fmt::format("{:.3g}", t["max_error"].get<double>()),
                    fmt::format("{:.3g}", t["rms_error"].get<double>()),
                    fmt::format("{:.4f}", t["relative_rms"].get<double>()),
                    fmt::format("{:.6f}", t["cosine"].get<double>())});
  }
  if (rows.size() > 1) fmt::print("{}\n", format_table(rows));
  fmt::print("{} differ, {} are equal\n", rows.size() - 1, equal);
  for (const auto& [key, label] : {std::pair{"only_a", "only in A"},
                                   {"only_b", "only in B"},
                                   {"other_shape", "other shape"}}) {
    for (const json& name : diff[key]) fmt::print("{}: {}\n", label, name.get<std::string>());
  }
}

int run_diff(const std::vector<std::string>& models, bool as_json) {
  if (models.size() != 2) fail("two models are expected: eyrie inspect --diff A B");
  Checkpoint a = Checkpoint::open(checkpoint::resolve_model_path(models[0]));
  Checkpoint b = Checkpoint::open(checkpoint::resolve_model_path(models[1]));
  const json diff = describe(checkpoint::compare(&a, &b));
  if (as_json) {
    fmt::print("{}\n", diff.dump(2));
  } else {
    print_diff(diff);
  }
  return 0;
}

}  // namespace

int run_inspect(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  const ParsedFlags flags = parse_flags(kFlags, args);
  if (flags.has("help")) {
    fmt::print(
        "eyrie inspect MODEL [--draft DRAFT] [--json]\neyrie inspect --diff A B [--json]\n\n{}\n",
        flags_help(kFlags));
    return 0;
  }
  if (flags.has("diff")) return run_diff(flags.positionals(), flags.has("json"));
  if (flags.positionals().size() != 1) fail("one model is expected: eyrie inspect MODEL [--json]");
  const Checkpoint files = Checkpoint::open(checkpoint::resolve_model_path(flags.positionals()[0]));
  json model = describe(files);
  if (flags.has("draft")) {
    model["draft_fit"] =
        draft_fit(files, Checkpoint::open(checkpoint::resolve_model_path(flags.string("draft"))));
  }
  if (flags.has("json")) {
    fmt::print("{}\n", model.dump(2));
  } else {
    print_table(model);
    if (model.contains("draft_fit") && !print_fit(model["draft_fit"])) return 1;
  }
  return 0;
}

}  // namespace eyrie::apps
