// quantization_config as AMD Quark's file-to-file export writes it, so that vLLM, SGLang and
// transformers recognise the checkpoint.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/weight.h"

namespace eyrie::quantize {

// `kept`: modules of linear layers that were not quantized, by their names in the checkpoint.
// Targets list them exactly, with and without the `language_model.` wrapper; drafts as `re:`
// patterns, because engines know a draft's modules under other prefixes.
nlohmann::ordered_json quark_config(const formats::WeightFormat& format,
                                    const std::vector<std::string>& kept, bool is_draft);

// Removes every quantization_config, at any depth: the old one describes other tensors.
void remove_quantization_config(nlohmann::ordered_json* config);

}  // namespace eyrie::quantize
