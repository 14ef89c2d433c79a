#include "base/rng.h"

#include <gtest/gtest.h>

#include <set>

namespace eyrie {
namespace {

// Known answers published with Random123 (kat_vectors, philox4x32 10).
TEST(Philox, GivesTheAuthorsVectors) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(NoiseStream, DependsOnSeedPositionAndLaneOnly) {
  const NoiseStream a(7), b(7), c(8);
  EXPECT_EQ(a.block(5, 3), b.block(5, 3));
  std::set<PhiloxBlock> seen;
  for (uint64_t position = 0; position < 50; ++position) {
    for (uint64_t lane = 0; lane < 50; ++lane) seen.insert(a.block(position, lane));
  }
  EXPECT_EQ(seen.size(), 2500u);
  EXPECT_NE(a.block(5, 3), c.block(5, 3));
}

TEST(UniformOpen, StaysInsideTheOpenInterval) {
  EXPECT_GT(uniform_open(0, 0), 0.0);
  EXPECT_LT(uniform_open(0xffffffff, 0xffffffff), 1.0);
}

}  // namespace
}  // namespace eyrie
