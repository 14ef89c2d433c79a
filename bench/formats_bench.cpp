// How fast each producer's recipe encodes BF16 weights that lie in memory, on all cores: the limit
// `eyrie quantize` works against when the disk is faster (tools/quantize_at_scale.py).
//
//   formats_bench [--threads=N] [Google Benchmark's flags]
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string_view>
#include <vector>

#include "base/threads.h"
#include "formats/recipe.h"

namespace eyrie {
namespace {

using formats::Recipe;
using formats::Weight;

constexpr int64_t kOut = 2048, kIn = 7168;  // one expert's gate_proj of Kimi-K2.5

int num_threads = 0;  // 0: all cores

ThreadPool& pool() {
  static ThreadPool instance(num_threads);
  return instance;
}

// A BF16 weight as a checkpoint holds it.
struct Source {
  Buffer data{static_cast<size_t>(kOut * kIn) * sizeof(uint16_t)};
  Weight weight;

  Source() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<float> row(static_cast<size_t>(kIn));
    const size_t row_bytes = row.size() * sizeof(uint16_t);
    for (size_t r = 0; r < kOut; ++r) {
      for (float& value : row) value = normal(random);
      formats::kBF16.encode_row(row, {data.data() + r * row_bytes, row_bytes}, {});
    }
    weight.format = &formats::kBF16;
    weight.out = kOut;
    weight.in = kIn;
    weight.data = Tensor(data.data(), DType::kBF16, {kOut, kIn});
  }
};

void encode(benchmark::State& state, const Recipe& recipe) {
  static const Source source;
  const formats::WeightFormat& format = *recipe.format;
  const int64_t block = format.block_out;
  const size_t data_row =
      static_cast<size_t>(format.data_columns(kIn)) * dtype_bytes(format.data_dtype);
  const size_t scale_row =
      static_cast<size_t>(format.scale_columns(kIn)) * dtype_bytes(recipe.scale_dtype);
  std::vector<std::byte> data(static_cast<size_t>(kOut) * data_row);
  std::vector<std::byte> scales(static_cast<size_t>(format.scale_rows(kOut)) * scale_row);
  const float global =
      recipe.stored_global != nullptr ? recipe.stored_global(0.1f, DType::kBF16) : 1.0f;
  std::vector<std::vector<float>> rows(static_cast<size_t>(pool().size()),
                                       std::vector<float>(static_cast<size_t>(block * kIn)));
  for ([[maybe_unused]] auto _ : state) {
    pool().run(kOut / block, [&](int64_t index, int thread) {
      std::vector<float>& values = rows[static_cast<size_t>(thread)];
      for (int64_t r = 0; r < block; ++r) {
        const std::span<float> row(&values[static_cast<size_t>(r * kIn)], kIn);
        formats::kBF16.decode_row(source.weight, index * block + r, row);
      }
      const auto first = static_cast<size_t>(index * block), count = static_cast<size_t>(block);
      recipe.encode({.rows = values,
                     .in = kIn,
                     .data = {data.data() + first * data_row, count * data_row},
                     .scales = {scales.data() + static_cast<size_t>(index) * scale_row, scale_row},
                     .source = DType::kBF16,
                     .stored_global = global});
    });
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kOut * kIn * 2);
}

void register_all() {
  for (const Recipe& recipe : formats::all_recipes()) {
    const std::string name = fmt::format("encode/{}/{}", recipe.format->name, recipe.producer);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [&recipe](benchmark::State& state) { encode(state, recipe); })
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
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
  eyrie::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
