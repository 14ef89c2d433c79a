// What `eyrie inspect` says of a checkpoint's text side: its tokens and its chat template.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace eyrie::apps {

// {"tokens": "tiktoken.model, 4096 tokens and 256 control tokens", "template": where it comes from}
// or what is wrong with them, in a sentence; null for a folder without either (a draft).
nlohmann::json text_side(const std::string& folder);

}  // namespace eyrie::apps
