#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace eyrie {
namespace {

// How long a worker spins before it sleeps: long enough to bridge the gap between two ops of one
// step, short enough not to show up as load.
constexpr auto kSpinTime = std::chrono::microseconds(50);
constexpr int kSpinsPerClockRead = 32;

void cpu_relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

constexpr uint64_t kCountMask = 0xffffffffu;

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = 0;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) count = CPU_COUNT(&set);
  if (count <= 0) count = static_cast<int>(std::thread::hardware_concurrency());
  // A container's quota (cgroup v2): "max 100000", or microseconds of CPU time per period.
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  int64_t quota = 0, period = 0;
  if (quota_file >> quota >> period && quota > 0 && period > 0) {
    count = std::min(count, static_cast<int>((quota + period - 1) / period));
  }
  return std::max(count, 1);
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
  CHECK_LE(num_tasks, int64_t{kCountMask});
  DCHECK((tickets_.load() & kCountMask) == 0, "one run at a time");
  num_tasks_ = num_tasks;
  context_ = context;
  trampoline_ = trampoline;
  done_.store(0, std::memory_order_relaxed);
  const uint64_t generation =
      (tickets_.load(std::memory_order_relaxed) & ~kCountMask) + (kCountMask + 1);
  // Publishes the work. Sequentially consistent with sleepers_: either a worker on its way to sleep
  // sees the tickets, or we see the worker.
  tickets_.store(generation | static_cast<uint64_t>(num_tasks));
  int sleepers = sleepers_.load();
  if (sleepers > 0) {
    { std::lock_guard lock(mutex_); }  // a worker between its check and its wait holds this
    if (num_tasks - 1 >= sleepers) {
      wake_.notify_all();
    } else {
      for (int64_t i = 0; i < num_tasks - 1; ++i) wake_.notify_one();
    }
  }
  work(/*thread_idx=*/0);
  // Only tasks that a worker has begun are waited for. On a machine with fewer free cores than
  // threads a pure spin would wait out a time slice.
  for (int spins = 0; done_.load(std::memory_order_acquire) != num_tasks; ++spins) {
    if (spins < 4096) {
      cpu_relax();
    } else {
      std::this_thread::yield();
    }
  }
}

bool ThreadPool::work(int thread_idx) {
  bool worked = false;
  uint64_t tickets = tickets_.load(std::memory_order_acquire);
  while ((tickets & kCountMask) != 0) {
    if (!tickets_.compare_exchange_weak(tickets, tickets - 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
      continue;
    }
    // Holding a ticket keeps run() from returning, so the fields below stay those of this run.
    const int64_t task_idx = num_tasks_ - static_cast<int64_t>(tickets & kCountMask);
    trampoline_(context_, task_idx, thread_idx);
    done_.fetch_add(1, std::memory_order_acq_rel);
    worked = true;
    tickets = tickets_.load(std::memory_order_acquire);
  }
  return worked;
}

void ThreadPool::worker_loop(int thread_idx) {
  auto spin_until = std::chrono::steady_clock::now() + kSpinTime;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (work(thread_idx)) {
      spin_until = std::chrono::steady_clock::now() + kSpinTime;
      continue;
    }
    for (int i = 0; i < kSpinsPerClockRead; ++i) {
      if ((tickets_.load(std::memory_order_relaxed) & kCountMask) != 0) break;
      cpu_relax();
    }
    if (std::chrono::steady_clock::now() < spin_until) continue;
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return (tickets_.load() & kCountMask) != 0 || stop_.load(); });
    sleepers_.fetch_sub(1);
    lock.unlock();
    spin_until = std::chrono::steady_clock::now() + kSpinTime;
  }
}

}  // namespace eyrie
