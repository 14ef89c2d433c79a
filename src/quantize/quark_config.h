// quantization_config as AMD Quark's file-to-file export writes it, so that vLLM, SGLang and
// transformers recognise the checkpoint.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "quantize/producer_config.h"

namespace eyrie::quantize {

nlohmann::ordered_json quark_config(const ConfigRequest& request);

// `kept` as engines look it up: targets' layers exactly, with and without the `language_model.`
// wrapper; drafts' as `re:` patterns where the producer knows them, because engines know a draft's
// modules under other prefixes.
std::set<std::string> excluded_names(const std::vector<std::string>& kept, bool is_draft,
                                     bool regex_for_drafts);

}  // namespace eyrie::quantize
