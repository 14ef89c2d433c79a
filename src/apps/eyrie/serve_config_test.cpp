#include "apps/eyrie/serve_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "apps/eyrie/serve_flags.h"
#include "base/error.h"

namespace eyrie::apps {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string error_of(const json& config) {
  try {
    (void)parse_speculative_config(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(SpeculativeConfig, TakesTheTutorialsSpelling) {
  const auto config = parse_speculative_config({{"model", "amd/Kimi-K2.5-Eagle3-FP8"},
                                                {"method", "eagle3"},
                                                {"num_speculative_tokens", 6},
                                                {"draft_tensor_parallel_size", 1}});
  ASSERT_TRUE(config.has_value());
  EXPECT_EQ(config->model, "amd/Kimi-K2.5-Eagle3-FP8");
  EXPECT_EQ(config->num_speculative_tokens, 6);
  EXPECT_FALSE(parse_speculative_config(json()).has_value());
}

TEST(SpeculativeConfig, InfersTheMethodFromTheName) {
  EXPECT_TRUE(parse_speculative_config({{"model", "x/kimi-eagle3"}, {"num_speculative_tokens", 3}})
                  .has_value());
}

TEST(SpeculativeConfig, NamesTheKeyOfAMistake) {
  EXPECT_THAT(error_of({{"method", "eagle3"}, {"num_speculative_tokens", 3}}),
              HasSubstr("needs \"model\""));
  EXPECT_THAT(error_of({{"method", "eagle3"}, {"model", "m"}}),
              HasSubstr("num_speculative_tokens is absent"));
  EXPECT_THAT(error_of({{"method", "eagle3"}, {"model", "m"}, {"num_speculative_tokens", 0}}),
              HasSubstr("is 0"));
  EXPECT_THAT(error_of({{"method", "eagle3"}, {"model", 7}, {"num_speculative_tokens", 1}}),
              HasSubstr("model is 7"));
  EXPECT_THAT(error_of({{"method", "warp"}, {"model", "m"}, {"num_speculative_tokens", 1}}),
              HasSubstr("'warp'"));
  EXPECT_THAT(
      error_of(
          {{"method", "eagle3"}, {"model", "m"}, {"num_speculative_tokens", 1}, {"colour", 1}}),
      HasSubstr("'colour'"));
}

TEST(ServeFlags, NamesAndAliasesAreUnique) {
  std::set<std::string> seen;
  for (const FlagSpec& spec : serve_flags()) {
    EXPECT_TRUE(seen.insert("--" + std::string(spec.name)).second) << spec.name;
    if (!spec.alias.empty()) {
      EXPECT_TRUE(seen.insert("-" + std::string(spec.alias)).second) << spec.alias;
    }
    EXPECT_NE(spec.help.empty(), spec.explained.empty()) << spec.name;
  }
  EXPECT_GT(seen.size(), 200u);
}

}  // namespace
}  // namespace eyrie::apps
