#include "tokenizer/utf8.h"

#include <gtest/gtest.h>

#include "tokenizer/golden_test_util.h"

namespace eyrie {
namespace {

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

TEST(Utf8Test, ReplacesWhatPythonReplaces) {
  const auto rows = read_golden("utf8.json");
  ASSERT_GT(rows.size(), 200u);
  for (const auto& row : rows) {
    const std::string bytes = from_hex(row["hex"]);
    const std::string expected = row["text"];
    EXPECT_EQ(utf8_replace_invalid(bytes), expected) << row["hex"];
    EXPECT_EQ(utf8_valid(bytes), bytes == expected) << row["hex"];
  }
}

TEST(Utf8Test, StreamDoesNotDependOnTheCut) {
  for (const auto& row : read_golden("utf8.json")) {
    const std::string bytes = from_hex(row["hex"]);
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      std::string out;
      Utf8Stream stream;
      stream.push(std::string_view(bytes).substr(0, cut), out);
      EXPECT_TRUE(utf8_valid(out));
      for (const char byte : bytes.substr(cut)) stream.push({&byte, 1}, out);
      stream.flush(out);
      EXPECT_EQ(out, row["text"].get<std::string>()) << row["hex"] << " cut at " << cut;
    }
  }
}

TEST(Utf8Test, WritesAndCountsEveryCodePoint) {
  std::string all;
  int64_t count = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string one;
    append_utf8(c, one);
    const Utf8Step step = utf8_step(one);
    ASSERT_EQ(step.kind, Utf8Step::Kind::kCharacter);
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(static_cast<size_t>(step.size), one.size());
    all += one;
    ++count;
  }
  EXPECT_TRUE(utf8_valid(all));
  EXPECT_EQ(utf8_length(all), count);
}

}  // namespace
}  // namespace eyrie
