#include "bench/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "bench/scratch_path.h"
#include "bench/shell_words.h"

namespace eyrie::bench {
namespace {

using testing::ElementsAre;

TEST(RunStoreTest, KeepsRunsAcrossOpenings) {
  const std::string path = scratch_path("store_test/sub/runs.sqlite");
  std::filesystem::remove(path);
  {
    RunStore store(path);
    EXPECT_EQ(store.size(), 0);
    EXPECT_FALSE(store.find("k").has_value());
    store.put("k", "fp8", 4, R"({"a":"ž'"})");
    store.put("k2", "fp8", 8, "{}");
    store.put("k", "fp8", 4, R"({"a":2})");
  }
  RunStore store(path);
  EXPECT_EQ(store.size(), 2);
  EXPECT_EQ(store.find("k"), R"({"a":2})");
}

TEST(RunStoreTest, SaysWhatIsWrongWithTheFile) {
  const std::string path = scratch_path("not_a_store");
  std::ofstream(path) << std::string(4096, 'x');
  try {
    RunStore store(path);
    FAIL() << "opened";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(path));
  }
  EXPECT_THROW(RunStore("/proc/no/such.sqlite"), Error);
}

TEST(ShellWordsTest, SplitsAsAShellWould) {
  EXPECT_THAT(split_shell_words(R"(--a 1  --spec '{"model": "x y"}' "q \"r\" \\" e\ f '')"),
              ElementsAre("--a", "1", "--spec", R"({"model": "x y"})", R"(q "r" \)", "e f", ""));
  EXPECT_TRUE(split_shell_words("  \t").empty());
  EXPECT_THROW(split_shell_words("--a 'b"), Error);
  const std::vector<std::string> words = {"--a=1", "it's", "", "{\"k\": 1}", "ž"};
  EXPECT_EQ(split_shell_words(join_shell_words(words)), words);
}

}  // namespace
}  // namespace eyrie::bench
