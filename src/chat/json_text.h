// JSON as Python's json.dumps and repr write it: prompts are built by Python where models are
// trained, so separators, floats and escapes must be the same bytes.
#pragma once

#include <string>
#include <string_view>

#include "chat/message.h"

namespace eyrie::chat {

struct JsonStyle {
  std::string_view item_separator = ", ";
  std::string_view key_separator = ": ";
};
inline constexpr JsonStyle kCompactJson{",", ":"};

// json.dumps(value, ensure_ascii=False).
std::string dump_json(const Json& value, JsonStyle style = {});

// str(value) of the Python value: True, None, 1e-05, text without quotes, ['a', 1].
std::string python_str(const Json& value);

// repr of a float: the shortest digits that give it back, an exponent below 1e-4 and from 1e16 on.
std::string python_float(double value);

// Whether arrays and objects nest at most max_depth deep. What nests deeper is refused at the door,
// since everything that walks a value here is recursive.
bool nests_at_most(const Json& value, int max_depth);
inline constexpr int kMaxJsonDepth = 128;

}  // namespace eyrie::chat
