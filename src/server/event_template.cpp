#include "server/event_template.h"

#include <algorithm>

#include "base/check.h"
#include "server/answer.h"

namespace eyrie::server {
namespace {

// The text as the inside of a JSON string.
void append_escaped(std::string_view text, std::string& out) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c >= ' ' && c < '\x7f' && c != '"' && c != '\\';  // char is signed or not: ASCII only
  });
  if (is_plain) {
    out += text;
    return;
  }
  const std::string quoted = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  out.append(quoted, 1, quoted.size() - 2);
}

}  // namespace

EventTemplate::EventTemplate(const Json& chunk) {
  std::string slot;
  append_escaped(kSlot, slot);
  std::string event;
  append_event(chunk, event);
  for (size_t at = 0;;) {
    const size_t end = event.find(slot, at);
    parts_.push_back(event.substr(at, end - at));
    if (end == std::string::npos) break;
    at = end + slot.size();
  }
  CHECK_GE(parts_.size(), 2U);
}

void EventTemplate::append(std::string_view text, std::string& events) const {
  events += parts_.front();
  for (size_t i = 1; i < parts_.size(); ++i) {
    append_escaped(text, events);
    events += parts_[i];
  }
}

}  // namespace eyrie::server
