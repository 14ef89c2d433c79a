#include "base/queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace eyrie {
namespace {

TEST(BoundedQueue, RefusesWhenFullAndKeepsTheItem) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.push(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.push(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(**queue.try_pop(), 1);
  EXPECT_FALSE(queue.try_pop().has_value());
}

TEST(BoundedQueue, DrainsInOrderThenReportsClosed) {
  BoundedQueue<int> queue(1000);
  std::thread producer([&] {
    for (int i = 0; i < 500; ++i) ASSERT_TRUE(queue.push(std::move(i)));
    queue.close();
  });
  int expected = 0;
  while (auto item = queue.pop()) EXPECT_EQ(*item, expected++);
  producer.join();
  EXPECT_EQ(expected, 500);
  EXPECT_FALSE(queue.push(1));
}

TEST(BoundedQueue, PopForGivesUp) {
  BoundedQueue<int> queue(1);
  EXPECT_FALSE(queue.pop_for(std::chrono::milliseconds(1)).has_value());
}

}  // namespace
}  // namespace eyrie
