// EYRIE_GPU_TRACE=N (compat.h).
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include <fmt/format.h>

#include "ops/gpu/compat.h"

namespace eyrie::ops::gpu {
namespace {

struct Launch {
  const char* what;
  std::array<int64_t, 3> shape;
  double us;
};

// Of the process; shown when it ends.
class Trace {
 public:
  explicit Trace(size_t num_kept) : num_kept_(num_kept) {
    check_runtime(GPU(EventCreate)(&begin_), "a trace's event");
    check_runtime(GPU(EventCreate)(&end_), "a trace's event");
  }
  ~Trace() { show(); }

  void begin(void* stream) {
    check_runtime(GPU(EventRecord)(begin_, static_cast<GPU(Stream_t)>(stream)), "a trace's event");
  }
  void end(const char* what, const int64_t (&shape)[3], void* stream) {
    float ms = 0;
    check_runtime(GPU(EventRecord)(end_, static_cast<GPU(Stream_t)>(stream)), "a trace's event");
    check_runtime(GPU(EventSynchronize)(end_), what);
    check_runtime(GPU(EventElapsedTime)(&ms, begin_, end_), "a trace's event");
    launches_.push_back({what, {shape[0], shape[1], shape[2]}, 1e3 * static_cast<double>(ms)});
    if (launches_.size() > num_kept_) launches_.pop_front();
  }

 private:
  void show() const {
    struct Sum {
      double us = 0;
      int count = 0;
    };
    std::map<std::pair<std::string, std::array<int64_t, 3>>, Sum> sums;
    double total = 0;
    for (const Launch& launch : launches_) {
      Sum& sum = sums[{launch.what, launch.shape}];
      sum.us += launch.us;
      ++sum.count;
      total += launch.us;
    }
    std::vector<std::pair<double, std::string>> lines;
    for (const auto& [key, sum] : sums) {
      const auto& [x, y, z] = key.second;
      lines.emplace_back(sum.us, fmt::format("{:9.1f} {:5} {:8.1f}  {} [{}, {}, {}]", sum.us,
                                             sum.count, sum.us / sum.count, key.first, x, y, z));
    }
    std::sort(lines.rbegin(), lines.rend());
    fmt::print(stderr, "\nthe last {} launches, {:.0f} us\n       us times  us each  what\n",
               launches_.size(), total);
    for (const auto& [us, line] : lines) fmt::print(stderr, "{}\n", line);
  }

  size_t num_kept_;
  GPU(Event_t) begin_ = nullptr, end_ = nullptr;
  std::deque<Launch> launches_;
};

Trace& trace() {
  static Trace instance(static_cast<size_t>(std::atoll(std::getenv("EYRIE_GPU_TRACE"))));
  return instance;
}

}  // namespace

bool LaunchTrace::is_on() {
  static const bool on = std::getenv("EYRIE_GPU_TRACE") != nullptr;
  return on;
}

void LaunchTrace::begin() { trace().begin(stream_); }
void LaunchTrace::end() { trace().end(what_, shape_, stream_); }

}  // namespace eyrie::ops::gpu
