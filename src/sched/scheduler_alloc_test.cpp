// A warm scheduler allocates nothing in schedule() and update(). Counts every operator new of this
// test program, so it has a program of its own.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "sched/scheduler.h"
#include "sched/testing.h"

namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

[[gnu::noinline]] void* operator new(size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace eyrie::sched {
namespace {

using testing::answer;
using testing::counting;
using testing::sequence;

TEST(SchedulerAllocTest, StepsOfAWarmSchedulerAllocateNothing) {
  for (const int32_t num_drafts : {0, 4}) {
    Scheduler scheduler({.max_num_seqs = 8,
                         .max_num_batched_tokens = 32,
                         .max_model_len = 96,
                         .block_size = 4,
                         .num_blocks = 40,  // 8 sequences of up to 24 blocks: preemptions
                         .num_speculative_tokens = num_drafts});
    std::vector<RowResult> results;
    int64_t num_in_steps = 0, num_steps = 0;
    SequenceId next_id = 0;
    for (int round = 0; round < 40; ++round) {
      while (scheduler.num_sequences() < 12) {
        const int32_t id = static_cast<int32_t>(next_id++);
        ASSERT_TRUE(scheduler.add(sequence(id, counting(1 + id * 7 % 40, id % 3), 5 + id % 45)));
      }
      for (int i = 0; i < 10; ++i) {
        const int64_t before_schedule = num_allocations;
        const StepPlan& plan = scheduler.schedule();
        const int64_t after_schedule = num_allocations;
        results.clear();
        for (const StepRow& row : plan.rows) {
          results.push_back(answer(row, 7, row.num_draft_tokens * (row.seq_id % 2)));
        }
        const int64_t before_update = num_allocations;
        scheduler.update(plan, results);
        num_in_steps += after_schedule - before_schedule + num_allocations - before_update;
        num_steps += !plan.empty();
      }
    }
    EXPECT_EQ(num_in_steps, 0);
    EXPECT_GT(num_steps, 300);
    EXPECT_GT(scheduler.stats().num_preemptions, 10);
    EXPECT_GT(scheduler.stats().prefix_cache_hits, 0);
  }
}

}  // namespace
}  // namespace eyrie::sched
