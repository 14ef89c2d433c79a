#include "checkpoint/quant_config.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "checkpoint/json_file.h"

namespace eyrie::checkpoint {
namespace {

using formats::WeightFormat;
using nlohmann::json;

std::string string_at(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

json object_at(const json& object, const char* key) {
  if (!object.is_object()) return json::object();
  const auto it = object.find(key);
  return it != object.end() && it->is_object() ? *it : json::object();
}

std::vector<std::string> strings_at(const json& object, const char* key) {
  std::vector<std::string> strings;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return strings;
  for (const json& item : *it) {
    if (item.is_string()) strings.push_back(item.get<std::string>());
  }
  return strings;
}

int64_t int_at(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
}

// One spec of Quark → our format. Lists are a second level over the first: NVFP4's global scale is
// read, FP8 under INT4 (W4A8) is not.
const WeightFormat* quark_format(const json& weight) {
  if (weight.is_array()) {
    const bool nvfp4 = weight.size() == 2 && weight[0].is_object() && weight[1].is_object() &&
                       string_at(weight[0], "dtype") == "fp4" &&
                       int_at(weight[0], "group_size") == 16 &&
                       string_at(weight[1], "dtype") == "fp8_e4m3";
    return nvfp4 ? &formats::kNvfp4 : nullptr;
  }
  if (!weight.is_object()) return nullptr;
  const std::string dtype = string_at(weight, "dtype");
  const std::string qscheme = string_at(weight, "qscheme");
  if (dtype == "fp4" && qscheme == "per_group" && int_at(weight, "group_size") == 32 &&
      string_at(weight, "scale_format") == "e8m0") {
    return &formats::kMxfp4;
  }
  if (dtype != "fp8_e4m3") return nullptr;
  if (qscheme == "per_block") return &formats::kFp8Block;
  return qscheme == "per_channel" || qscheme == "per_tensor" ? &formats::kFp8 : nullptr;
}

std::string quark_scheme(const json& weight) {
  if (weight.is_array()) {
    std::string text;
    for (const json& level : weight) {
      if (!level.is_object()) continue;
      text += (text.empty() ? "" : " over ") + string_at(level, "dtype") + " " +
              string_at(level, "qscheme");
    }
    return text;
  }
  if (!weight.is_object() || weight.empty()) return "unknown";
  return string_at(weight, "dtype") + " " + string_at(weight, "qscheme");
}

void read_quark(const json& config, QuantConfig* result) {
  const json global = object_at(config, "global_quant_config");
  const json weight = global.contains("weight") ? global["weight"] : json::object();
  result->scheme = quark_scheme(weight);
  result->format = quark_format(weight);
  std::vector<std::string> special;
  const json layers = object_at(config, "layer_quant_config");
  for (const auto& item : layers.items()) special.push_back(item.key());
  result->special = ModuleList(special);
  result->kv_cache_fp8 = !object_at(config, "kv_cache_quant_config").empty() ||
                         !strings_at(object_at(config, "export"), "kv_cache_group").empty();
}

// "float 4 bits group 16" of ModelOpt and compressed-tensors.
std::string group_scheme(const json& weights) {
  std::string text =
      fmt::format("{} {} bits", string_at(weights, "type"), int_at(weights, "num_bits"));
  if (!string_at(weights, "strategy").empty()) text += " " + string_at(weights, "strategy");
  if (int_at(weights, "group_size") > 0) text += fmt::format(" {}", int_at(weights, "group_size"));
  return text;
}

bool is_fp8_kv(const json& scheme) {
  return scheme.is_object() && int_at(scheme, "num_bits") == 8 &&
         string_at(scheme, "type") == "float";
}

void read_modelopt(const json& fields, QuantConfig* result) {
  constexpr std::array<std::pair<std::string_view, const WeightFormat*>, 5> kAlgorithms = {{
      {"NVFP4", &formats::kNvfp4},
      {"W4A16_NVFP4", &formats::kNvfp4},
      {"FP8", &formats::kFp8},
      {"FP8_PER_CHANNEL_PER_TOKEN", &formats::kFp8},
      {"FP8_PB_WO", &formats::kFp8Block},
  }};
  const std::string algorithm = string_at(fields, "quant_algo");
  for (const auto& [name, format] : kAlgorithms) {
    if (algorithm == name) result->format = format;
  }
  if (!algorithm.empty()) result->scheme = algorithm;
  result->kv_cache_fp8 = string_at(fields, "kv_cache_quant_algo") == "FP8" ||
                         is_fp8_kv(object_at(fields, "kv_cache_scheme"));
}

const WeightFormat* compressed_tensors_format(const json& weights, const std::string& format) {
  const int64_t bits = int_at(weights, "num_bits"), group = int_at(weights, "group_size");
  const std::string strategy = string_at(weights, "strategy");
  const bool is_float = string_at(weights, "type") == "float";
  if (!is_float && bits == 4 && strategy == "group" && group == 32) return &formats::kInt4G32;
  if (is_float && bits == 4 && group == 16) return &formats::kNvfp4;
  if (is_float && bits == 4 && group == 32 && format != "nvfp4-pack-quantized") {
    return &formats::kMxfp4;
  }
  if (!is_float || bits != 8) return nullptr;
  if (strategy == "block") return &formats::kFp8Block;
  return strategy == "channel" || strategy == "tensor" ? &formats::kFp8 : nullptr;
}

// Several groups mean several formats: then nothing is claimed and the tensors speak alone.
void read_compressed_tensors(const json& fields, QuantConfig* result) {
  const json groups = object_at(fields, "config_groups");
  if (groups.size() == 1) {
    const json weights = object_at(groups.begin().value(), "weights");
    result->format = compressed_tensors_format(weights, string_at(fields, "format"));
    result->scheme = string_at(fields, "format") + " " + group_scheme(weights);
  } else if (groups.size() > 1) {
    result->scheme = fmt::format("{}, {} groups", string_at(fields, "format"), groups.size());
  }
  result->kv_cache_fp8 = is_fp8_kv(object_at(fields, "kv_cache_scheme"));
}

void read_fp8(const json& fields, const std::string& where, QuantConfig* result) {
  result->lists_exclusions = fields.contains("modules_to_not_convert");
  const auto block = fields.find("weight_block_size");
  if (block == fields.end() || block->is_null()) {
    result->format = &formats::kFp8;
    result->scheme = "e4m3";
    return;
  }
  if (*block != json::array({128, 128})) {
    fail("{}: weight_block_size is {}; read are blocks of [128, 128]", where, block->dump());
  }
  result->format = &formats::kFp8Block;
  result->scheme = "e4m3 in 128x128 blocks";
}

// `where` names the file in errors.
QuantConfig read(const json& quantization, const std::string& where) {
  QuantConfig result;
  if (!quantization.is_object()) fail("quantization_config in {} must be an object", where);
  result.method = string_at(quantization, "quant_method");
  if (result.method.empty()) result.method = "unnamed";
  result.scheme = "unknown";
  // Older Quark files nest the same fields one level down.
  const json nested = object_at(quantization, "quant_config");
  const json& fields = nested.empty() ? quantization : nested;
  if (result.method == "quark") {
    read_quark(fields, &result);
  } else if (result.method == "modelopt" || result.method == "modelopt_fp4") {
    read_modelopt(fields, &result);
  } else if (result.method == "compressed-tensors") {
    read_compressed_tensors(fields, &result);
  } else if (result.method == "fp8") {
    read_fp8(fields, where, &result);
  } else if (result.method != "unnamed") {
    fail("{}: quant_method is \"{}\"; read are quark, modelopt, compressed-tensors and fp8", where,
         result.method);
  }
  std::vector<std::string> exclude;
  for (const char* key : {"exclude", "ignore", "exclude_modules", "modules_to_not_convert"}) {
    const std::vector<std::string> more = strings_at(fields, key);
    exclude.insert(exclude.end(), more.begin(), more.end());
  }
  result.exclude = ModuleList(exclude);
  return result;
}

}  // namespace

QuantConfig QuantConfig::from_config(const json& config, const std::string& folder) {
  const auto present = [](const json& object) {
    const auto it = object.find("quantization_config");
    return it != object.end() && !it->is_null();
  };
  const std::string where = folder.empty() ? "config.json" : folder + "/config.json";
  if (present(config)) return read(config["quantization_config"], where);
  const json text_config = object_at(config, "text_config");
  if (present(text_config)) {
    QuantConfig result = read(text_config["quantization_config"], where);
    result.text_only = true;
    return result;
  }
  // ModelOpt's older files keep it beside config.json.
  const std::string beside = folder + "/hf_quant_config.json";
  if (folder.empty() || !std::filesystem::exists(beside)) return {};
  json fields = object_at(read_json_file(beside, DuplicateKeys::kLastWins), "quantization");
  fields["quant_method"] = "modelopt";
  return read(fields, beside);
}

const WeightFormat* QuantConfig::claimed(std::string_view module) const {
  if (format == nullptr || exclude.matches(module) || special.matches(module)) return nullptr;
  const bool of_vision = module.starts_with("vision_tower.") || module.starts_with("mm_projector.");
  return text_only && of_vision ? nullptr : format;
}

std::string_view module_of(std::string_view tensor_name) {
  for (const std::string_view suffix : {".weight", ".weight_packed"}) {
    if (tensor_name.ends_with(suffix)) {
      return tensor_name.substr(0, tensor_name.size() - suffix.size());
    }
  }
  return {};
}

bool is_linear_weight_name(std::string_view tensor_name) {
  const std::string_view module = module_of(tensor_name);
  if (module.empty()) return false;
  return !module.ends_with("norm") && module.find("embed") == std::string_view::npos;
}

}  // namespace eyrie::checkpoint
