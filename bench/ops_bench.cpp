// Kernels of the cpu backend: GB/s of weights (or cache), operations a second, and their shares of
// what this machine can do (peaks.h), the largest of which says how far a kernel is from its roof.
// Weights larger than a cache are what a big model's decode reads: `cold` cycles through copies
// that together exceed it; `warm` is one matrix, the nano model's case, and `l2` one of half a
// megabyte. Four-bit weights meet int8 activations ("mxfp4") or floats ("mxfp4-f32").
//
//   ops_bench [--threads=N] [--benchmark_filter=linear/mxfp4] [Google Benchmark's flags]
//
// With one thread the clock is the thread's CPU time, so a busy machine still gives sound numbers.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string_view>
#include <type_traits>
#include <vector>

#include "bench/peaks.h"
#include "ops/ops.h"

namespace eyrie {
namespace {

using formats::WeightFormat;

int num_threads = 0;  // 0: all cores

struct Machine {
  ThreadPool pool{num_threads};
  Arena arena{64 << 20};
  bench::Peaks peaks = bench::measure_peaks(pool);
  ops::Ctx ctx{.table = &ops::cpu_ops(), .pool = &pool, .arena = &arena};
};

Machine& machine() {
  static Machine instance;
  return instance;
}

void report(benchmark::State& state, double bytes, double flops, bool int8 = false) {
  const bench::Peaks& peaks = machine().peaks;
  using Counter = benchmark::Counter;
  const auto rate = [&](double amount) {
    return Counter(amount, Counter::kIsIterationInvariantRate);
  };
  state.counters["GB"] = rate(bytes / 1e9);
  state.counters[int8 ? "GOP" : "GFLOP"] = rate(flops / 1e9);
  state.counters["%read"] = rate(100 * bytes / peaks.read_bytes_per_s);
  state.counters[int8 ? "%dot" : "%fma"] =
      rate(100 * flops / (int8 ? peaks.int8_ops_per_s : peaks.flops_per_s));
}

// Random bytes that decode to ordinary values in every format.
struct RandomWeight {
  Buffer data, scales;
  formats::Weight weight;

