#include "tokenizer/char_classes.h"

#include <array>
#include <cstring>
#include <iterator>

namespace eyrie {
namespace {

constexpr uint32_t kNumCodePoints = 0x110000;

// Runs of equal bits in ascending order: first code point << 8 | bits, until the next run.
constexpr uint32_t kRuns[] = {
#include "tokenizer/char_classes.inc"
};

using Table = std::array<uint8_t, kNumCodePoints>;

// In memory that is zero at start: the pages of planes without characters are never touched.
const Table& filled() {
  static Table table;
  for (size_t i = 0; i < std::size(kRuns); ++i) {
    const uint32_t begin = kRuns[i] >> 8;
    const uint32_t end = i + 1 < std::size(kRuns) ? kRuns[i + 1] >> 8 : kNumCodePoints;
    const auto bits = static_cast<uint8_t>(kRuns[i] & 0xFF);
    if (bits != 0) std::memset(table.data() + begin, bits, end - begin);
  }
  return table;
}

}  // namespace

const uint8_t* char_classes() {
  static const Table& table = filled();
  return table.data();
}

}  // namespace eyrie
