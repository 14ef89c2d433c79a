#include "tensor/slabs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "tensor/tensor.h"

namespace eyrie {
namespace {

TEST(Slabs, BlocksAreZeroedAlignedAndApart) {
  std::mt19937 random(1);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 300; ++i) {
    const size_t bytes = i % 50 == 49 ? (9 << 20) + random() % 1000 : 1 + random() % 700'000;
    const Buffer& buffer = buffers.emplace_back(Buffer::for_weights(bytes));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    ASSERT_EQ(buffer.bytes(), bytes);
    ASSERT_TRUE(std::all_of(buffer.data(), buffer.data() + bytes,
                            [](std::byte b) { return b == std::byte{0}; }));
    std::memset(buffer.data(), i + 1, bytes);
    if (i % 7 == 3) buffers.erase(buffers.begin() + i / 8);  // a slab outlives some of its blocks
  }
  std::vector<int> seen;
  for (const Buffer& buffer : buffers) {
    const std::byte first = buffer.data()[0];
    ASSERT_TRUE(std::all_of(buffer.data(), buffer.data() + buffer.bytes(),
                            [&](std::byte b) { return b == first; }));
    seen.push_back(static_cast<int>(first));
  }
  EXPECT_GT(seen.size(), 200u);
}

TEST(Slabs, MoveAndAssignKeepTheOwner) {
  Buffer weights = Buffer::for_weights(1000), plain(1000);
  std::byte* const address = weights.data();
  plain = std::move(weights);  // the plain one goes the other way
  EXPECT_EQ(plain.data(), address);
  Buffer moved(std::move(plain));
  EXPECT_EQ(moved.data(), address);
  EXPECT_EQ(plain.data(), nullptr);
  moved = Buffer::for_weights(0);
  EXPECT_EQ(moved.bytes(), 0u);
}

TEST(Slabs, ThreadsMayAskAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int round = 0; round < 50; ++round) {
        std::vector<Buffer> mine;
        for (size_t i = 1; i < 40; ++i) {
          mine.push_back(Buffer::for_weights(i * 1000));
          std::memset(mine.back().data(), t, mine.back().bytes());
        }
        for (const Buffer& buffer : mine) {
          ASSERT_EQ(buffer.data()[0], static_cast<std::byte>(t));
          ASSERT_EQ(buffer.data()[buffer.bytes() - 1], static_cast<std::byte>(t));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SlabsDeathTest, OnlyBlocksAreFreed) {
  std::byte other{};
  EXPECT_DEATH(slab_free(&other), "a block of no slab");
}

}  // namespace
}  // namespace eyrie