  RandomWeight(const WeightFormat& format, int64_t out, int64_t in, uint32_t seed) {
    const int64_t columns = format.data_columns(in), scale_columns = format.scale_columns(in);
    const auto bytes = static_cast<size_t>(out * columns) * dtype_bytes(format.data_dtype);
    data = Buffer(bytes);
    std::minstd_rand generator(seed);
    if (&format == &formats::kBF16) {
      for (size_t i = 0; i < bytes / 2; ++i) {
        data.as<bf16>()[i] = to_bf16(static_cast<float>(generator() % 2001) * 1e-4f - 0.1f);
      }
    } else {
      for (size_t i = 0; i < bytes; ++i) data.as<uint8_t>()[i] = generator() % 256 & 0xf7;
    }
    weight = {.format = &format,
              .out = out,
              .in = in,
              .data = Tensor(data.data(), format.data_dtype, {out, columns}),
              .scales = {}};
    if (scale_columns > 0) {
      const int64_t scale_rows = format.scale_rows(out), count = scale_rows * scale_columns;
      scales = Buffer(static_cast<size_t>(count) * dtype_bytes(format.scale_dtype));
      if (format.scale_dtype == DType::kF32) {
        std::fill_n(scales.as<float>(), count, 0.01f);
      } else if (format.scale_dtype == DType::kBF16) {
        std::fill_n(scales.as<bf16>(), count, to_bf16(0.01f));
      } else {
        std::fill_n(scales.as<uint8_t>(), count, uint8_t{120});
      }
      weight.scales = Tensor(scales.data(), format.scale_dtype, {scale_rows, scale_columns});
    }
  }
};

std::vector<float> random_floats(int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  std::minstd_rand generator(7);
  for (float& v : x) v = static_cast<float>(generator() % 2001) * 1e-3f - 1.0f;
  return x;
}

bool meets_int8(const WeightFormat& format, ops::ActivationQuantization activation) {
  return ops::activation_rounding(format, activation) == formats::ActivationRounding::kInt8;
}

void linear(benchmark::State& state, const WeightFormat* format,
            ops::ActivationQuantization activation, int64_t out, int64_t in, bool cold) {
  const ops::Ctx& ctx = machine().ctx;
  const int64_t rows = state.range(0);
  const RandomWeight source(*format, out, in, 1);
  constexpr size_t kBeyondCaches = 192 << 20;
  std::vector<ops::PreparedWeight> weights;
  size_t total = 0;
  do {
    weights.push_back(ops::prepare(ctx, {&source.weight, 1}, activation));
    total += weights.back().bytes();
  } while (cold && total < kBeyondCaches);
  const std::vector<float> x = random_floats(rows * in);
  std::vector<float> y(static_cast<size_t>(rows * out));
  size_t next = 0;
  for (auto _ : state) {
    ops::linear(ctx, {.out = Tensor::of(y.data(), {rows, out}),
                      .x = Tensor::of(x.data(), {rows, in}),
                      .weight = &weights[next]});
    next = (next + 1) % weights.size();
  }
  report(state, static_cast<double>(weights[0].bytes()), 2.0 * static_cast<double>(rows * in * out),
         meets_int8(*format, activation));
}

// Cold: layers that together exceed the caches take turns.
void experts(benchmark::State& state, const WeightFormat* format,
             ops::ActivationQuantization activation, int64_t hidden, int64_t width, int num_experts,
             int64_t top_k, int num_layers) {
  const ops::Ctx& ctx = machine().ctx;
  const int64_t rows = state.range(0);
  const RandomWeight gate_up_source(*format, 2 * width, hidden, 1);
  const RandomWeight down_source(*format, hidden, width, 2);
  std::vector<ops::PreparedWeight> gate_up, down;
  for (int e = 0; e < num_experts * num_layers; ++e) {
    gate_up.push_back(ops::prepare(ctx, {&gate_up_source.weight, 1}, activation));
    down.push_back(ops::prepare(ctx, {&down_source.weight, 1}, activation));
  }
  const std::vector<float> x = random_floats(rows * hidden), w = random_floats(rows * top_k);
  std::vector<float> y(x.size());
  std::vector<int32_t> ids;
  std::vector<bool> used(static_cast<size_t>(num_experts));
  std::minstd_rand generator(3);
  for (int64_t t = 0; t < rows; ++t) {
    const auto first = static_cast<int32_t>(generator());
    for (int64_t s = 0; s < top_k; ++s) {
      ids.push_back(static_cast<int32_t>((first + s * 5) % num_experts));
      used[static_cast<size_t>(ids.back())] = true;
    }
  }
  size_t layer = 0;
  const auto of_layer = [&](const std::vector<ops::PreparedWeight>& all) {
    const auto count = static_cast<size_t>(num_experts);
    return std::span(all).subspan(layer * count, count);
  };
  for (auto _ : state) {
    layer = (layer + 1) % static_cast<size_t>(num_layers);
    ops::experts(ctx, {.out = Tensor::of(y.data(), {rows, hidden}),
                       .x = Tensor::of(x.data(), {rows, hidden}),
                       .ids = Tensor::of(ids.data(), {rows, top_k}),
                       .weights = Tensor::of(w.data(), {rows, top_k}),
                       .gate_up = of_layer(gate_up),
                       .down = of_layer(down)});
  }
  const auto active = static_cast<double>(std::count(used.begin(), used.end(), true));
  report(state, active * static_cast<double>(gate_up[0].bytes() + down[0].bytes()),
         6.0 * static_cast<double>(rows * top_k * hidden * width), meets_int8(*format, activation));
}

// range: sequences, rows of each, context length.
template <typename E>  // bf16, or uint8_t: E4M3 codes
void mla(benchmark::State& state, int64_t heads, int64_t latent, int64_t rope) {
  const ops::Ctx& ctx = machine().ctx;
  const int64_t num_sequences = state.range(0), rows = state.range(1), context = state.range(2);
  constexpr int32_t kBlock = 32;
  const int64_t blocks = (context + kBlock - 1) / kBlock, width = latent + rope;
  constexpr bool kFp8 = std::is_same_v<E, uint8_t>;
  const int64_t slots = num_sequences * blocks * kBlock;
  std::vector<E> cache(static_cast<size_t>(slots * width));
  std::minstd_rand generator(1);
  for (E& v : cache) {
    const float x = static_cast<float>(generator() % 2001) * 1e-3f - 1.0f;
    if constexpr (kFp8) {
      v = formats::encode_fp8_e4m3(x);
    } else {
      v = to_bf16(x);
    }
  }
  const Tensor data(cache.data(), kFp8 ? DType::kF8E4M3 : DType::kBF16, {slots, width});
  std::vector<std::vector<int32_t>> tables;
  std::vector<ops::SequenceRows> sequences;
  for (int64_t s = 0; s < num_sequences; ++s) {
    tables.emplace_back();
    for (int64_t b = 0; b < blocks; ++b) {
      tables.back().push_back(static_cast<int32_t>(b * num_sequences + s));
    }
  }
  for (int64_t s = 0; s < num_sequences; ++s) {
    sequences.push_back({.first_row = static_cast<int32_t>(s * rows),
                         .num_rows = static_cast<int32_t>(rows),
                         .first_position = static_cast<int32_t>(context - rows),
                         .block_table = tables[static_cast<size_t>(s)].data()});
  }
  const int64_t total = num_sequences * rows;
  const std::vector<float> q = random_floats(total * heads * latent);
  const std::vector<float> q_rope = random_floats(total * heads * rope);
  std::vector<float> out(q.size());
  for (auto _ : state) {
    ops::mla_attention(ctx, {.out = Tensor::of(out.data(), {total, heads, latent}),
                             .q_latent = Tensor::of(q.data(), {total, heads, latent}),
                             .q_rope = Tensor::of(q_rope.data(), {total, heads, rope}),
                             .cache = {.data = data, .block_size = kBlock},
                             .sequences = sequences,
                             .scale = 0.1f});
  }
  const double positions = static_cast<double>(rows) * static_cast<double>(context) -
                           static_cast<double>(rows * (rows - 1)) / 2;
  report(state, static_cast<double>(num_sequences * context * width) * sizeof(E),
         2.0 * static_cast<double>(num_sequences) * positions *
             static_cast<double>(heads * (width + latent)));
}

void prepare(benchmark::State& state, const WeightFormat* format,
             ops::ActivationQuantization activation) {
  const RandomWeight source(*format, 1024, 2048, 1);
  for (auto _ : state) {
    benchmark::DoNotOptimize(ops::prepare(machine().ctx, {&source.weight, 1}, activation));
  }
  report(state, static_cast<double>(formats::weight_bytes(source.weight)), 0);
}

void in_time(benchmark::internal::Benchmark* b) {
  b->Unit(benchmark::kMicrosecond);
  if (machine().pool.size() > 1) b->UseRealTime();
}

void register_weights(const WeightFormat* format, ops::ActivationQuantization activation,
                      const std::string& name) {
  const auto add = [&](const char* temperature, int64_t out, int64_t in, bool cold) {
    auto* b = benchmark::RegisterBenchmark(
        fmt::format("linear/{}/{}/{}x{}/T", name, temperature, out, in).c_str(),
        [=](benchmark::State& state) { linear(state, format, activation, out, in, cold); });
    for (int64_t rows : {1, 2, 4, 7, 16, 64, 256}) b->Arg(rows);
    in_time(b);
  };
  add("warm", 768, 256, false);
  add("l2", 512, 2048, false);
  add("cold", 2048, 7168, true);
  for (const auto& [temperature, layers] : {std::pair{"warm", 1}, std::pair{"cold", 32}}) {
    auto* b =
        benchmark::RegisterBenchmark(fmt::format("experts/{}/{}/nano/T", name, temperature).c_str(),
                                     [=, n = layers](benchmark::State& state) {
                                       experts(state, format, activation, 256, 96, 16, 4, n);
                                     });
    for (int64_t rows : {1, 4, 7, 28, 64, 256}) b->Arg(rows);
    in_time(b);
  }
  auto* mini = benchmark::RegisterBenchmark(
      fmt::format("experts/{}/cold/mini/T", name).c_str(),
      [=](benchmark::State& state) { experts(state, format, activation, 1024, 512, 64, 8, 4); });
  for (int64_t rows : {1, 7, 16, 64, 256}) mini->Arg(rows);
  in_time(mini);
  in_time(benchmark::RegisterBenchmark(
      fmt::format("prepare/{}", name).c_str(),
      [=](benchmark::State& state) { prepare(state, format, activation); }));
}

// What handing tasks out and waiting for the last costs: a task a thread, each of five
// microseconds, so that none is done by another thread; what a run takes beyond them is the pool's.
// (Empty tasks the caller does itself, in less time than a worker needs to hear of them.)
void barrier(benchmark::State& state) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kTask = std::chrono::microseconds(5);
  ThreadPool& pool = machine().pool;
  for (auto _ : state) {
    const auto begin = Clock::now();
    pool.run(pool.size(), [&](int64_t, int) {
      const auto end = Clock::now() + kTask;
      while (Clock::now() < end) {
      }
    });
    state.SetIterationTime(std::chrono::duration<double>(Clock::now() - begin - kTask).count());
  }
}

void register_all() {
  using ops::ActivationQuantization;
  benchmark::RegisterBenchmark("pool/barrier", barrier)
      ->Unit(benchmark::kMicrosecond)
      ->UseManualTime();
  for (const WeightFormat* format :
       {&formats::kBF16, &formats::kF16, &formats::kFp8, &formats::kFp8Block, &formats::kMxfp4,
        &formats::kNvfp4, &formats::kInt4G32}) {
    register_weights(format, ActivationQuantization::kAuto, std::string(format->name));
    if (meets_int8(*format, ActivationQuantization::kAuto)) {
      register_weights(format, ActivationQuantization::kOff, fmt::format("{}-f32", format->name));
    }
  }
  for (const auto& [name, heads, latent, rope] :
       {std::tuple{"nano", 4, 128, 32}, std::tuple{"kimi", 64, 512, 64}}) {
    for (const bool fp8 : {false, true}) {
      auto* b = benchmark::RegisterBenchmark(
          fmt::format("mla/{}/{}/sequences/rows/context", fp8 ? "fp8" : "bf16", name).c_str(),
          [=, h = heads, l = latent, r = rope](benchmark::State& state) {
            return fp8 ? mla<uint8_t>(state, h, l, r) : mla<bf16>(state, h, l, r);
          });
      b->Args({1, 1, 512})->Args({4, 1, 512})->Args({4, 7, 512})->Args({1, 256, 512});
      in_time(b);
    }
  }
}

}  // namespace
}  // namespace eyrie

int main(int argc, char** argv) {
  constexpr std::string_view kThreads = "--threads=";
  if (argc > 1 && std::string_view(argv[1]).starts_with(kThreads)) {
    eyrie::num_threads = std::atoi(argv[1] + kThreads.size());
    std::rotate(argv + 1, argv + 2, argv + argc);
    --argc;
  }
  const eyrie::bench::Peaks& peaks = eyrie::machine().peaks;
  benchmark::AddCustomContext("isa", std::string(eyrie::ops::cpu_isa()));
  benchmark::AddCustomContext("threads", std::to_string(eyrie::machine().pool.size()));
  benchmark::AddCustomContext("peak read GB/s",
                              fmt::format("{:.1f}", peaks.read_bytes_per_s / 1e9));
  benchmark::AddCustomContext("peak GFLOP/s", fmt::format("{:.0f}", peaks.flops_per_s / 1e9));
  benchmark::AddCustomContext("peak int8 GOP/s", fmt::format("{:.0f}", peaks.int8_ops_per_s / 1e9));
  eyrie::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
