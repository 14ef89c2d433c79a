// How fuzz targets read their input: a few option characters first ('0' + bits, so that a corpus
// file can be typed), then text, perhaps in parts that a line of three dashes separates. All run in
// the repository root, for the small tokenizer of tests/golden/text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace eyrie::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : text_(reinterpret_cast<const char*>(data), size) {}

  // The next option: 0 when the input is used up.
  unsigned option() {
    if (text_.empty()) return 0;
    const auto c = static_cast<unsigned char>(text_.front());
    text_.remove_prefix(1);
    return static_cast<unsigned char>(c - '0');
  }
  // Up to the next line of dashes, or all that is left.
  std::string_view part() {
    constexpr std::string_view kLine = "\n---\n";
    const size_t end = text_.find(kLine);
    if (end == std::string_view::npos) return std::exchange(text_, {});
    const std::string_view part = text_.substr(0, end);
    text_.remove_prefix(end + kLine.size());
    return part;
  }

 private:
  std::string_view text_;
};

// Where to cut: a small generator, so that an input says everything.
class Cuts {
 public:
  explicit Cuts(unsigned seed) : state_(seed) {}
  size_t next(size_t most) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return 1 + (state_ >> 33) % most;
  }

 private:
  uint64_t state_;
};

inline const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load("tests/golden/text");
  return tokenizer;
}

}  // namespace eyrie::fuzz
