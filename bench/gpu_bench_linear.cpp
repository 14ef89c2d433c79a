#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "bench/gpu_bench.h"
#include "formats/weight.h"
#include "ops/gpu/cublaslt.h"

// Linear layers and experts at Kimi-K2.5's sizes: what a decode step reads. Weights are random
// bytes that are valid codes; every matrix has memory of its own.
namespace eyrie::bench {
namespace {

constexpr int64_t kHidden = 7168, kWidth = 2048, kNumExperts = 384, kTopK = 8;

// Bytes of one encoded matrix on the host; all device copies are made from it.
struct HostWeight {
  std::vector<std::byte> data, scales;
  formats::Weight weight;

  HostWeight(const formats::WeightFormat& format, int64_t out, int64_t in) {
    std::mt19937 generator(1);
    data.resize(static_cast<size_t>(out * format.data_columns(in)) *
                dtype_bytes(format.data_dtype));
    for (std::byte& b : data)
      b = static_cast<std::byte>(generator() & 0xbfU);  // no NaN, no big bf16
    weight = {.format = &format,
              .out = out,
              .in = in,
              .data = Tensor(data.data(), format.data_dtype, {out, format.data_columns(in)}),
              .scales = {}};
    if (format.block_in == 0) return;
    const int64_t rows = format.scale_rows(out), columns = format.scale_columns(in);
    scales.resize(static_cast<size_t>(rows * columns) * dtype_bytes(format.scale_dtype));
    weight.scales = Tensor(scales.data(), format.scale_dtype, {rows, columns});
    const auto count = static_cast<size_t>(rows * columns);
    for (size_t i = 0; i < count; ++i) {
      if (format.scale_dtype == DType::kF32) {
        reinterpret_cast<float*>(scales.data())[i] = 1e-3F;
      } else if (format.scale_dtype == DType::kBF16) {
        reinterpret_cast<bf16*>(scales.data())[i] = to_bf16(1e-3F);
      } else {
        scales[i] = std::byte{format.block_in == 16 ? uint8_t{0x38} : uint8_t{118}};
      }
    }
  }
};

void bench_matrix(GpuBench& bench, const formats::WeightFormat& format, int64_t out, int64_t in,
                  DType out_type) {
  const std::string name = fmt::format("linear {} [{}, {}]", format.name, out, in);
  if (!bench.wants(name)) return;
  const HostWeight host(format, out, in);
  const auto bytes = static_cast<double>(formats::weight_bytes(host.weight));
  const int sets = std::max(bench.sets_beyond_cache(bytes), 2);
  std::vector<ops::PreparedWeight> weights;
  for (int i = 0; i < sets; ++i) weights.push_back(ops::prepare(bench.ctx(), {&host.weight, 1}));
  for (const int64_t rows : {1, 4, 8, 16, 28, 64, 448}) {
    const Buffer x = bench.random_bf16(rows * in, 2);
    const Buffer y(static_cast<size_t>(rows * out) * dtype_bytes(out_type),
                   ops::gpu::device_memory());
    const Tensor x_view(x.data(), DType::kBF16, {rows, in}),
        y_view(y.data(), out_type, {rows, out});
    const double flops = 2.0 * static_cast<double>(rows * out * in);
    bench.time(fmt::format("{} x {}", name, rows), bytes, flops, sets, [&](int s) {
      ops::linear(bench.ctx(),
                  {.out = y_view, .x = x_view, .weight = &weights[static_cast<size_t>(s)]});
    });
    if (&format != &formats::kBF16) continue;
    bench.time(fmt::format("  cublasLt {} x {}", name, rows), bytes, flops, sets, [&](int s) {
      ops::gpu::multiply_cublaslt({.tokens = rows,
                                   .rows = out,
                                   .inputs = in,
                                   .x = x.data(),
                                   .x_stride = in,
                                   .w = weights[static_cast<size_t>(s)].storage.data(),
                                   .w_stride = in,
                                   .out = y.data(),
                                   .out_stride = out,
                                   .out_is_f32 = out_type == DType::kF32},
                                  bench.ctx().stream);
    });
  }
}

// Tokens choose their experts at random, all equally likely.
std::vector<int32_t> random_ids(int64_t tokens, std::mt19937* generator, std::vector<bool>* seen) {
  std::vector<int32_t> ids, deck(kNumExperts);
  for (int64_t t = 0; t < tokens; ++t) {
    for (size_t e = 0; e < deck.size(); ++e) deck[e] = static_cast<int32_t>(e);
    for (size_t k = 0; k < kTopK; ++k) {
      std::swap(deck[k], deck[k + (*generator)() % (deck.size() - k)]);
      ids.push_back(deck[k]);
      (*seen)[static_cast<size_t>(deck[k])] = true;
    }
  }
  return ids;
}

void bench_experts(GpuBench& bench, const formats::WeightFormat& format) {
  const std::string name = fmt::format("experts {}", format.name);
  if (!bench.wants(name)) return;
  const HostWeight half(format, kWidth, kHidden), down_host(format, kHidden, kWidth);
  const std::vector<formats::Weight> halves = {half.weight, half.weight};
  std::vector<ops::PreparedWeight> gate_ups, downs;
  const auto make_gate_up = [&] { return ops::prepare(bench.ctx(), halves); };
  const auto make_down = [&] { return ops::prepare(bench.ctx(), {&down_host.weight, 1}); };
  for (int64_t e = 0; e < kNumExperts; ++e) {
    gate_ups.push_back(make_gate_up());
    downs.push_back(make_down());
  }
  const double expert_bytes = static_cast<double>(gate_ups[0].bytes() + downs[0].bytes());
  const ops::WeightStack gate_up = ops::stack(bench.ctx(), std::move(gate_ups));
  const ops::WeightStack down = ops::stack(bench.ctx(), std::move(downs));
  const ops::PreparedWeight shared_gate_up = make_gate_up(), shared_down = make_down();
  std::mt19937 generator(9);
  for (const int64_t tokens : {1, 4, 8, 16, 28, 32, 64, 448, 2048}) {
    constexpr int kSets = 4;
    std::vector<Buffer> ids;
    double touched = 0;
    for (int s = 0; s < kSets; ++s) {
      std::vector<bool> seen(kNumExperts);
      const std::vector<int32_t> host = random_ids(tokens, &generator, &seen);
      touched += static_cast<double>(std::count(seen.begin(), seen.end(), true)) / kSets;
      ids.emplace_back(host.size() * sizeof(int32_t), ops::gpu::device_memory());
      ops::gpu::upload(ids.back().data(), host.data(), ids.back().bytes(), bench.ctx().stream);
    }
    const Buffer x = bench.random_bf16(tokens * kHidden, 2);
    const Buffer weights = bench.random_f32(tokens * kTopK, 3);
    const Buffer out(static_cast<size_t>(tokens * kHidden) * 2, ops::gpu::device_memory());
    const double flops = 6.0 * static_cast<double>(tokens * (kTopK + 1) * kHidden * kWidth);
    bench.time(fmt::format("{} + shared x {} ({:.0f} touched)", name, tokens, touched),
               (touched + 1) * expert_bytes, flops, kSets, [&](int s) {
                 ops::experts(bench.ctx(),
                              {.out = Tensor(out.data(), DType::kBF16, {tokens, kHidden}),
                               .x = Tensor(x.data(), DType::kBF16, {tokens, kHidden}),
                               .ids = Tensor(ids[static_cast<size_t>(s)].data(), DType::kI32,
                                             {tokens, kTopK}),
                               .weights = Tensor(weights.data(), DType::kF32, {tokens, kTopK}),
                               .gate_up = gate_up,
                               .down = down,
                               .shared_gate_up = &shared_gate_up,
                               .shared_down = &shared_down});
               });
  }
}

// 64 heads of [512, 128] or [128, 512]: the absorbed halves of kv_b_proj.
void bench_heads(GpuBench& bench, int64_t out, int64_t in) {
  const std::string name = fmt::format("head_linear 64 x [{}, {}]", out, in);
  constexpr int64_t kHeads = 64;
  if (!bench.wants(name)) return;
  const HostWeight host(formats::kBF16, out, in);
  const double bytes = static_cast<double>(formats::weight_bytes(host.weight)) * kHeads;
  const int sets = bench.sets_beyond_cache(bytes);
  std::vector<ops::WeightStack> stacks;
  for (int s = 0; s < sets; ++s) {
    std::vector<ops::PreparedWeight> heads;
    for (int64_t h = 0; h < kHeads; ++h) {
      heads.push_back(ops::prepare(bench.ctx(), {&host.weight, 1}));
    }
    stacks.push_back(ops::stack(bench.ctx(), std::move(heads)));
  }
  for (const int64_t rows : {1, 4, 28, 64, 448}) {
    const Buffer x = bench.random_bf16(rows * kHeads * in, 2);
    const Buffer y(static_cast<size_t>(rows * kHeads * out) * 2, ops::gpu::device_memory());
    bench.time(fmt::format("{} x {}", name, rows), bytes,
               2.0 * static_cast<double>(rows * kHeads * out * in), sets, [&](int s) {
                 ops::head_linear(bench.ctx(),
                                  {.out = Tensor(y.data(), DType::kBF16, {rows, kHeads, out}),
                                   .x = Tensor(x.data(), DType::kBF16, {rows, kHeads, in}),
                                   .weights = stacks[static_cast<size_t>(s)]});
               });
  }
}

}  // namespace

void bench_linears(GpuBench& bench) {
  bench_matrix(bench, formats::kBF16, 2112, kHidden, DType::kBF16);
  bench_matrix(bench, formats::kBF16, 12288, 1536, DType::kBF16);
  bench_matrix(bench, formats::kBF16, kHidden, 8192, DType::kBF16);
  bench_matrix(bench, formats::kBF16, kNumExperts, kHidden, DType::kF32);
  bench_matrix(bench, formats::kBF16, 163840, kHidden, DType::kF32);
  bench_matrix(bench, formats::kFp8, kHidden, 8192, DType::kBF16);
  bench_matrix(bench, formats::kFp8, 163840, kHidden, DType::kF32);
  bench_matrix(bench, formats::kMxfp4, 2 * 18432, kHidden, DType::kBF16);
  bench_heads(bench, 512, 128);
  bench_heads(bench, 128, 512);
  for (const formats::WeightFormat* format :
       {&formats::kMxfp4, &formats::kNvfp4, &formats::kInt4G32}) {
    bench_experts(bench, *format);
  }
}

}  // namespace eyrie::bench
