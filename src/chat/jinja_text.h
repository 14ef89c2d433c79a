// Strings of a template: UTF-8 bytes that know which of them came from outside (messages, tools,
// request arguments) and which the template spelled itself. Only the latter may become control
// tokens, however a template cuts and joins them. Budget: what one rendering may spend, so that no
// template hangs a thread or fills the memory. Offsets and sizes are bytes unless "characters" is
// said; a character is a code point, as Python counts.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace eyrie::chat::jinja {

// What is wrong in or with a template; caught inside Template's functions.
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Limits {
  int64_t max_steps = 20'000'000;              // evaluations, and looked-at bytes / 64
  size_t max_made_bytes = size_t{512} << 20;   // of all strings and lists made on the way
  size_t max_output_bytes = size_t{64} << 20;  // of one string, so of the result too
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}
  void step(int64_t count = 1) {
    steps_ += count;
    if (steps_ > limits_.max_steps) out_of("steps");
  }
  // Looking at that many bytes.
  void look(size_t bytes) { step(static_cast<int64_t>(bytes / 64)); }
  void make(size_t bytes) {
    made_bytes_ += bytes;
    if (made_bytes_ > limits_.max_made_bytes) out_of("memory");
  }
  // Before a string or list of that size is made.
  void check_size(size_t bytes) const {
    if (bytes > limits_.max_output_bytes) out_of("output");
  }

 private:
  [[noreturn]] static void out_of(const char* what);
  Limits limits_;
  int64_t steps_ = 0;
  size_t made_bytes_ = 0;
};

struct Range {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const Range&) const = default;
};

struct Text {
  std::string bytes;
  std::vector<Range> outside{};  // ascending, neither empty nor touching

  static Text own(std::string_view text) { return {std::string(text), {}}; }
  static Text from_outside(std::string_view text);
  bool has_outside() const { return !outside.empty(); }
  size_t size() const { return bytes.size(); }
};

// The one way texts are put together; charges the budget.
class TextBuilder {
 public:
  explicit TextBuilder(Budget& budget) : budget_(budget) {}
  void own(std::string_view text) { append(text, false); }
  void from_outside(std::string_view text) { append(text, true); }
  // Text whose bytes cannot be traced: all outside if any of its sources was.
  void mixed(std::string_view text, bool any_outside) { append(text, any_outside); }
  void add(const Text& text) { add(text, 0, text.size()); }
  void add(const Text& text, size_t begin, size_t end);
  size_t size() const { return text_.size(); }
  Text take() { return std::move(text_); }

 private:
  void append(std::string_view text, bool outside);
  Budget& budget_;
  Text text_;
};

Text slice(const Text& text, size_t begin, size_t end, Budget& budget);

bool is_ascii(std::string_view text);
// Byte offset of a character; text.size() at and beyond the end.
size_t offset_of_character(std::string_view text, int64_t index);
int64_t num_characters(std::string_view text);

// As Python's str methods see characters.
bool is_space(char32_t c);
bool is_line_break(char32_t c);
bool is_printable(char32_t c);
bool is_alphabetic(char32_t c);
bool is_numeric(char32_t c);  // a decimal digit
bool is_upper(char32_t c);
bool is_lower(char32_t c);
void append_upper(char32_t c, std::string& out);
void append_lower(char32_t c, std::string& out);
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);

// The character at offset, which moves behind it; offset must be below text.size().
char32_t next_character(std::string_view text, size_t& offset);
// The character before offset, which moves to its beginning; offset must not be 0.
char32_t previous_character(std::string_view text, size_t& offset);

// What strip() leaves: of white space, or of the characters given.
Range stripped(std::string_view text, bool left, bool right, const std::string_view* characters);

}  // namespace eyrie::chat::jinja
