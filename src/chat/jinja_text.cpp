#include "chat/jinja_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "tokenizer/utf8.h"

namespace eyrie::chat::jinja {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

}  // namespace

void Budget::out_of(const char* what) {
  throw TemplateError(fmt::format("the template needs more {} than a rendering may use", what));
}

Text Text::from_outside(std::string_view text) {
  if (text.empty()) return {};
  return {std::string(text), {{0, text.size()}}};
}

void TextBuilder::append(std::string_view text, bool outside) {
  if (text.empty()) return;
  budget_.check_size(text_.size() + text.size());
  budget_.make(text.size());
  const size_t begin = text_.size();
  text_.bytes += text;
  if (!outside) return;
  if (!text_.outside.empty() && text_.outside.back().end == begin) {
    text_.outside.back().end = text_.size();
  } else {
    text_.outside.push_back({begin, text_.size()});
  }
}

void TextBuilder::add(const Text& text, size_t begin, size_t end) {
  const std::string_view bytes = text.bytes;
  size_t at = begin;
  auto range = std::lower_bound(text.outside.begin(), text.outside.end(), begin,
                                [](const Range& r, size_t offset) { return r.end <= offset; });
  for (; range != text.outside.end() && range->begin < end; ++range) {
    const size_t first = std::max(range->begin, begin);
    const size_t last = std::min(range->end, end);
    own(bytes.substr(at, first - at));
    from_outside(bytes.substr(first, last - first));
    at = last;
  }
  own(bytes.substr(at, end - at));
}

Text slice(const Text& text, size_t begin, size_t end, Budget& budget) {
  TextBuilder out(budget);
  out.add(text, begin, end);
  return out.take();
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

char32_t next_character(std::string_view text, size_t& offset) {
  const Utf8Step step = utf8_step(text.substr(offset));
  offset += static_cast<size_t>(std::max(step.size, 1));
  return step.kind == Utf8Step::Kind::kCharacter ? step.code_point : 0xFFFD;
}

char32_t previous_character(std::string_view text, size_t& offset) {
  do {
    --offset;
  } while (offset > 0 && (static_cast<unsigned char>(text[offset]) & 0xC0) == 0x80);
  size_t at = offset;
  return next_character(text, at);
}

size_t offset_of_character(std::string_view text, int64_t index) {
  if (is_ascii(text)) return std::min(static_cast<size_t>(index), text.size());
  size_t offset = 0;
  for (; index > 0 && offset < text.size(); --index) next_character(text, offset);
  return offset;
}

int64_t num_characters(std::string_view text) {
  return is_ascii(text) ? static_cast<int64_t>(text.size()) : utf8_length(text);
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LL; }
bool is_numeric(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

bool is_alphabetic(char32_t c) {
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL ||
         kind == UTF8PROC_CATEGORY_LT || kind == UTF8PROC_CATEGORY_LM ||
         kind == UTF8PROC_CATEGORY_LO;
}

void append_upper(char32_t c, std::string& out) {
  if (c == 0xDF) {  // ß, the one common letter whose capital is two
    out += "SS";
    return;
  }
  append_utf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), out);
}

void append_lower(char32_t c, std::string& out) {
  append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
}

std::string to_upper(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) append_upper(next_character(text, at), out);
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) append_lower(next_character(text, at), out);
  return out;
}

Range stripped(std::string_view text, bool left, bool right, const std::string_view* characters) {
  const auto goes = [characters](char32_t c) {
    if (characters == nullptr) return is_space(c);
    for (size_t at = 0; at < characters->size();) {
      if (next_character(*characters, at) == c) return true;
    }
    return false;
  };
  Range kept{0, text.size()};
  while (left && kept.begin < kept.end) {
    size_t at = kept.begin;
    if (!goes(next_character(text, at))) break;
    kept.begin = at;
  }
  while (right && kept.begin < kept.end) {
    size_t at = kept.end;
    if (!goes(previous_character(text, at))) break;
    kept.end = at;
  }
  return kept;
}

}  // namespace eyrie::chat::jinja
