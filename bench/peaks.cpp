#include "bench/peaks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/peaks.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <ctime>

#include "ops/cpu/int8-inl.h"
#include "ops/cpu/isa.h"
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

// Bytes as the kernels of four-bit weights multiply them: weights in registers, activations from
// the first cache. Returns operations done.
template <bool kVnni>
double int8_dots(int64_t rounds, float* sink) {
  namespace cpu = eyrie::ops::cpu::HWY_NAMESPACE;
  constexpr int kChains = 8, kSteps = 4;
  alignas(64) std::byte x[kChains][4 * kSteps] = {};
  cpu::VB w[kSteps];
  cpu::VI sums[kChains];
  for (int i = 0; i < kSteps; ++i) w[i] = hn::Set(cpu::db, static_cast<uint8_t>(i + 1));
  for (int i = 0; i < kChains; ++i) sums[i] = hn::Zero(cpu::di);
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" ::"r"(&x) : "memory");  // x is read again
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) {
      sums[i] = cpu::dot_steps<kVnni, kSteps, kSteps>(sums[i], w, x[i]);
    }
  }
  for (int i = 1; i < kChains; ++i) sums[0] = hn::Add(sums[0], sums[i]);
  *sink += static_cast<float>(hn::GetLane(sums[0]));
  return 2.0 * static_cast<double>(rounds) * kChains * kSteps * 4 * cpu::kLanes;
}

double int8_dots_here(int64_t rounds, float* sink) {
#if HWY_TARGET == HWY_AVX2
  if (eyrie::ops::cpu::uses_avx_vnni()) return int8_dots<true>(rounds, sink);
#endif
  return int8_dots<false>(rounds, sink);
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
HWY_EXPORT(int8_dots_here);
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
  ops::cpu::init_isa();
  const int threads = pool.size();
  struct alignas(64) Sink {
    float f = 0;
    uint32_t u = 0;
  };
  std::vector<Sink> sinks(static_cast<size_t>(threads));
  // work(sink) does so many operations.
  const auto rate = [&](const auto& work) {
    double operations = 0;
    const double elapsed = best_seconds(threads, [&] {
      std::vector<double> done(static_cast<size_t>(threads));
      pool.run(threads, [&](int64_t i, int) {
        const auto s = static_cast<size_t>(i);
        done[s] = work(&sinks[s].f);
      });
      operations = 0;
      for (double d : done) operations += d;
    });
    return operations / elapsed;
  };
  Peaks peaks;
  peaks.flops_per_s =
      rate([](float* sink) { return HWY_DYNAMIC_DISPATCH(multiply_adds)(kRounds, sink); });
  peaks.int8_ops_per_s =
      rate([](float* sink) { return HWY_DYNAMIC_DISPATCH(int8_dots_here)(kRounds, sink); });

  const Buffer memory = Buffer::for_weights(static_cast<size_t>(kBytes));  // as weights lie
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
