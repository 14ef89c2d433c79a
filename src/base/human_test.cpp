#include "base/human.h"

#include <gtest/gtest.h>

namespace eyrie {
namespace {

TEST(Human, Bytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(554.3e9), "516.23 GiB");
}

TEST(Human, Seconds) {
  EXPECT_EQ(human_seconds(0.0000123), "12 us");
  EXPECT_EQ(human_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(human_seconds(12.34), "12.3 s");
  EXPECT_EQ(human_seconds(185), "3m 05s");
  EXPECT_EQ(human_seconds(7384), "2h 03m");
}

TEST(Human, TableLinesUpWithWideCharacters) {
  EXPECT_EQ(format_table({{"name", "x"}, {"月", "10"}}), "name   x\n----  --\n月    10\n");
  EXPECT_EQ(format_table({{"a", "b"}, {"c", "10"}}, true), "| a |  b |\n|:--|---:|\n| c | 10 |\n");
}

}  // namespace
}  // namespace eyrie
