#include "base/threads.h"

#include <sched.h>

#include <chrono>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace eyrie {
namespace {

// How long a worker spins before it sleeps: long enough to bridge the gap between two ops of one
// step, short enough not to show up as load.
constexpr auto kSpinTime = std::chrono::microseconds(50);

void cpu_relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    const int count = CPU_COUNT(&set);
    if (count > 0) return count;
  }
  const unsigned count = std::thread::hardware_concurrency();
  return count == 0 ? 1 : static_cast<int>(count);
}

ThreadPool::ThreadPool(int num_threads) {
  if (num_threads <= 0) num_threads = available_cores();
  workers_.reserve(static_cast<size_t>(num_threads - 1));
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { worker_loop(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(int64_t num_tasks, void* context, Trampoline trampoline) {
  if (num_tasks <= 0) return;
  if (workers_.empty() || num_tasks == 1) {
    for (int64_t i = 0; i < num_tasks; ++i) trampoline(context, i, 0);
    return;
  }
  DCHECK(busy_.load() == 0);
  num_tasks_ = num_tasks;
  context_ = context;
  trampoline_ = trampoline;
  next_task_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1);  // publishes the work (sequentially consistent with sleepers_)
  if (sleepers_.load() > 0) {
    { std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  work(/*thread_idx=*/0);
  // On a machine with fewer free cores than threads a pure spin would wait out a time slice.
  for (int spins = 0; busy_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < 4096) {
      cpu_relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::work(int thread_idx) {
  for (;;) {
    const int64_t task_idx = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task_idx >= num_tasks_) return;
    trampoline_(context_, task_idx, thread_idx);
  }
}

void ThreadPool::worker_loop(int thread_idx) {
  uint64_t seen = 0;
  for (;;) {
    const auto spin_until = std::chrono::steady_clock::now() + kSpinTime;
    while (generation_.load(std::memory_order_acquire) == seen) {
      cpu_relax();
      if (std::chrono::steady_clock::now() < spin_until) continue;
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      sleepers_.fetch_sub(1);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    work(thread_idx);
    busy_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace eyrie
