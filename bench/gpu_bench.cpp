// Kernels of the gpu backend at Kimi-K2.5's sizes: microseconds a call, bytes and operations a
// second, and the share of the device's measured copy rate.
//
//   gpu_bench [part of a name]
#include "bench/gpu_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "base/human.h"

namespace eyrie::bench {

GpuBench::GpuBench(std::string_view filter)
    : filter_(filter),
      pool_(4),
      arena_(Buffer(size_t{2} << 30, ops::gpu::device_memory())),
      ctx_{.table = &ops::gpu_ops(), .pool = &pool_, .arena = &arena_, .stream = device_.stream()} {
  copy_bytes_per_s_ = measure_copy_rate();
  const ops::gpu::DeviceInfo& info = device_.info();
  fmt::print("{}: {} multiprocessors, {} of memory, copies at {:.0f} GB/s\n", info.name,
             info.num_multiprocessors, human_bytes(static_cast<double>(info.total_bytes)),
             copy_bytes_per_s_ / 1e9);
}

double GpuBench::measure_copy_rate() {
  constexpr size_t kBytes = size_t{4} << 30;
  const Buffer from(kBytes, ops::gpu::device_memory()), to(kBytes, ops::gpu::device_memory());
  ops::gpu::fill_bytes(from.data(), 0x5a, kBytes, ctx_.stream);
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    ops::gpu::Event begin, end;
    begin.record(ctx_.stream);
    ops::gpu::copy_on_device(to.data(), from.data(), kBytes, ctx_.stream);
    end.record(ctx_.stream);
    end.synchronize();
    best = std::max(best, 2.0 * kBytes / (end.ms_since(begin) / 1e3));
  }
  return best;
}

int GpuBench::sets_beyond_cache(double bytes) const {
  const double cache = 3.0 * static_cast<double>(device_.info().l2_bytes);
  return std::clamp(static_cast<int>(cache / std::max(bytes, 1.0)) + 1, 1, 64);
}

void GpuBench::time(const std::string& name, double bytes, double flops, int num_sets,
                    const std::function<void(int)>& enqueue) {
  constexpr int kReplays = 11;
  const int launches = std::max(num_sets, 24);
  enqueue(0);  // what is made at the first call is made outside the recording
  ops::gpu::check_device();
  const auto graph = ops::gpu::Graph::record(ctx_.stream, [&] {
    for (int i = 0; i < launches; ++i) enqueue(i % num_sets);
  });
  std::vector<double> us;
  for (int i = 0; i < kReplays + 2; ++i) {
    ops::gpu::Event begin, end;
    begin.record(ctx_.stream);
    graph.launch(ctx_.stream);
    end.record(ctx_.stream);
    end.synchronize();
    if (i >= 2) us.push_back(end.ms_since(begin) * 1e3 / launches);
  }
  std::nth_element(us.begin(), us.begin() + kReplays / 2, us.end());
  rows_.push_back({name, us[kReplays / 2], bytes, flops});
}

void GpuBench::print() const {
  std::vector<std::vector<std::string>> table{{"kernel", "us", "GB/s", "of copy", "TFLOP/s"}};
  for (const Row& row : rows_) {
    const double rate = row.bytes / (row.us * 1e-6);
    table.push_back({row.name, fmt::format("{:.2f}", row.us), fmt::format("{:.0f}", rate / 1e9),
                     fmt::format("{:.0f} %", 100 * rate / copy_bytes_per_s_),
                     row.flops > 0 ? fmt::format("{:.1f}", row.flops / (row.us * 1e-6) / 1e12)
                                   : std::string("")});
  }
  fmt::print("{}\n", format_table(table));
}

namespace {

std::vector<float> normal_values(int64_t count, uint32_t seed, float deviation) {
  // A million distinct values, repeated: drawing gigabytes takes longer than all of the timing.
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  const size_t distinct = std::min<size_t>(values.size(), 1'000'003);
  for (size_t i = 0; i < distinct; ++i) values[i] = normal(generator);
  for (size_t i = distinct; i < values.size(); ++i) values[i] = values[i - distinct];
  return values;
}

}  // namespace

Buffer GpuBench::random_f32(int64_t count, uint32_t seed, float deviation) {
  const std::vector<float> values = normal_values(count, seed, deviation);
  Buffer buffer(values.size() * sizeof(float), ops::gpu::device_memory());
  ops::gpu::upload(buffer.data(), values.data(), buffer.bytes(), ctx_.stream);
  return buffer;
}

Buffer GpuBench::random_bf16(int64_t count, uint32_t seed, float deviation) {
  std::vector<bf16> values;
  values.reserve(static_cast<size_t>(count));
  for (const float x : normal_values(count, seed, deviation)) values.push_back(to_bf16(x));
  Buffer buffer(values.size() * sizeof(bf16), ops::gpu::device_memory());
  ops::gpu::upload(buffer.data(), values.data(), buffer.bytes(), ctx_.stream);
  return buffer;
}

}  // namespace eyrie::bench

int main(int argc, char** argv) {
  try {
    eyrie::bench::GpuBench bench(argc > 1 ? argv[1] : "");
    eyrie::bench::bench_plain_ops(bench);
    eyrie::bench::bench_linears(bench);
    bench.print();
    return 0;
  } catch (const eyrie::Error& error) {
    fmt::print(stderr, "gpu_bench: {}\n", error.what());
    return 1;
  }
}
