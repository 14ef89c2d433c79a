// JSON from files a user brings: errors name the file and the place.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace eyrie::checkpoint {

// A key that comes twice in one object: an error (tensor tables, where one of the two would be
// lost silently) or the later one wins (config.json, as Python reads it).
enum class DuplicateKeys { kReject, kLastWins };

// `where` opens the sentence of the Error: "DIR/config.json".
nlohmann::json parse_json(std::string_view text, const std::string& where,
                          DuplicateKeys duplicates);
nlohmann::json read_json_file(const std::string& path, DuplicateKeys duplicates);

}  // namespace eyrie::checkpoint
