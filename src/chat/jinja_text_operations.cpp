// What filters and methods do to text, keeping track of what came from outside.
#include <algorithm>

#include "chat/jinja_interpreter.h"

namespace eyrie::chat::jinja {

Text strip_text(const Text& text, bool left, bool right, const Value* characters, Budget& budget) {
  Range kept;
  budget.look(text.size());
  if (characters == nullptr) {
    kept = stripped(text.bytes, left, right, nullptr);
  } else {
    if (!characters->is_string()) throw TemplateError("strip arg must be None or str");
    const std::string_view set = characters->text().bytes;
    budget.step(static_cast<int64_t>(set.size()));
    kept = stripped(text.bytes, left, right, &set);
  }
  if (kept == Range{0, text.size()}) {
    budget.make(text.size());
    return text;
  }
  return slice(text, kept.begin, kept.end, budget);
}

Text replace_text(const Text& text, const Text& old, const Text& with, int64_t count,
                  Budget& budget) {
  budget.look(text.size());
  TextBuilder out(budget);
  size_t begin = 0;
  if (old.size() == 0) {  // between all characters
    size_t at = 0;
    for (; count != 0; --count) {
      out.add(with);
      begin = at;
      if (at == text.size()) break;
      next_character(text.bytes, at);
      out.add(text, begin, at);
      begin = at;
    }
  } else {
    for (size_t found = 0; count != 0; --count) {
      found = text.bytes.find(old.bytes, begin);
      if (found == std::string::npos) break;
      out.add(text, begin, found);
      out.add(with);
      begin = found + old.size();
    }
  }
  out.add(text, begin, text.size());
  return out.take();
}

Text map_text(const Text& text, std::string (*convert)(std::string_view), Budget& budget) {
  budget.look(text.size());
  const std::string converted = convert(text.bytes);
  budget.make(converted.size());
  if (is_ascii(text.bytes)) return {converted, text.outside};  // a character stays where it is
  TextBuilder out(budget);
  out.mixed(converted, text.has_outside());
  return out.take();
}

std::string capitalized(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const bool first = at == 0;
    const char32_t c = next_character(text, at);
    first ? append_upper(c, out) : append_lower(c, out);
  }
  return out;
}

std::vector<Range> line_ranges(std::string_view text, bool keep_ends) {
  std::vector<Range> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = next_character(text, at);
    if (!is_line_break(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back({begin, keep_ends ? at : end});
    begin = at;
  }
  if (begin < text.size()) lines.push_back({begin, text.size()});
  return lines;
}

bool has_case(std::string_view text, bool upper) {
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    if (upper ? is_lower(c) : is_upper(c)) return false;
    any |= upper ? is_upper(c) : is_lower(c);
  }
  return any;
}

}  // namespace eyrie::chat::jinja
