#include "quantize/quark_config.h"

#include <set>

#include "base/check.h"

namespace eyrie::quantize {
namespace {

using nlohmann::ordered_json;

// The release whose schema this follows.
constexpr const char* kQuarkVersion = "0.11";

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

std::set<std::string> exclude_list(const std::vector<std::string>& kept, bool is_draft) {
  const std::string wrapper = "language_model.";
  std::set<std::string> list;
  for (const std::string& module : kept) {
    list.insert(is_draft ? regex_of(module) : module);
    if (!is_draft && module.starts_with(wrapper)) list.insert(module.substr(wrapper.size()));
  }
  return list;
}

}  // namespace

ordered_json quark_config(const formats::WeightFormat& format, const std::vector<std::string>& kept,
                          bool is_draft) {
  const bool is_mxfp4 = &format == &formats::kMxfp4;
  CHECK(is_mxfp4 || &format == &formats::kFp8, "{} is not made", format.name);
  ordered_json global = {{"weight", is_mxfp4 ? mxfp4_spec(false) : fp8_spec(false, 0)},
                         {"input_tensors", is_mxfp4 ? mxfp4_spec(true) : fp8_spec(true, 1)},
                         {"output_tensors", nullptr},
                         {"bias", nullptr},
                         {"target_device", nullptr}};
  return {{"quant_method", "quark"},
          {"version", kQuarkVersion},
          {"quant_mode", "eager_mode"},
          {"global_quant_config", std::move(global)},
          {"exclude", exclude_list(kept, is_draft)},
          {"layer_quant_config", ordered_json::object()},
          {"layer_type_quant_config", ordered_json::object()},
          {"kv_cache_quant_config", ordered_json::object()},
          {"kv_cache_post_rope", false},
          {"softmax_quant_spec", nullptr},
          {"algo_config", nullptr},
          // vLLM reads the list and fails on null.
          {"export",
           {{"kv_cache_group", ordered_json::array()},
            {"min_kv_scale", 0.0},
            {"pack_method", "reorder"},
            {"weight_format", "real_quantized"},
            {"weight_merge_groups", nullptr}}}};
}

void remove_quantization_config(ordered_json* config) {
  if (!config->is_object()) return;
  config->erase("quantization_config");
  for (auto& item : config->items()) remove_quantization_config(&item.value());
}

}  // namespace eyrie::quantize
