#include "runtime/draft_backlog.h"

#include <gtest/gtest.h>

#include <cstring>

namespace eyrie::runtime {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int64_t kWidth = 3;
constexpr int64_t kRoomBytes = kBlockSize * kWidth * 2;

class DraftBacklogTest : public ::testing::Test {
 protected:
  KvStorage kv{{.num_target_layers = 1, .target_width = 8, .draft_width = 4}, 6, kBlockSize};

  static std::vector<float> features(int value) {
    return {static_cast<float>(value), -0.5F, 0.25F * static_cast<float>(value)};
  }
  static std::vector<float> read(const DraftBacklog& backlog, int64_t slot) {
    std::vector<float> out(kWidth);
    backlog.read(slot, out);
    return out;
  }
  uint16_t draft_bits(int64_t slot, size_t which) const {
    return kv.draft()[which].data.rows(slot, 1).data<bf16>()->bits;
  }
};

TEST_F(DraftBacklogTest, KeepsFeaturesUntilTheyAreTakenIn) {
  DraftBacklog backlog(kv, kWidth, 1 << 20);
  const int32_t table[] = {3, 1};
  EXPECT_EQ(backlog.slot_of(table, 17), 17);
  EXPECT_EQ(backlog.slot_of(table, 2), 50);
  backlog.put_off(50, features(7));
  backlog.put_off(51, features(8));
  backlog.put_off(50, features(9));  // computed again
  EXPECT_TRUE(backlog.waits(50));
  EXPECT_EQ(backlog.num_waiting_in(3), 2);
  EXPECT_EQ(read(backlog, 50), features(9));
  EXPECT_EQ(read(backlog, 51), features(8));
  backlog.take_in(50);
  backlog.take_in(50);
  EXPECT_FALSE(backlog.waits(50));
  EXPECT_EQ(backlog.num_waiting_in(3), 1);
  backlog.take_in(51);
  EXPECT_EQ(backlog.num_waiting_in(3), 0);
  EXPECT_EQ(backlog.num_lost(), 0);
}

TEST_F(DraftBacklogTest, WhenFullTheOldestBlockIsLostAndItsDraftEntriesAreZeros) {
  kv.poison();
  DraftBacklog backlog(kv, kWidth, 2 * kRoomBytes);
  EXPECT_EQ(backlog.bytes(), 2 * kRoomBytes);
  backlog.put_off(0, features(1));
  backlog.put_off(5, features(2));
  backlog.put_off(kBlockSize, features(3));
  backlog.put_off(4 * kBlockSize + 1, features(4));
  EXPECT_FALSE(backlog.waits(0));
  EXPECT_FALSE(backlog.waits(5));
  EXPECT_EQ(backlog.num_waiting_in(0), 0);
  EXPECT_EQ(backlog.num_lost(), 2);
  for (const size_t which : {0U, 1U}) {
    EXPECT_EQ(draft_bits(5, which), 0);
    EXPECT_EQ(draft_bits(6, which), 0xffff);
  }
  EXPECT_EQ(read(backlog, kBlockSize), features(3));
  EXPECT_EQ(read(backlog, 4 * kBlockSize + 1), features(4));
  // What was taken in gives its room back; the others stay.
  backlog.take_in(kBlockSize);
  backlog.put_off(2, features(5));
  EXPECT_EQ(backlog.num_lost(), 2);
  EXPECT_EQ(read(backlog, 4 * kBlockSize + 1), features(4));
}

TEST_F(DraftBacklogTest, HasAtLeastOneRoomAndNeverMoreThanBlocks) {
  EXPECT_EQ(DraftBacklog(kv, kWidth, 1).bytes(), kRoomBytes);
  EXPECT_EQ(DraftBacklog(kv, kWidth, 1 << 30).bytes(), 6 * kRoomBytes);
}

}  // namespace
}  // namespace eyrie::runtime
