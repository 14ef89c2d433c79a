// The two halves of the filter table.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "chat/jinja_interpreter.h"

namespace eyrie::chat::jinja {

const std::vector<std::pair<std::string_view, FilterFn>>& text_filters();
const std::vector<std::pair<std::string_view, FilterFn>>& sequence_filters();

}  // namespace eyrie::chat::jinja
