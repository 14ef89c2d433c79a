// A fork-join pool: one caller and size()-1 workers run the same function over an index range.
// The caller's thread takes part; run() returns when every index is done. Between runs workers spin
// for a short while, then sleep, so an idle server uses no CPU. One run at a time (the pool belongs
// to one engine or rank thread).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace eyrie {

class ThreadPool {
 public:
  // num_threads counts the caller; 0 means all cores this process may use.
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(task_idx, thread_idx) for task_idx in [0, num_tasks). Tasks are handed out one by one,
  // so they may differ in length; results must not depend on which thread ran what. No allocation.
  template <typename Fn>
  void run(int64_t num_tasks, Fn&& fn) {
    using F = std::remove_reference_t<Fn>;
    run_erased(num_tasks, const_cast<void*>(static_cast<const void*>(&fn)),
               [](void* context, int64_t task_idx, int thread_idx) {
                 (*static_cast<F*>(context))(task_idx, thread_idx);
               });
  }

 private:
  using Trampoline = void (*)(void*, int64_t, int);
  void run_erased(int64_t num_tasks, void* context, Trampoline trampoline);
  void worker_loop(int thread_idx);
  bool work(int thread_idx);  // takes tasks until there are none; true when it ran one

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  // Upper half: which run this is. Lower half: tasks of it that nobody has begun. A worker that is
  // late finds the lower half 0 and touches nothing else, so run() never waits for it.
  std::atomic<uint64_t> tickets_{0};
  std::atomic<int64_t> done_{0};  // tasks of this run that have ended
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  // Written while no ticket is out, read by holders of a ticket.
  int64_t num_tasks_ = 0;
  void* context_ = nullptr;
  Trampoline trampoline_ = nullptr;
};

// Cores this process may use (affinity and cgroup-aware where the system tells).
int available_cores();

}  // namespace eyrie
