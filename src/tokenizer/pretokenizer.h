// Cuts text into the pieces that BPE works on, by the pattern that all Kimi K2 tokenizers share,
// written out by hand as one pass (a test holds it against a regular-expression engine). No state;
// any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace eyrie {

// Appends the end of each piece; together the pieces are the text. valid: valid UTF-8, under 4 GiB.
void split_pieces(std::string_view valid, std::vector<uint32_t>& ends);

// Kimi's limits on what its pattern sees at once: at most 400,000 characters, and within those at
// most 25,000 in a row that are all white space or all not (white space as Python's str.isspace).
// Returns the end of the first portion, in bytes; > 0 for a text that is not empty.
class PortionCutter {
 public:
  explicit PortionCutter(std::string_view valid) : text_(valid) {}
  // The next portion; empty when the text is used up.
  std::string_view next();

 private:
  static constexpr int64_t kMaxCharacters = 400'000;
  static constexpr int64_t kMaxRun = 25'000;

  std::string_view text_;
  size_t begin_ = 0;        // bytes handed out
  int64_t characters_ = 0;  // handed out of the current 400,000
};

bool is_python_space(char32_t c);

}  // namespace eyrie
