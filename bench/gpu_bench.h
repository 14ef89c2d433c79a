// Timing of what is enqueued on a GPU: a recorded graph of many launches that rotate among sets of
// inputs (together larger than the cache, where memory is what is measured), replayed; the median
// of the replays. Shares are of the copy rate measured at start.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/threads.h"
#include "ops/gpu/backend.h"
#include "ops/gpu/device.h"

namespace eyrie::bench {

class GpuBench {
 public:
  explicit GpuBench(std::string_view filter);

  const ops::Ctx& ctx() const { return ctx_; }
  bool wants(std::string_view name) const { return name.find(filter_) != std::string_view::npos; }

  // Times enqueue(set) for set = 0 … num_sets - 1, 0, 1, …; bytes and flops are of one call.
  void time(const std::string& name, double bytes, double flops, int num_sets,
            const std::function<void(int set)>& enqueue);
  void print() const;

  // Device memory with random bfloat16 values of a normal distribution (the same for a seed).
  Buffer random_bf16(int64_t count, uint32_t seed, float deviation = 1.0F);
  Buffer random_f32(int64_t count, uint32_t seed, float deviation = 1.0F);
  // So many sets of `bytes` that they do not fit the cache; at most 64.
  int sets_beyond_cache(double bytes) const;

 private:
  struct Row {
    std::string name;
    double us, bytes, flops;
  };
  double measure_copy_rate();

  std::string filter_;
  ops::gpu::GpuDevice device_;
  ThreadPool pool_;
  Arena arena_;
  ops::Ctx ctx_;
  double copy_bytes_per_s_ = 0;
  std::vector<Row> rows_;
};

void bench_plain_ops(GpuBench& bench);
void bench_linears(GpuBench& bench);

}  // namespace eyrie::bench
