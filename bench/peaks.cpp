#include "bench/peaks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/peaks.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <ctime>

#include "tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace eyrie::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Twelve chains hide the latency of a multiply-add on every machine we know. Returns flops done.
double multiply_adds(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  constexpr int kChains = 12;
  hn::Vec<decltype(d)> acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = hn::Set(d, static_cast<float>(i));
  const auto a = hn::Set(d, 0.999f), b = hn::Set(d, 0.001f);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) acc[i] = hn::MulAdd(acc[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) acc[0] = hn::Add(acc[0], acc[i]);
  *sink += hn::GetLane(acc[0]);
  return 2.0 * static_cast<double>(rounds) * kChains * static_cast<double>(hn::Lanes(d));
}

void read_all(const uint32_t* words, int64_t count, uint32_t* sink) {
  const hn::ScalableTag<uint32_t> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto x0 = hn::Zero(d), x1 = hn::Zero(d), x2 = hn::Zero(d), x3 = hn::Zero(d);
  for (int64_t i = 0; i + 4 * lanes <= count; i += 4 * lanes) {
    x0 = hn::Xor(x0, hn::Load(d, words + i));
    x1 = hn::Xor(x1, hn::Load(d, words + i + lanes));
    x2 = hn::Xor(x2, hn::Load(d, words + i + 2 * lanes));
    x3 = hn::Xor(x3, hn::Load(d, words + i + 3 * lanes));
  }
  *sink += hn::GetLane(hn::Xor(hn::Xor(x0, x1), hn::Xor(x2, x3)));
}

}  // namespace HWY_NAMESPACE
}  // namespace eyrie::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eyrie::bench {
HWY_EXPORT(multiply_adds);
HWY_EXPORT(read_all);

namespace {

// CPU time when one thread works, so that a busy machine does not hide the peak.
double seconds(int threads) {
  timespec t{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

template <typename Fn>
double best_seconds(int threads, const Fn& fn) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double start = seconds(threads);
    fn();
    best = std::min(best, seconds(threads) - start);
  }
  return best;
}

}  // namespace

Peaks measure_peaks(ThreadPool& pool) {
  constexpr int64_t kBytes = 256 << 20, kRounds = 2'000'000;
  const int threads = pool.size();
  struct alignas(64) Sink {
    float f = 0;
    uint32_t u = 0;
  };
  std::vector<Sink> sinks(static_cast<size_t>(threads));
  Peaks peaks;
  double flops = 0;
  const double flop_seconds = best_seconds(threads, [&] {
    std::vector<double> done(static_cast<size_t>(threads));
    pool.run(threads, [&](int64_t i, int) {
      const auto s = static_cast<size_t>(i);
      done[s] = HWY_DYNAMIC_DISPATCH(multiply_adds)(kRounds, &sinks[s].f);
    });
    flops = 0;
    for (double d : done) flops += d;
  });
  peaks.flops_per_s = flops / flop_seconds;

  Buffer memory(static_cast<size_t>(kBytes));
  std::fill_n(memory.as<uint32_t>(), kBytes / 4, 1u);
  const double read_seconds = best_seconds(threads, [&] {
    pool.run(threads, [&](int64_t i, int) {
      const int64_t share = kBytes / 4 / threads / 64 * 64;
      HWY_DYNAMIC_DISPATCH(read_all)
      (memory.as<uint32_t>() + i * share, share, &sinks[static_cast<size_t>(i)].u);
    });
  });
  peaks.read_bytes_per_s = static_cast<double>(kBytes) / read_seconds;
  return peaks;
}

}  // namespace eyrie::bench
#endif
