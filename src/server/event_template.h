// An event of a stream that is the same each time but for one text: made once as JSON, then
// repeated by copying bytes. Nearly all events of nearly all streams are of this kind, and building
// a JSON value for each costs more than everything else outside the model together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/message.h"

namespace eyrie::server {

using chat::Json;

class EventTemplate {
 public:
  // The text's place in the JSON the template is made from, at one or more strings.
  static constexpr const char* kSlot = "\x1f\x1e\x1d";

  EventTemplate() = default;
  explicit EventTemplate(const Json& chunk);

  bool empty() const { return parts_.empty(); }
  // The very bytes append_event() makes of the JSON with `text` in every slot.
  void append(std::string_view text, std::string& events) const;

 private:
  std::vector<std::string> parts_;  // a slot between each two
};

}  // namespace eyrie::server
