#include "apps/eyrie/serve_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
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

TEST(SpeculativeConfig, DraftsSizeThemselvesUnlessTold) {
  json config = {{"method", "eagle3"}, {"model", "m"}, {"num_speculative_tokens", 3}};
  EXPECT_TRUE(parse_speculative_config(config)->adaptive);
  config["adaptive"] = false;
  EXPECT_FALSE(parse_speculative_config(config)->adaptive);
  config["adaptive"] = 1;
  EXPECT_THAT(error_of(config), HasSubstr("adaptive is 1; it takes true or false"));
}

TEST(SpeculativeConfig, NgramTakesVllmsKeys) {
  const auto lengths = [](const json& more) {
    json config = {{"method", "ngram"}, {"num_speculative_tokens", 4}};
    config.update(more);
    const auto parsed = parse_speculative_config(config);
    EXPECT_TRUE(parsed->model.empty());
    return std::pair(parsed->ngram->min_length, parsed->ngram->max_length);
  };
  EXPECT_EQ(lengths(json::object()), std::pair(5, 5));
  EXPECT_EQ(lengths({{"prompt_lookup_max", 3}}), std::pair(3, 3));
  EXPECT_EQ(lengths({{"prompt_lookup_min", 2}}), std::pair(2, 2));
  EXPECT_EQ(lengths({{"prompt_lookup_min", 2}, {"prompt_lookup_max", 4}, {"model", "ngram"}}),
            std::pair(2, 4));
  const json wrong = {{"method", "ngram"}, {"num_speculative_tokens", 4}};
  json config = wrong;
  config.update({{"prompt_lookup_min", 4}, {"prompt_lookup_max", 2}});
  EXPECT_THAT(error_of(config), HasSubstr("prompt_lookup_min is 4; it takes at most"));
  config = wrong;
  config["prompt_lookup_max"] = 0;
  EXPECT_THAT(error_of(config), HasSubstr("prompt_lookup_max is 0"));
}

TEST(SpeculativeConfig, SyntheticAcceptanceByLengthOrByRates) {
  const auto config = [](int drafts, const json& more) {
    json out = {{"model", "m-eagle3"},
                {"num_speculative_tokens", drafts},
                {"rejection_sample_method", "synthetic"}};
    out.update(more);
    return out;
  };
  for (const double length : {1.0, 2.5, 3.62, 6.99}) {
    const auto rates =
        parse_speculative_config(config(6, {{"synthetic_acceptance_length", length}}))
            ->synthetic_acceptance;
    ASSERT_EQ(rates.size(), 6u);
    double total = 1;
    for (size_t j = 0; j < 6; ++j) {
      total += rates[j];
      EXPECT_NEAR(rates[j], std::pow(rates[0], static_cast<double>(j + 1)), 1e-9);
    }
    EXPECT_NEAR(total, length, 1e-6);
  }
  EXPECT_EQ(parse_speculative_config(config(2, {{"synthetic_acceptance_rates", {0.9, 0.4}}}))
                ->synthetic_acceptance,
            (std::vector<double>{0.9, 0.4}));
  EXPECT_THAT(error_of(config(2, {{"synthetic_acceptance_rates", {0.4, 0.9}}})),
              HasSubstr("2 chances from 1 to 0 that never rise"));
  EXPECT_THAT(error_of(config(2, {{"synthetic_acceptance_rates", {0.4}}})), HasSubstr("2 chances"));
  EXPECT_THAT(error_of(config(2, {{"synthetic_acceptance_length", 3.5}})),
              HasSubstr("is 3.5; it takes 1 to 3"));
  EXPECT_THAT(error_of(config(2, json::object())), HasSubstr("needs one of"));
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
