#include "tokenizer/pretokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "tokenizer/golden_test_util.h"
#include "tokenizer/utf8.h"

namespace eyrie {
namespace {

// Every character that Unicode 14 assigns, in a line where its class decides several cuts.
TEST(PretokenizerTest, CutsAroundEveryCharacterAsTheOriginalPattern) {
  const auto golden = read_golden("pieces.json");
  const std::string around = golden["around"];
  struct Digest {
    size_t count = 0;
    uint64_t value = 0xCBF29CE484222325ull;
  };
  std::map<char32_t, Digest> blocks;
  for (const auto& run : golden["assigned"]) {
    for (char32_t c = run[0].get<uint32_t>(); c <= run[1].get<uint32_t>(); ++c) {
      std::string text;
      for (const char letter : around) {
        if (letter == '*') {
          append_utf8(c, text);
        } else {
          text.push_back(letter);
        }
      }
      std::vector<uint32_t> ends;
      split_pieces(text, ends);
      Digest& digest = blocks[c & ~0xFFFu];
      digest.count += ends.size();
      for (const uint32_t end : ends) digest.value = (digest.value ^ end) * 0x100000001B3ull;
    }
  }
  ASSERT_EQ(blocks.size(), golden["blocks"].size());
  for (const auto& row : golden["blocks"]) {
    const auto block = static_cast<char32_t>(row["block"].get<uint32_t>());
    const Digest& digest = blocks.at(block);
    EXPECT_EQ(fmt::format("{}:{:016x}", digest.count, digest.value),
              row["digest"].get<std::string>())
        << fmt::format("among U+{:04X} … U+{:04X}", uint32_t{block}, uint32_t{block} + 0xFFF);
  }
}

TEST(PretokenizerTest, PortionsAreTheTextAndKeepTheLimits) {
  std::string text;
  for (int i = 0; i < 30'000; ++i) text += "é";
  text += std::string(26'000, ' ');
  for (int i = 0; i < 200'000; ++i) text += "a ";
  PortionCutter cutter(text);
  std::string joined;
  int num_portions = 0;
  for (auto portion = cutter.next(); !portion.empty(); portion = cutter.next()) {
    EXPECT_LE(utf8_length(portion), 400'000);
    joined += portion;
    ++num_portions;
  }
  EXPECT_EQ(joined, text);
  // 25,000 é | 5,000 é and 25,000 spaces | 1,000 spaces … the 400,000th character | the rest
  EXPECT_EQ(num_portions, 4);
  EXPECT_TRUE(PortionCutter("").next().empty());
}

}  // namespace
}  // namespace eyrie
