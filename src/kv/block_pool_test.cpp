#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <numeric>
#include <utility>

namespace eyrie::kv {
namespace {

constexpr int32_t kBlockSize = 4;

BlockPoolConfig config(int32_t num_blocks, bool key_has_next_token = false) {
  return {.num_blocks = num_blocks,
          .block_size = kBlockSize,
          .enable_prefix_caching = true,
          .key_has_next_token = key_has_next_token};
}

std::vector<TokenId> counting(int32_t num_tokens, TokenId first = 100) {
  std::vector<TokenId> tokens(static_cast<size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A list as of a sequence that found what it could, then computed and published the rest.
BlockList computed(BlockPool& pool, const std::vector<TokenId>& tokens,
                   std::string_view salt = "") {
  const int32_t num_blocks = static_cast<int32_t>(tokens.size()) / kBlockSize;
  std::vector<BlockId> found;
  pool.find_prefix(tokens, salt, num_blocks, found);
  BlockList list(pool);
  pool.hold(list, found);
  EXPECT_TRUE(pool.grow(list, num_blocks));
  for (int32_t idx = static_cast<int32_t>(found.size()); idx < num_blocks; ++idx) {
    pool.publish(list, idx, tokens, salt);
  }
  return list;
}

int32_t num_found(const BlockPool& pool, const std::vector<TokenId>& tokens,
                  std::string_view salt = "", int32_t max_blocks = 1000) {
  std::vector<BlockId> found;
  pool.find_prefix(tokens, salt, max_blocks, found);
  return static_cast<int32_t>(found.size());
}

std::vector<BlockId> ids(const BlockList& list) { return {list.ids().begin(), list.ids().end()}; }

TEST(BlockPoolTest, HandsOutEveryBlockOnceAndThenNone) {
  BlockPool pool(config(3));
  BlockList list(pool);
  EXPECT_TRUE(pool.grow(list, 3));
  EXPECT_EQ(ids(list), (std::vector<BlockId>{0, 1, 2}));
  EXPECT_EQ(pool.num_available(), 0);
  BlockList other(pool);
  EXPECT_FALSE(pool.grow(other, 1));
  EXPECT_TRUE(pool.grow(other, 0));
  pool.check_integrity();
}

TEST(BlockPoolTest, GrowingTooFarChangesNothing) {
  BlockPool pool(config(3));
  BlockList list(pool);
  ASSERT_TRUE(pool.grow(list, 1));
  EXPECT_FALSE(pool.grow(list, 4));
  EXPECT_EQ(list.size(), 1);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_TRUE(pool.grow(list, 1));  // to what it has already
  EXPECT_EQ(list.size(), 1);
}

TEST(BlockPoolTest, ListGivesItsBlocksBackAtScopeEnd) {
  BlockPool pool(config(4));
  {
    BlockList list(pool);
    ASSERT_TRUE(pool.grow(list, 3));
    EXPECT_EQ(pool.num_held(), 3);
  }
  EXPECT_EQ(pool.num_free(), 4);
  pool.check_integrity();
}

TEST(BlockPoolTest, MovedListOwnsTheBlocksAlone) {
  BlockPool pool(config(4));
  BlockList first(pool), second(pool);
  ASSERT_TRUE(pool.grow(first, 2));
  ASSERT_TRUE(pool.grow(second, 1));
  BlockList moved(std::move(first));
  EXPECT_EQ(pool.num_held(), 3);
  moved = std::move(second);  // gives back its two
  EXPECT_EQ(pool.num_held(), 1);
  EXPECT_EQ(ids(moved), (std::vector<BlockId>{2}));
  pool.check_integrity();
}

TEST(BlockPoolTest, PublishedBlocksStayCachedAfterTheirListDied) {
  BlockPool pool(config(4));
  const auto tokens = counting(9);
  std::vector<BlockId> written;
  {
    const BlockList list = computed(pool, tokens);
    written = ids(list);
  }
  EXPECT_EQ(pool.num_cached(), 2);
  EXPECT_EQ(pool.num_free(), 2);
  std::vector<BlockId> found;
  pool.find_prefix(tokens, "", 10, found);
  EXPECT_EQ(found, written);
  BlockList again(pool);
  EXPECT_EQ(pool.count_cached(found), 2);
  pool.hold(again, found);
  EXPECT_EQ(pool.count_cached(found), 0);
  EXPECT_EQ(pool.num_held(), 2);
  EXPECT_EQ(pool.num_cached(), 0);
  pool.check_integrity();
}

TEST(BlockPoolTest, SearchStopsAtTheFirstDifferentBlock) {
  BlockPool pool(config(8));
  auto tokens = counting(12);
  const BlockList list = computed(pool, tokens);
  EXPECT_EQ(num_found(pool, tokens), 3);
  EXPECT_EQ(num_found(pool, tokens, "", 2), 2);
  EXPECT_EQ(num_found(pool, counting(11)), 2);
  EXPECT_EQ(num_found(pool, counting(3)), 0);
  EXPECT_EQ(num_found(pool, {}), 0);
  tokens[5] = 7;  // in the second block: the third has equal tokens but another parent
  EXPECT_EQ(num_found(pool, tokens), 1);
  tokens[0] = 7;
  EXPECT_EQ(num_found(pool, tokens), 0);
}

TEST(BlockPoolTest, EqualTokensUnderDifferentParentsAreDifferentBlocks) {
  BlockPool pool(config(8));
  // Two blocks of the same four tokens in a row, and the same block alone after another.
  const std::vector<TokenId> twice{1, 2, 3, 4, 1, 2, 3, 4};
  const std::vector<TokenId> after{9, 9, 9, 9, 1, 2, 3, 4};
  const BlockList a = computed(pool, twice);
  const BlockList b = computed(pool, after);
  EXPECT_NE(a.ids()[0], a.ids()[1]);
  EXPECT_NE(a.ids()[1], b.ids()[1]);
  EXPECT_EQ(pool.num_held(), 4);
  pool.check_integrity();
}

TEST(BlockPoolTest, DifferentSaltsShareNothing) {
  BlockPool pool(config(8));
  const auto tokens = counting(8);
  const BlockList list = computed(pool, tokens, "tenant-a");
  EXPECT_EQ(num_found(pool, tokens, "tenant-a"), 2);
  EXPECT_EQ(num_found(pool, tokens, "tenant-b"), 0);
  EXPECT_EQ(num_found(pool, tokens, ""), 0);
}

TEST(BlockPoolTest, FreeBlocksAreUsedBeforeCachedOnes) {
  BlockPool pool(config(4));
  const auto tokens = counting(8);
  { const BlockList list = computed(pool, tokens); }
  BlockList other(pool);
  ASSERT_TRUE(pool.grow(other, 2));
  EXPECT_EQ(num_found(pool, tokens), 2);
  ASSERT_TRUE(pool.grow(other, 3));
  EXPECT_EQ(num_found(pool, tokens), 1) << "the last block of the chain goes first";
  ASSERT_TRUE(pool.grow(other, 4));
  EXPECT_EQ(num_found(pool, tokens), 0);
  pool.check_integrity();
}

TEST(BlockPoolTest, LeastRecentlyUsedChainIsEvictedFirst) {
  BlockPool pool(config(4));
  const auto old_tokens = counting(8, 100), new_tokens = counting(8, 200);
  { const BlockList list = computed(pool, old_tokens); }
  { const BlockList list = computed(pool, new_tokens); }
  {  // a hit makes the older chain the more recent one
    std::vector<BlockId> found;
    pool.find_prefix(old_tokens, "", 10, found);
    BlockList list(pool);
    pool.hold(list, found);
  }
  BlockList other(pool);
  ASSERT_TRUE(pool.grow(other, 2));
  EXPECT_EQ(num_found(pool, old_tokens), 2);
  EXPECT_EQ(num_found(pool, new_tokens), 0);
}

TEST(BlockPoolTest, ChildrenAreEvictedBeforeASharedParent) {
  BlockPool pool(config(3));
  auto left = counting(8), right = counting(8);
  right[4] = 7;
  {
    const BlockList a = computed(pool, left);
    const BlockList b = computed(pool, right);
    EXPECT_EQ(a.ids()[0], b.ids()[0]);
    EXPECT_EQ(pool.num_held(), 3);
  }
  BlockList other(pool);
  ASSERT_TRUE(pool.grow(other, 2));
  EXPECT_EQ(num_found(pool, left), 1);
  EXPECT_EQ(num_found(pool, right), 1);
  pool.check_integrity();
}

TEST(BlockPoolTest, SameContentComputedTwiceAtOnceBecomesOneBlock) {
  BlockPool pool(config(4));
  const auto tokens = counting(8);
  BlockList a(pool), b(pool);
  ASSERT_TRUE(pool.grow(a, 2));
  ASSERT_TRUE(pool.grow(b, 2));
  pool.publish(a, 0, tokens, "");
  pool.publish(b, 0, tokens, "");
  pool.publish(b, 1, tokens, "");
  pool.publish(a, 1, tokens, "");
  EXPECT_EQ(ids(a), ids(b));
  EXPECT_EQ(pool.num_references(a.ids()[0]), 2);
  EXPECT_EQ(pool.num_held(), 2);
  EXPECT_EQ(pool.num_free(), 2);
  a.clear();
  EXPECT_EQ(pool.num_held(), 2);
  pool.check_integrity();
}

TEST(BlockPoolTest, NextTokenInTheKeyKeepsDraftsOfAnotherContinuationApart) {
  BlockPool pool(config(8, /*key_has_next_token=*/true));
  auto tokens = counting(9);
  BlockList list(pool);
  ASSERT_TRUE(pool.grow(list, 2));
  pool.publish(list, 0, tokens, "");
  pool.publish(list, 1, tokens, "");
  EXPECT_EQ(num_found(pool, tokens), 2);
  EXPECT_EQ(num_found(pool, counting(8)), 1) << "what follows the second block is not known";
  tokens[8] = 7;
  EXPECT_EQ(num_found(pool, tokens), 1) << "the second block was followed by another token";
  tokens[4] = 7;
  EXPECT_EQ(num_found(pool, tokens), 0);
}

TEST(BlockPoolTest, ResetForgetsContentOnlyWhenNothingIsHeld) {
  BlockPool pool(config(4));
  const auto tokens = counting(8);
  {
    const BlockList list = computed(pool, tokens);
    EXPECT_FALSE(pool.reset_prefix_cache());
    EXPECT_EQ(num_found(pool, tokens), 2);
  }
  EXPECT_TRUE(pool.reset_prefix_cache());
  EXPECT_EQ(num_found(pool, tokens), 0);
  EXPECT_EQ(pool.num_free(), 4);
  pool.check_integrity();
}

TEST(BlockPoolTest, WithoutPrefixCachingNothingIsEverFound) {
  BlockPool pool({.num_blocks = 4, .block_size = kBlockSize, .enable_prefix_caching = false});
  const auto tokens = counting(8);
  { const BlockList list = computed(pool, tokens); }
  EXPECT_EQ(num_found(pool, tokens), 0);
  EXPECT_EQ(pool.num_free(), 4);
  EXPECT_TRUE(pool.published_tokens(0).empty());
  pool.check_integrity();
}

TEST(BlockPoolTest, ManyChainsThroughASmallPoolKeepItsInvariants) {
  BlockPool pool(config(7));
  for (TokenId round = 0; round < 200; ++round) {
    // Chains that share a first block in groups of three, of 1 to 5 blocks.
    auto tokens = counting(kBlockSize * (1 + round % 5), round);
    std::fill(tokens.begin(), tokens.begin() + kBlockSize, round / 3 % 4);
    const BlockList list = computed(pool, tokens);
    pool.check_integrity();
    for (int32_t idx = 0; idx < list.size(); ++idx) {
      const auto held = pool.published_tokens(list.ids()[static_cast<size_t>(idx)]);
      ASSERT_TRUE(std::equal(held.begin(), held.end(), tokens.begin() + idx * kBlockSize));
    }
  }
}

TEST(BlockPoolDeathTest, PublishingOutOfOrderIsABug) {
  BlockPool pool(config(4));
  const auto tokens = counting(8);
  BlockList list(pool);
  ASSERT_TRUE(pool.grow(list, 2));
  EXPECT_DEATH(pool.publish(list, 1, tokens, ""), "published");
}

}  // namespace
}  // namespace eyrie::kv
