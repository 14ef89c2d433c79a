#include "quantize/producer_config.h"

#include "base/error.h"
#include "quantize/quark_config.h"

namespace eyrie::quantize {
namespace {

using formats::WeightFormat;
using nlohmann::ordered_json;

// The release whose schema this follows.
constexpr const char* kModelOptVersion = "0.47.0";
constexpr const char* kCompressedTensorsVersion = "0.20.0";

const ordered_json kFp8Kv = {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};

ordered_json modelopt_config(const ConfigRequest& request) {
  const ordered_json fp4 = {
      {"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
  ordered_json config = {
      {"quant_method", "modelopt"},
      {"quant_algo", "NVFP4"},
      {"producer", {{"name", "modelopt"}, {"version", kModelOptVersion}}},
      {"config_groups",
       {{"group_0", {{"targets", {"Linear"}}, {"weights", fp4}, {"input_activations", fp4}}}}},
      {"ignore", excluded_names(request.kept, request.is_draft, false)}};
  if (request.kv_cache_fp8) config["kv_cache_scheme"] = kFp8Kv;
  return config;
}

// NVFP4's activations have two levels: blocks are scaled at run time ("local"), the global scale is
// stored.
ordered_json compressed_args(const WeightFormat& format, bool is_weight) {
  const bool is_int4 = &format == &formats::kInt4G32, is_fp8 = &format == &formats::kFp8;
  const bool is_nvfp4 = &format == &formats::kNvfp4;
  ordered_json args = {{"num_bits", is_fp8 ? 8 : 4},
                       {"type", is_int4 ? "int" : "float"},
                       {"symmetric", true},
                       {"strategy", is_fp8     ? (is_weight ? "channel" : "token")
                                    : is_nvfp4 ? "tensor_group"
                                               : "group"},
                       {"group_size", nullptr},
                       {"dynamic", false},
                       {"observer", "minmax"},
                       {"observer_kwargs", ordered_json::object()},
                       {"actorder", nullptr},
                       {"block_structure", nullptr}};
  if (!is_fp8) args["group_size"] = format.block_in;
  if (!is_weight) {
    args["dynamic"] = is_nvfp4 ? ordered_json("local") : ordered_json(true);
    args["observer"] = is_nvfp4 ? ordered_json("static_minmax") : ordered_json(nullptr);
  }
  return args;
}

ordered_json compressed_tensors_config(const ConfigRequest& request) {
  const WeightFormat& format = *request.recipe->format;
  const bool is_int4 = &format == &formats::kInt4G32;
  // Engines that are told NVFP4 activations want a static input_global_scale of every layer;
  // without one this is the NVFP4A16 of llm-compressor.
  const bool weight_only = is_int4 || (&format == &formats::kNvfp4 && !request.is_calibrated);
  const char* name = is_int4                       ? "pack-quantized"
                     : &format == &formats::kNvfp4 ? "nvfp4-pack-quantized"
                     : &format == &formats::kMxfp4 ? "mxfp4-pack-quantized"
                                                   : "float-quantized";
  ordered_json activations = nullptr;
  if (!weight_only) activations = compressed_args(format, false);
  return {{"quant_method", "compressed-tensors"},
          {"format", name},
          {"quantization_status", "compressed"},
          {"version", kCompressedTensorsVersion},
          {"global_compression_ratio", nullptr},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights", compressed_args(format, true)},
              {"input_activations", activations},
              {"output_activations", nullptr},
              {"format", name}}}}},
          {"ignore", excluded_names(request.kept, request.is_draft, true)},
          {"kv_cache_scheme", request.kv_cache_fp8 ? kFp8Kv : ordered_json(nullptr)}};
}

ordered_json fp8_config(const ConfigRequest& request) {
  if (request.kv_cache_fp8) {
    fail(
        "--kv-cache-scheme fp8 has no place in the config of fp8-block checkpoints; start the "
        "engine with --kv-cache-dtype fp8 instead");
  }
  return {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {128, 128}},
          {"modules_to_not_convert", excluded_names(request.kept, request.is_draft, false)}};
}

}  // namespace

ordered_json producer_config(const ConfigRequest& request) {
  const std::string_view producer = request.recipe->producer;
  if (producer == "modelopt") return modelopt_config(request);
  if (producer == "compressed-tensors") return compressed_tensors_config(request);
  if (request.recipe->format == &formats::kFp8Block) return fp8_config(request);
  return quark_config(request);
}

std::optional<ordered_json> companion_config(const ConfigRequest& request) {
  if (request.recipe->producer != "modelopt") return std::nullopt;
  return ordered_json{
      {"producer", {{"name", "modelopt"}, {"version", kModelOptVersion}}},
      {"quantization",
       {{"quant_algo", "NVFP4"},
        {"kv_cache_quant_algo", request.kv_cache_fp8 ? ordered_json("FP8") : ordered_json(nullptr)},
        {"group_size", 16},
        {"exclude_modules", excluded_names(request.kept, request.is_draft, false)}}}};
}

void remove_quantization_config(ordered_json* config) {
  if (!config->is_object()) return;
  config->erase("quantization_config");
  for (auto& item : config->items()) remove_quantization_config(&item.value());
}

}  // namespace eyrie::quantize
