// Reads typed fields of a JSON object. null is absent; unknown fields are never looked at. The
// first thing wrong is kept as a Failure that names the field, what came and what is accepted;
// readers go on returning "absent" after it, so a parser reads straight through and checks once.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "chat/message.h"

namespace eyrie::server {

using chat::Json;

// A value as an error message shows it: JSON, shortened.
std::string shown(const Json& value);

class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  const Json* find(const char* name) const;  // nullptr when absent or null
  std::optional<bool> boolean(const char* name);
  std::optional<int64_t> integer(const char* name, int64_t min, int64_t max);
  std::optional<double> number(const char* name, double min, double max);
  std::optional<std::string> string(const char* name);
  // A string, or a list of strings.
  std::vector<std::string> strings(const char* name);
  std::vector<int32_t> token_ids(const char* name, int32_t vocab_size);
  // An object to read further; nullptr when absent.
  const Json* object(const char* name);

  void fail(const char* name, const std::string& message);
  bool failed() const { return failure_.has_value(); }
  const Failure& failure() const { return *failure_; }

 private:
  void wrong_type(const char* name, const Json& value, const char* accepted);

  const Json& object_;
  std::string prefix_;  // "stream_options." before the names in messages
  std::optional<Failure> failure_;
};

// The body of a POST: a JSON object, not nested beyond reason.
Result<Json> parse_body(std::string_view body);

}  // namespace eyrie::server
