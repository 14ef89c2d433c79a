// quantization_config as each producer writes it, so that the engines made for it recognise the
// checkpoint.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "formats/recipe.h"

namespace eyrie::quantize {

struct ConfigRequest {
  const formats::Recipe* recipe;
  std::vector<std::string> kept;  // linear layers that were not quantized, as the files name them
  bool is_draft = false;
  bool kv_cache_fp8 = false;
  bool is_calibrated = false;  // layers have static scales of their activations
};

// Error when the producer's config has no place for what is asked (an FP8 KV cache).
nlohmann::ordered_json producer_config(const ConfigRequest& request);

// ModelOpt's second file (hf_quant_config.json); nothing for the others.
std::optional<nlohmann::ordered_json> companion_config(const ConfigRequest& request);

// Removes every quantization_config, at any depth: the old one describes other tensors.
void remove_quantization_config(nlohmann::ordered_json* config);

}  // namespace eyrie::quantize
