#include "checkpoint/json_file.h"

#include <set>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"

namespace eyrie::checkpoint {

nlohmann::json parse_json(std::string_view text, const std::string& where,
                          DuplicateKeys duplicates) {
  using nlohmann::json;
  std::vector<std::set<std::string>> open_objects;
  const auto watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      open_objects.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      open_objects.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) {
        fail("{} lists \"{}\" twice; every name may come once", where, key);
      }
    }
    return true;
  };
  try {
    if (duplicates == DuplicateKeys::kLastWins) return json::parse(text);
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::parse_error& error) {
    fail("{} is not valid JSON (at byte {} of {})", where, error.byte, text.size());
  } catch (const json::out_of_range& error) {  // a number beyond what a double holds
    fail("{} is not JSON that can be read: {}", where, error.what());
  }
}

nlohmann::json read_json_file(const std::string& path, DuplicateKeys duplicates) {
  return parse_json(read_text_file(path), path, duplicates);
}

}  // namespace eyrie::checkpoint
