#include "server/rewrite.h"

namespace eyrie::server {

Json picked(const Json& body, std::initializer_list<const char*> names) {
  Json out = Json::object();
  for (const char* name : names) {
    if (const auto it = body.find(name); it != body.end()) out[name] = *it;
  }
  return out;
}

void Conversation::add(Json message, const std::string& where) {
  if (failure_) return;
  const auto checked = chat::messages_from_json(Json::array({message}));
  if (!checked.ok()) {
    constexpr std::string_view kPlace = "messages[0]";
    std::string text = checked.failure().message;
    if (text.rfind(kPlace, 0) == 0) text.replace(0, kPlace.size(), where);
    return fail(std::move(text));
  }
  messages_.push_back(std::move(message));
}

void Conversation::fail(std::string message) {
  if (!failure_) failure_ = Failure{FailureKind::kInvalidArgument, std::move(message), param_};
}

}  // namespace eyrie::server
