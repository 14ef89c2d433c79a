#include "apps/eyrie/flag_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "base/error.h"

namespace eyrie::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::array kSpecs = {
    FlagSpec{.name = "port", .kind = FlagKind::kInt},
    FlagSpec{.name = "max-model-len", .kind = FlagKind::kHumanInt},
    FlagSpec{.name = "max-num-seqs", .kind = FlagKind::kInt},
    FlagSpec{.name = "tensor-parallel-size", .kind = FlagKind::kInt, .alias = "tp"},
    FlagSpec{.name = "gpu-memory-utilization", .kind = FlagKind::kFloat},
    FlagSpec{.name = "enable-prefix-caching", .kind = FlagKind::kBool},
    FlagSpec{.name = "headless", .kind = FlagKind::kSwitch, .explained = "one process here"},
    FlagSpec{.name = "api-key", .kind = FlagKind::kList},
    FlagSpec{.name = "speculative-config", .kind = FlagKind::kJson, .alias = "sc"},
    FlagSpec{.name = "served-model-name", .kind = FlagKind::kString},
    FlagSpec{.name = "run", .kind = FlagKind::kRepeated},
};

ParsedFlags parse(std::vector<std::string> args) { return parse_flags(kSpecs, args); }

std::string error_of(std::vector<std::string> args) {
  try {
    (void)parse(std::move(args));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(FlagParser, RepeatedFlagsKeepEveryValue) {
  const auto flags = parse({"--run", "a", "--port", "1", "--run=b=c d", "rest"});
  EXPECT_THAT(flags.list("run"), ElementsAre("a", "b=c d"));
  EXPECT_THAT(flags.positionals(), ElementsAre("rest"));
}

TEST(FlagParser, ABlankBeforeAnyEqualsSignMakesAValue) {
  EXPECT_EQ(parse({"--served-model-name", "--port 1 --x=2"}).string("served-model-name"),
            "--port 1 --x=2");
}

TEST(FlagParser, TheTutorialsSpellings) {
  const auto flags =
      parse({"m", "--port", "8888", "-tp", "4", "--gpu-memory-utilization", "0.90",
             "--max-model-len=2304", "--no-enable-prefix-caching", "--speculative-config",
             R"({"method":"eagle3","num_speculative_tokens":6})"});
  EXPECT_THAT(flags.positionals(), ElementsAre("m"));
  EXPECT_EQ(flags.integer("port", 0), 8888);
  EXPECT_EQ(flags.integer("tensor-parallel-size", 1), 4);
  EXPECT_DOUBLE_EQ(flags.number("gpu-memory-utilization", 0), 0.9);
  EXPECT_EQ(flags.integer("max-model-len", 0), 2304);
  EXPECT_FALSE(flags.boolean("enable-prefix-caching", true));
  EXPECT_EQ(flags.json("speculative-config")["num_speculative_tokens"], 6);
}

TEST(FlagParser, UnderscoresPrefixesAndDottedKeys) {
  const auto flags =
      parse({"--max_model", "4k", "--speculative-config.method", "eagle3",
             "--speculative_config.num_speculative_tokens", "6", "-sc.x+", "1", "-sc.x+=2"});
  EXPECT_EQ(flags.integer("max-model-len", 0), 4000);
  EXPECT_EQ(flags.json("speculative-config").dump(),
            R"({"method":"eagle3","num_speculative_tokens":6,"x":[1,2]})");
}

TEST(FlagParser, ListsAndRepeats) {
  const auto flags = parse({"--api-key", "a", "b", "--port", "1", "--port", "2", "--headless"});
  EXPECT_THAT(flags.list("api-key"), ElementsAre("a", "b"));
  EXPECT_EQ(flags.integer("port", 0), 2);
  EXPECT_THAT(flags.notes(), ElementsAre(HasSubstr("'2', counts"), HasSubstr("one process here")));
}

TEST(FlagParser, OneSentenceForEachMistake) {
  EXPECT_THAT(error_of({"--prot", "1"}), HasSubstr("unknown flag --prot"));
  EXPECT_THAT(error_of({"--max", "1"}), HasSubstr("--max-model-len, --max-num-seqs"));
  EXPECT_THAT(error_of({"--port", "x"}), HasSubstr("whole number, not 'x'"));
  EXPECT_THAT(error_of({"--port"}), HasSubstr("--port needs a value"));
  EXPECT_THAT(error_of({"--enable-prefix-caching=true"}), HasSubstr("takes no value"));
  EXPECT_THAT(error_of({"--speculative-config", "{bad"}), HasSubstr("JSON object"));
  EXPECT_THAT(error_of({"--max-model-len", "2.5K"}), HasSubstr("4k or 4K"));
  EXPECT_THAT(error_of({"--gpu-memory-utilization", "much"}), HasSubstr("a number, not 'much'"));
}

TEST(FlagParser, HumanIntegers) {
  EXPECT_EQ(parse_human_integer("1k"), 1000);
  EXPECT_EQ(parse_human_integer("1K"), 1024);
  EXPECT_EQ(parse_human_integer("25.6k"), 25600);
  EXPECT_EQ(parse_human_integer("2M"), 2097152);
  EXPECT_EQ(parse_human_integer("1.5"), std::nullopt);
  EXPECT_EQ(parse_human_integer("k"), std::nullopt);
}

}  // namespace
}  // namespace eyrie::apps
