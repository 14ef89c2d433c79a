// eyrie inspect MODEL: what a checkpoint holds, as a table or JSON.
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/eyrie/commands.h"
#include "apps/eyrie/flag_parser.h"
#include "base/error.h"
#include "base/human.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/inventory.h"
#include "quantize/quantize.h"

namespace eyrie::apps {
namespace {

using checkpoint::Checkpoint;
using checkpoint::InventoryRow;
using nlohmann::json;

constexpr std::array kFlags = {
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

// Exclusion patterns with the linear layers each one covers: 0 tells a misspelt one.
json exclusions_of(const Checkpoint& files) {
  json result = json::array();
  const std::vector<std::string> names = files.names();
  for (const std::string& pattern : files.quant_config().exclude.patterns()) {
    const checkpoint::ModuleList list({pattern});
    int matches = 0;
    for (const std::string& name : names) {
      if (!checkpoint::is_linear_weight_name(name)) continue;
      matches += list.matches(name.substr(0, name.rfind('.')));
    }
    result.push_back({{"pattern", pattern}, {"layers", matches}});
  }
  return result;
}

json companions_of(const std::string& folder) {
  json found = json::array();
  for (const char* name : {"tiktoken.model", "tokenizer.json", "tokenizer_config.json",
                           "chat_template.jinja", "generation_config.json"}) {
    if (std::filesystem::exists(folder + "/" + name)) found.push_back(name);
  }
  return found;
}

json describe(const Checkpoint& files) {
  const json& config = files.config();
  const bool is_draft = quantize::is_draft(config);
  const std::vector<InventoryRow> rows = checkpoint::inventory(files);
  json groups = json::array();
  for (const InventoryRow& row : rows) {
    groups.push_back({{"group", row.group},
                      {"format", row.format},
                      {"tensors", row.tensors},
                      {"parameters", row.parameters},
                      {"bytes", row.bytes}});
  }
  json quantization = nullptr;
  if (!files.quant_config().method.empty()) {
    quantization = {{"method", files.quant_config().method},
                    {"scheme", files.quant_config().scheme},
                    {"exclude", exclusions_of(files)}};
  }
  return {{"path", files.path()},
          {"architectures", config.value("architectures", json::array())},
          {"role", is_draft ? "draft" : "target"},
          {"shards", files.files().size()},
          {"fit", fit_of(config, is_draft)},
          {"quantization", quantization},
          {"companions", companions_of(files.path())},
          {"total", totals_of(rows)},
          {"groups", groups}};
}

void print_exclusions(const json& quantization) {
  const json& exclude = quantization["exclude"];
  int idle = 0;
  for (const json& entry : exclude) idle += entry["layers"] == 0;
  fmt::print("quantization  {}, {}; {} exclusions", quantization["method"].get<std::string>(),
             quantization["scheme"].get<std::string>(), exclude.size());
  if (idle > 0) fmt::print(", {} of them match nothing here", idle);
  fmt::print("\n");
}

void print_table(const json& model) {
  const auto total_bytes = model["total"]["bytes"].get<double>();
  std::vector<std::vector<std::string>> rows = {
      {"tensors", "format", "count", "parameters", "size", "share"}};
  const auto add = [&](const std::string& name, const std::string& format, const json& row) {
    const auto bytes = row["bytes"].get<double>();
    rows.push_back({name, format, fmt::format("{}", row["tensors"].get<int64_t>()),
                    fmt::format("{}", row["parameters"].get<int64_t>()), human_bytes(bytes),
                    fmt::format("{:.1f} %", total_bytes > 0 ? 100 * bytes / total_bytes : 0)});
  };
  for (const json& group : model["groups"]) add(group["group"], group["format"], group);
  add("total", "", model["total"]);

  fmt::print("{}\n", model["path"].get<std::string>());
  fmt::print("architecture  {} ({})\n", model["architectures"].dump(),
             model["role"].get<std::string>());
  fmt::print("shape         {}\n", model["fit"].dump());
  if (model["quantization"].is_object()) print_exclusions(model["quantization"]);
  fmt::print("beside it     {}\n\n{}", model["companions"].dump(), format_table(rows));
}

}  // namespace

int run_inspect(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  const ParsedFlags flags = parse_flags(kFlags, args);
  if (flags.has("help")) {
    fmt::print("eyrie inspect MODEL [--json]\n\n{}\n", flags_help(kFlags));
    return 0;
  }
  if (flags.positionals().size() != 1) fail("one model is expected: eyrie inspect MODEL [--json]");
  const Checkpoint files = Checkpoint::open(checkpoint::resolve_model_path(flags.positionals()[0]));
  const json model = describe(files);
  if (flags.has("json")) {
    fmt::print("{}\n", model.dump(2));
  } else {
    print_table(model);
  }
  return 0;
}

}  // namespace eyrie::apps
