// UTF-8 as Python reads it with errors="replace": each maximal run of bytes that begins a character
// but cannot go on, and each stray byte, becomes one U+FFFD (Unicode 15, table 3-7, "maximal
// subpart"). Offsets and sizes are bytes.
#pragma once

#include <string>
#include <string_view>

namespace eyrie {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// What stands at the front of some bytes.
struct Utf8Step {
  enum class Kind {
    kCharacter,   // a whole character of `size` bytes
    kInvalid,     // `size` bytes that stand for one U+FFFD whatever follows
    kIncomplete,  // all `size` bytes left begin a character that more bytes may complete
  };
  Kind kind = Kind::kIncomplete;
  int size = 0;
  char32_t code_point = 0;  // of a whole character
};
Utf8Step utf8_step(std::string_view bytes);  // bytes must not be empty

bool utf8_valid(std::string_view bytes);
std::string utf8_replace_invalid(std::string_view bytes);
void append_utf8(char32_t code_point, std::string& out);

// Number of characters (code points, as Python's len counts) in valid UTF-8.
int64_t utf8_length(std::string_view valid);

// Takes bytes in any portions and gives text as soon as it is certain. Never half a character.
class Utf8Stream {
 public:
  void push(std::string_view bytes, std::string& out);
  // The bytes still waiting can no longer be completed: one U+FFFD for them, if there are any.
  void flush(std::string& out);
  void drop_pending() { pending_.clear(); }
  bool has_pending() const { return !pending_.empty(); }

 private:
  std::string pending_;  // at most three bytes
};

}  // namespace eyrie
