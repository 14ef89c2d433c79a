#include "ops/cpu/backend.h"
#include "ops/cpu/gemm.h"

namespace eyrie::ops::cpu {

void round_row(const PreparedWeight& weight, const float* x, int64_t n, float* out) {
  using formats::ActivationRounding;
  switch (weight.activation) {
    case ActivationRounding::kNone:
    case ActivationRounding::kInt8:  // by the matrix's own kernels, as kBf16
    case ActivationRounding::kBf16:
      if (out != x) std::copy(x, x + n, out);
      return;
    case ActivationRounding::kFp8PerToken:
      return vector_kernels().round_fp8(x, n, out);
    case ActivationRounding::kMxfp4:
      return vector_kernels().round_mxfp4(x, n, out);
    case ActivationRounding::kNvfp4:
      return vector_kernels().round_nvfp4(x, n, weight.input_scale, out);
    case ActivationRounding::kFp8Blocks:
      return vector_kernels().round_fp8_blocks(x, n, out);
  }
}

Tensor rounded_rows(const Ctx& ctx, const PreparedWeight& weight, const Tensor& x) {
  if (!is_rounded_first(weight)) return x;
  const int64_t width = x.dim(1);
  Tensor rounded = ctx.arena->f32({x.dim(0), width});
  for_rows(ctx, x.dim(0), static_cast<double>(width) * 0.5, [&](int64_t t) {
    round_row(weight, x.data<float>() + t * x.stride(0), width, rounded.data<float>() + t * width);
  });
  return rounded;
}

void linear(const Ctx& ctx, const LinearArgs& a) {
  const int64_t num_rows = a.x.dim(0);
  if (num_rows == 0 || a.weight->out == 0) return;
  ArenaScope scope(*ctx.arena);
  const Tensor x = rounded_rows(ctx, *a.weight, a.x);
  const PanelMatrix m = panel_matrix(*a.weight);
  const RowTiles tiles(num_rows, max_tile_rows(m));
  auto* input = ctx.arena->array<std::byte>(input_bytes(m, num_rows));
  const auto row = [base = x.data<float>(), stride = x.stride(0)](int64_t r) {
    return base + r * stride;
  };
  const auto out = [base = a.out.data<float>(), stride = a.out.stride(0)](int64_t r) {
    return base + r * stride;
  };
  if (ctx.pool->size() == 1 || gemm_ns(m, num_rows) < kParallelNs) {
    take_tiles(m, tiles, 0, tiles.count, row, input);
    multiply_tiles(m, tiles, 0, tiles.count, 0, m.num_panels, input, out);
    return;
  }
  const double take_ns = static_cast<double>(num_rows * m.in) * 0.4;
  if (take_ns < kParallelNs || tiles.count == 1) {
    take_tiles(m, tiles, 0, tiles.count, row, input);
  } else {
    ctx.pool->run(tiles.count,
                  [&](int64_t tile, int) { take_tiles(m, tiles, tile, tile + 1, row, input); });
  }
  // Panels first, in about four tasks a thread, in eights if those go round (int8 kernels read so
  // many side by side); rows too when there are few panels.
  const int64_t wanted = 4 * ctx.pool->size();
  const int64_t unit = m.num_panels >= 8 * ctx.pool->size() ? 8 : 2;
  const int64_t units = div_ceil(m.num_panels, unit);
  const int64_t panel_tasks = std::min(wanted, units);
  const int64_t tile_tasks = std::min(tiles.count, div_ceil(wanted, panel_tasks));
  ctx.pool->run(panel_tasks * tile_tasks, [&](int64_t task, int) {
    const int64_t p = task / tile_tasks, t = task % tile_tasks;
    multiply_tiles(m, tiles, tiles.count * t / tile_tasks, tiles.count * (t + 1) / tile_tasks,
                   units * p / panel_tasks * unit,
                   std::min(m.num_panels, units * (p + 1) / panel_tasks * unit), input, out);
  });
}

void head_linear(const Ctx& ctx, const HeadLinearArgs& a) {
  const int64_t num_rows = a.x.dim(0), num_heads = a.x.dim(1);
  if (num_rows == 0 || num_heads == 0) return;
  ArenaScope scope(*ctx.arena);
  const PanelMatrix shape = panel_matrix(a.weights[0]);
  // A task is one head and a run of rows; its packed rows are its thread's scratch.
  constexpr int64_t kRowsPerTask = 96;
  const int64_t row_tasks = div_ceil(num_rows, kRowsPerTask);
  int64_t scratch = 0;
  for (const PreparedWeight& weight : a.weights) {
    const int64_t rows = std::min(num_rows, kRowsPerTask);
    scratch = std::max(scratch, input_bytes(panel_matrix(weight), rows));
  }
  auto* inputs = ctx.arena->array<std::byte>(scratch * ctx.pool->size());
  const auto run = [&](int64_t task, int thread_idx) {
    const int64_t head = task / row_tasks, first = task % row_tasks * kRowsPerTask;
    const PreparedWeight& weight = a.weights[static_cast<size_t>(head)];
    const PanelMatrix m = panel_matrix(weight);
    const RowTiles tiles(std::min(kRowsPerTask, num_rows - first), max_tile_rows(m));
    std::byte* input = inputs + thread_idx * scratch;
    const float* x = a.x.data<float>() + first * a.x.stride(0) + head * a.x.stride(1);
    float* out = a.out.data<float>() + first * a.out.stride(0) + head * a.out.stride(1);
    take_tiles(
        m, tiles, 0, tiles.count, [&](int64_t r) { return x + r * a.x.stride(0); }, input);
    multiply_tiles(m, tiles, 0, tiles.count, 0, m.num_panels, input,
                   [&](int64_t r) { return out + r * a.out.stride(0); });
  };
  const int64_t tasks = num_heads * row_tasks;
  if (gemm_ns(shape, num_rows) * static_cast<double>(num_heads) < kParallelNs) {
    for (int64_t task = 0; task < tasks; ++task) run(task, 0);
  } else {
    ctx.pool->run(tasks, run);
  }
}

}  // namespace eyrie::ops::cpu
