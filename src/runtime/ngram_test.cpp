#include "runtime/ngram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace eyrie::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<TokenId> look_up(const std::vector<TokenId>& text, NgramConfig config,
                             int32_t num_wanted) {
  std::vector<TokenId> proposed;
  NgramProposer(config).propose(text, num_wanted, proposed);
  return proposed;
}

TEST(NgramTest, ProposesWhatFollowedBefore) {
  EXPECT_THAT(look_up({1, 2, 3, 4, 5, 1, 2, 3}, {2, 3}, 3), ElementsAre(4, 5, 1));
  EXPECT_THAT(look_up({1, 2, 3, 4, 5, 1, 2, 3}, {4, 5}, 3), IsEmpty());
  // The longest run counts, then the first place.
  EXPECT_THAT(look_up({2, 3, 7, 1, 2, 3, 8, 2, 3, 9, 1, 2, 3}, {1, 3}, 1), ElementsAre(8));
  EXPECT_THAT(look_up({2, 3, 7, 1, 2, 3, 8, 2, 3, 9, 1, 2, 3}, {1, 2}, 1), ElementsAre(7));
  // No more than the text has.
  EXPECT_THAT(look_up({5, 5}, {1, 4}, 9), ElementsAre(5));
}

// Against tools/golden/make_ngram.py, which looks the text through by definition.
TEST(NgramTest, FindsWhatAPlainSearchFinds) {
  std::ifstream file("tests/golden/ngram.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_EQ(cases.size(), 400u);
  for (const auto& one : cases) {
    const NgramConfig config{one["min"].get<int32_t>(), one["max"].get<int32_t>()};
    EXPECT_EQ(look_up(one["text"].get<std::vector<TokenId>>(), config, one["count"].get<int32_t>()),
              one["proposed"].get<std::vector<TokenId>>())
        << one.dump();
  }
}

}  // namespace
}  // namespace eyrie::runtime
