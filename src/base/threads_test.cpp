#include "base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

namespace eyrie {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceForAnySize) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<int> hits(static_cast<size_t>(tasks), 0);
      pool.run(tasks, [&](int64_t i, int thread_idx) {
        EXPECT_LT(thread_idx, threads);
        ++hits[static_cast<size_t>(i)];
      });
      for (int hit : hits) EXPECT_EQ(hit, 1);
    }
  }
}

TEST(ThreadPool, ManyShortRunsInARow) {
  ThreadPool pool(4);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 5000; ++round) {
    pool.run(8, [&](int64_t i, int) { sum.fetch_add(i, std::memory_order_relaxed); });
  }
  EXPECT_EQ(sum.load(), 5000 * 28);
}

TEST(ThreadPool, WakesSleepingWorkers) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> count{0};
    pool.run(64, [&](int64_t, int) { ++count; });
    EXPECT_EQ(count.load(), 64);
  }
}

// Runs back to back with few tasks and many more threads than cores: workers arrive late, in the
// middle of another run, and must neither run a task twice nor read the fields of a finished run.
TEST(ThreadPool, LateWorkersSeeOnlyTheRunTheyJoin) {
  ThreadPool pool(16);
  for (int64_t round = 0; round < 3000; ++round) {
    std::vector<int64_t> results(static_cast<size_t>(1 + round % 5), -1);
    pool.run(static_cast<int64_t>(results.size()),
             [&](int64_t i, int) { results[static_cast<size_t>(i)] = round * 10 + i; });
    for (size_t i = 0; i < results.size(); ++i) {
      ASSERT_EQ(results[i], round * 10 + static_cast<int64_t>(i));
    }
  }
}

}  // namespace
}  // namespace eyrie
