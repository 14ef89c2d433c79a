#include "server/fields.h"

#include <fmt/format.h>

#include <cmath>

namespace eyrie::server {
namespace {

// Deeper documents are no requests, and what walks them recursively (dump, schema printing) must
// not be led to the end of the stack.
constexpr int kMaxDepth = 100;

bool is_too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

std::string range(double min, double max) {
  if (max >= std::numeric_limits<double>::max()) return fmt::format("at least {}", min);
  return fmt::format("between {} and {}", min, max);
}

}  // namespace

std::string shown(const Json& value) {
  constexpr size_t kMost = 80;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "…";
  return text;
}

const Json* Fields::find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void Fields::fail(const char* name, const std::string& message) {
  if (!failure_) failure_ = Failure{FailureKind::kInvalidArgument, message, prefix_ + name};
}

void Fields::wrong_type(const char* name, const Json& value, const char* accepted) {
  fail(name, fmt::format("{}{} must be {}, got {}", prefix_, name, accepted, shown(value)));
}

std::optional<bool> Fields::boolean(const char* name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  wrong_type(name, *value, "true or false");
  return std::nullopt;
}

std::optional<int64_t> Fields::integer(const char* name, int64_t min, int64_t max) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  int64_t number = 0;
  if (value->is_number_unsigned() &&
      value->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    wrong_type(name, *value, "a 64-bit integer");
    return std::nullopt;
  }
  if (value->is_number_integer()) {
    number = value->get<int64_t>();
  } else if (value->is_number_float() && std::trunc(value->get<double>()) == value->get<double>() &&
             std::abs(value->get<double>()) < 0x1p53) {
    number = static_cast<int64_t>(value->get<double>());
  } else {
    wrong_type(name, *value, "an integer");
    return std::nullopt;
  }
  if (number < min || number > max) {
    const bool open = max == std::numeric_limits<int64_t>::max();
    fail(name, open ? fmt::format("{}{} must be at least {}, got {}", prefix_, name, min, number)
                    : fmt::format("{}{} must be between {} and {}, got {}", prefix_, name, min, max,
                                  number));
    return std::nullopt;
  }
  return number;
}

std::optional<double> Fields::number(const char* name, double min, double max) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    wrong_type(name, *value, "a number");
    return std::nullopt;
  }
  const double number = value->get<double>();
  if (!(number >= min && number <= max)) {
    fail(name, fmt::format("{}{} must be {}, got {}", prefix_, name, range(min, max), number));
    return std::nullopt;
  }
  return number;
}

std::optional<std::string> Fields::string(const char* name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  wrong_type(name, *value, "a string");
  return std::nullopt;
}

std::vector<std::string> Fields::strings(const char* name) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  std::vector<std::string> strings;
  if (value->is_array()) {
    for (const Json& item : *value) {
      if (!item.is_string()) break;
      strings.push_back(item.get<std::string>());
    }
    if (strings.size() == value->size()) return strings;
  }
  wrong_type(name, *value, "a string or a list of strings");
  return {};
}

std::vector<int32_t> Fields::token_ids(const char* name, int32_t vocab_size) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_array()) {
    wrong_type(name, *value, "a list of token ids");
    return {};
  }
  std::vector<int32_t> ids;
  ids.reserve(value->size());
  for (const Json& item : *value) {
    const bool is_id = item.is_number_integer() && item.get<int64_t>() >= 0 &&
                       item.get<int64_t>() < int64_t{vocab_size};
    if (!is_id) {
      fail(name, fmt::format("{}{} holds {}: token ids are integers from 0 to {}", prefix_, name,
                             shown(item), vocab_size - 1));
      return {};
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

const Json* Fields::object(const char* name) {
  const Json* value = find(name);
  if (value == nullptr || value->is_object()) return value;
  wrong_type(name, *value, "an object");
  return nullptr;
}

Result<Json> parse_body(std::string_view body) {
  if (is_too_deep(body)) {
    return Failure{FailureKind::kInvalidArgument,
                   fmt::format("the JSON body is nested more than {} levels deep", kMaxDepth), ""};
  }
  try {
    Json json = Json::parse(body);
    if (json.is_object()) return json;
    return Failure{FailureKind::kInvalidArgument,
                   fmt::format("the body must be a JSON object, got {}", shown(json)), ""};
  } catch (const Json::exception& error) {
    // The library's text names the place: "parse error at line 1, column 11: …".
    const std::string what = error.what();
    const auto start = what.find("] ");
    return Failure{FailureKind::kInvalidArgument,
                   "the body is not valid JSON: " +
                       (start == std::string::npos ? what : what.substr(start + 2)),
                   ""};
  }
}

}  // namespace eyrie::server
