#include <fmt/format.h>

#include "bench/gpu_bench.h"

// Norms, copies, the router and sampling: small ones are launches, large ones bytes.
namespace eyrie::bench {
namespace {

constexpr int64_t kHidden = 7168;
constexpr int64_t kVocabulary = 163840;
constexpr int64_t kExperts = 384, kTopK = 8;
constexpr int64_t kRowCounts[] = {1, 4, 28, 64,
                                  448};  // 4 and 64 sequences, without and with drafts

void bench_norms(GpuBench& bench, int64_t rows) {
  const double x_bytes = static_cast<double>(rows * kHidden) * 2;
  const int sets = bench.sets_beyond_cache(4 * x_bytes);
  const Buffer x = bench.random_bf16(sets * rows * kHidden, 1);
  const Buffer residual = bench.random_f32(sets * rows * kHidden, 2);
  const Buffer weight = bench.random_f32(kHidden, 3);
  const Buffer out(static_cast<size_t>(rows * kHidden) * 2, ops::gpu::device_memory());
  const auto part = [&](const Buffer& all, DType dtype, int set) {
    return Tensor(all.data() + static_cast<size_t>(set * rows * kHidden) * dtype_bytes(dtype),
                  dtype, {rows, kHidden});
  };
  const Tensor to(out.data(), DType::kBF16, {rows, kHidden});
  const Tensor w(weight.data(), DType::kF32, {kHidden});
  bench.time(fmt::format("add_rms_norm {} x {}", rows, kHidden), 6 * x_bytes, 0, sets, [&](int s) {
    ops::add_rms_norm(bench.ctx(), {.residual = part(residual, DType::kF32, s),
                                    .x = part(x, DType::kBF16, s),
                                    .weight = w,
                                    .eps = 1e-6F,
                                    .out = to});
  });
  bench.time(fmt::format("copy_rows {} x {}", rows, kHidden), 3 * x_bytes, 0, sets, [&](int s) {
    ops::copy_rows(bench.ctx(), {.out = to, .x = part(residual, DType::kF32, s)});
  });
}

void bench_router(GpuBench& bench, int64_t rows) {
  const Buffer logits = bench.random_f32(rows * kExperts, 4), bias = bench.random_f32(kExperts, 5);
  const Buffer ids(static_cast<size_t>(rows * kTopK) * 4, ops::gpu::device_memory());
  const Buffer weights(ids.bytes(), ops::gpu::device_memory());
  bench.time(fmt::format("route {} x {}", rows, kExperts), static_cast<double>(logits.bytes()), 0,
             1, [&](int) {
               ops::route(bench.ctx(),
                          {.ids = Tensor(ids.data(), DType::kI32, {rows, kTopK}),
                           .weights = Tensor(weights.data(), DType::kF32, {rows, kTopK}),
                           .logits = Tensor(logits.data(), DType::kF32, {rows, kExperts}),
                           .bias = Tensor(bias.data(), DType::kF32, {kExperts}),
                           .routed_scaling_factor = 2.827F});
             });
}

void bench_sampling(GpuBench& bench, int64_t rows) {
  const double bytes = static_cast<double>(rows * kVocabulary) * 4;
  const int sets = bench.sets_beyond_cache(bytes);
  const Buffer logits = bench.random_f32(sets * rows * kVocabulary, 6, 3.0F);
  std::vector<ops::SampleRow> params;
  for (int64_t r = 0; r < rows; ++r) {
    params.push_back({.seed = static_cast<uint64_t>(r + 1), .position = 1000, .temperature = 1.0F});
  }
  const Buffer params_gpu(params.size() * sizeof params[0], ops::gpu::device_memory());
  ops::gpu::upload(params_gpu.data(), params.data(), params_gpu.bytes(), bench.ctx().stream);
  const Buffer ids(static_cast<size_t>(rows) * 4, ops::gpu::device_memory());
  const std::span<int32_t> to(ids.as<int32_t>(), static_cast<size_t>(rows));
  const auto part = [&](int set) {
    return Tensor(logits.as<float>() + set * rows * kVocabulary, DType::kF32, {rows, kVocabulary});
  };
  bench.time(fmt::format("argmax {} x {}", rows, kVocabulary), bytes, 0, sets,
             [&](int s) { ops::argmax(bench.ctx(), {.ids = to, .logits = part(s)}); });
  bench.time(fmt::format("sample {} x {}", rows, kVocabulary), bytes, 0, sets, [&](int s) {
    ops::sample(bench.ctx(), {.ids = to,
                              .logits = part(s),
                              .rows = {params_gpu.as<ops::SampleRow>(), params.size()},
                              .id_map = {}});
  });
}

}  // namespace

void bench_plain_ops(GpuBench& bench) {
  for (const int64_t rows : kRowCounts) {
    if (bench.wants("norm")) bench_norms(bench, rows);
    if (bench.wants("route")) bench_router(bench, rows);
    if (bench.wants("sample") && rows <= 64) bench_sampling(bench, rows);
  }
}

}  // namespace eyrie::bench
