// For the APIs whose requests are rewritten as chat completions: fields that keep their names, and
// a conversation whose messages are checked one by one, so that what is wrong is named by its place
// in the request that came.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "base/result.h"
#include "server/fields.h"

namespace eyrie::server {

// The fields of body with these names.
Json picked(const Json& body, std::initializer_list<const char*> names);

class Conversation {
 public:
  explicit Conversation(std::string param) : param_(std::move(param)) {}

  // A chat message made from what stands at `where` ("input[3]"). After a failure nothing counts.
  void add(Json message, const std::string& where);
  void fail(std::string message);
  const std::optional<Failure>& failure() const { return failure_; }
  Json take() { return std::move(messages_); }

 private:
  std::string param_;
  Json messages_ = Json::array();
  std::optional<Failure> failure_;
};

}  // namespace eyrie::server
