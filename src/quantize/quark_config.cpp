#include "quantize/quark_config.h"

#include <set>

#include "base/check.h"

namespace eyrie::quantize {
namespace {

using nlohmann::ordered_json;

// The release whose schema this follows.
constexpr const char* kQuarkVersion = "0.13";

// Fields both specs have, in Quark's order.
ordered_json spec(const char* dtype, bool is_dynamic, const char* qscheme, int ch_axis) {
  return {{"dtype", dtype},
          {"is_dynamic", is_dynamic},
          {"qscheme", qscheme},
          {"ch_axis", ch_axis},
          {"group_size", nullptr},
          {"block_size", nullptr},
          {"symmetric", nullptr},
          {"round_method", "half_even"},
          {"scale_type", "float"},
          {"scale_format", nullptr},
          {"scale_calculation_mode", nullptr},
          {"mx_element_dtype", nullptr},
          {"observer_cls", nullptr},
          {"is_scale_quant", false}};
}

ordered_json mxfp4_spec(bool is_dynamic) {
  ordered_json result = spec("fp4", is_dynamic, "per_group", -1);
  result["group_size"] = 32;
  result["scale_format"] = "e8m0";
  result["scale_calculation_mode"] = "even";
  result["observer_cls"] = "PerBlockMXObserver";
  return result;
}

// Axis 0 of a weight: a scale per output row. Axis 1 of activations, dynamic: a scale per token.
ordered_json fp8_spec(bool is_dynamic, int ch_axis) {
  ordered_json result = spec("fp8_e4m3", is_dynamic, "per_channel", ch_axis);
  result["symmetric"] = true;
  result["observer_cls"] = "PerChannelMinMaxObserver";
  return result;
}

std::string regex_of(const std::string& module) {
  std::string escaped;
  for (const char c : module) {
    if (c == '.') escaped += '\\';
    escaped += c;
  }
  return "re:.*" + escaped + ".*";
}

// NVFP4: the first level is the elements', the second quantizes the first's scales.
ordered_json nvfp4_specs(bool is_dynamic) {
  ordered_json elements = spec("fp4", is_dynamic, "per_group", -1);
  elements["group_size"] = 16;
  elements["scale_type"] = "float32";
  elements["observer_cls"] = "PerGroupMinMaxObserver";
  ordered_json scales = spec("fp8_e4m3", false, "per_tensor", -1);
  scales["ch_axis"] = nullptr;
  scales["scale_type"] = "float32";
  scales["observer_cls"] = "PerTensorMinMaxObserver";
  scales["is_scale_quant"] = true;
  return {elements, scales};
}

ordered_json weight_spec(const formats::WeightFormat& format) {
  if (&format == &formats::kMxfp4) return mxfp4_spec(false);
  if (&format == &formats::kNvfp4) return nvfp4_specs(false);
  CHECK(&format == &formats::kFp8, "{} is not Quark's", format.name);
  return fp8_spec(false, 0);
}

ordered_json input_spec(const formats::WeightFormat& format) {
  if (&format == &formats::kMxfp4) return mxfp4_spec(true);
  if (&format == &formats::kNvfp4) return nvfp4_specs(true);
  return fp8_spec(true, 1);
}

ordered_json layer_config(const ordered_json& weight, const ordered_json& input,
                          const ordered_json& output) {
  return {{"weight", weight},
          {"input_tensors", input},
          {"output_tensors", output},
          {"bias", nullptr},
          {"target_device", nullptr}};
}

// The layers whose outputs are cached. A target's are not quantized themselves; a draft's are.
std::vector<std::string> kv_layers(bool is_draft) {
  return is_draft ? std::vector<std::string>{"*k_proj", "*v_proj"}
                  : std::vector<std::string>{"*kv_a_proj_with_mqa", "*kv_b_proj"};
}

}  // namespace

std::set<std::string> excluded_names(const std::vector<std::string>& kept, bool is_draft,
                                     bool regex_for_drafts) {
  const std::string wrapper = "language_model.";
  std::set<std::string> list;
  for (const std::string& module : kept) {
    list.insert(is_draft && regex_for_drafts ? regex_of(module) : module);
    if (!is_draft && module.starts_with(wrapper)) list.insert(module.substr(wrapper.size()));
  }
  return list;
}

ordered_json quark_config(const ConfigRequest& request) {
  const ordered_json weight = weight_spec(*request.recipe->format);
  const ordered_json input = input_spec(*request.recipe->format);
  ordered_json layers = ordered_json::object(), group = ordered_json::array();
  if (request.kv_cache_fp8) {
    ordered_json output = spec("fp8_e4m3", false, "per_tensor", -1);
    output["ch_axis"] = nullptr;
    output["observer_cls"] = "PerTensorMinMaxObserver";
    for (const std::string& pattern : kv_layers(request.is_draft)) {
      layers[pattern] = request.is_draft ? layer_config(weight, input, output)
                                         : layer_config(nullptr, nullptr, output);
      group.push_back(pattern);
    }
  }
  return {{"quant_method", "quark"},
          {"version", kQuarkVersion},
          {"quant_mode", "eager_mode"},
          {"global_quant_config", layer_config(weight, input, nullptr)},
          {"exclude", excluded_names(request.kept, request.is_draft, true)},
          {"layer_quant_config", layers},
          {"layer_type_quant_config", ordered_json::object()},
          {"kv_cache_quant_config", ordered_json::object()},
          {"kv_cache_post_rope", false},
          {"softmax_quant_spec", nullptr},
          {"algo_config", nullptr},
          // vLLM reads the list and fails on null.
          {"export",
           {{"kv_cache_group", group},
            {"min_kv_scale", 0.0},
            {"pack_method", "reorder"},
            {"weight_format", "real_quantized"},
            {"weight_merge_groups", nullptr}}}};
}

}  // namespace eyrie::quantize
