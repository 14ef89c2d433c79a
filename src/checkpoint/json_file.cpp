#include "checkpoint/json_file.h"

#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"

namespace eyrie::checkpoint {
namespace {

using nlohmann::json;

// Watches for a key that comes twice. On its own pass: json::parse() with a callback looks through
// all that the parent holds at the end of every object, seconds for the table of a large shard.
class KeyWatch : public json::json_sax_t {
 public:
  explicit KeyWatch(const std::string& where) : where_(where) {}

  bool start_object(std::size_t) override {
    open_objects_.emplace_back();
    return true;
  }
  bool key(string_t& name) override {
    if (!open_objects_.back().insert(name).second) {
      fail("{} lists \"{}\" twice; every name may come once", where_, name);
    }
    return true;
  }
  bool end_object() override {
    open_objects_.pop_back();
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    return false;  // json::parse() has told it
  }

 private:
  const std::string& where_;
  std::vector<std::unordered_set<std::string>> open_objects_;
};

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where,
                          DuplicateKeys duplicates) {
  try {
    json parsed = json::parse(text);
    if (duplicates == DuplicateKeys::kReject) {
      KeyWatch watch(where);
      json::sax_parse(text, &watch);
    }
    return parsed;
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
