// Pairs (token, slot) are grouped by expert; a task is one expert and a run of its pairs, the
// longest first, and does gate/up, SiLU and down on its gathered rows. The weighted sum over slots
// comes last, in slot order.
#include <algorithm>

#include "ops/cpu/backend.h"
#include "ops/cpu/gemm.h"

namespace eyrie::ops::cpu {
namespace {

struct Task {
  int32_t expert;
  int32_t begin, count;  // pairs, in the order of the grouping
};

// Pairs sorted by expert (stable): pairs[i] = token · top_k + slot; begins[e] … begins[e + 1].
void group_pairs(std::span<const int32_t> ids, std::span<int32_t> begins, int32_t* pairs) {
  std::fill(begins.begin(), begins.end(), 0);
  for (int32_t id : ids) ++begins[static_cast<size_t>(id) + 1];
  for (size_t e = 1; e < begins.size(); ++e) begins[e] += begins[e - 1];
  for (size_t i = 0; i < ids.size(); ++i) {
    pairs[begins[static_cast<size_t>(ids[i])]++] = static_cast<int32_t>(i);
  }
  // Each begin moved to its end, which is the next one's begin.
  for (size_t e = begins.size() - 1; e > 0; --e) begins[e] = begins[e - 1];
  begins[0] = 0;
}

struct Job {
  const ExpertsArgs& args;
  const GemmKernels& kernels;
  Tensor x;  // rounded already when all experts round alike
  bool same_rounding;
  const int32_t* pairs;
  int64_t top_k, hidden, width;
  float* results;  // [T · top_k, hidden]
};

// The experts' formats may differ, and with them the padding of a row (to even widths at most).
int64_t task_scratch(const PanelMatrix& gate_up, const PanelMatrix& down, int64_t rows) {
  const int64_t padded = align_up(gate_up.in, 2) + align_up(down.in, 2);
  return rows * (padded + gate_up.in + gate_up.out + down.in) + 64;
}

bool round_alike(std::span<const PreparedWeight> weights) {
  return std::all_of(weights.begin(), weights.end(), [&](const PreparedWeight& weight) {
    return weight.activation == weights[0].activation &&
           weight.input_scale == weights[0].input_scale;
  });
}

void run_task(const Job& job, const Task& task, float* scratch) {
  const PreparedWeight& down_weight = job.args.down[static_cast<size_t>(task.expert)];
  const PreparedWeight& gate_up_weight = job.args.gate_up[static_cast<size_t>(task.expert)];
  const PanelMatrix gate_up = panel_matrix(gate_up_weight);
  const PanelMatrix down = panel_matrix(down_weight);
  const RowTiles tiles(task.count, job.kernels.max_rows);
  const int32_t* pairs = job.pairs + task.begin;
  float* packed_x = scratch;
  float* rounded_x = packed_x + task.count * gate_up.padded_in;
  float* gate_up_out = rounded_x + task.count * gate_up.in;
  float* act = gate_up_out + task.count * gate_up.out;
  float* packed_act = act + task.count * down.in;

  pack_tiles(
      job.kernels, gate_up, tiles, 0, tiles.count,
      [&](int64_t r) {
        const float* x = job.x.data<float>() + pairs[r] / job.top_k * job.x.stride(0);
        if (job.same_rounding) return x;
        float* rounded = rounded_x + r * gate_up.in;
        round_row(gate_up_weight, x, gate_up.in, rounded);
        return static_cast<const float*>(rounded);
      },
      packed_x);
  multiply_tiles(job.kernels, gate_up, tiles, 0, tiles.count, 0, gate_up.num_panels, packed_x,
                 [&](int64_t r) { return gate_up_out + r * gate_up.out; });
  for (int64_t r = 0; r < task.count; ++r) {
    const float* gate = gate_up_out + r * gate_up.out;
    float* row = act + r * job.width;
    vector_kernels().silu_mul(gate, gate + job.width, job.width, row);
    if (down_weight.activation != formats::ActivationRounding::kNone) {
      round_row(down_weight, row, job.width, row);
    }
  }
  pack_tiles(
      job.kernels, down, tiles, 0, tiles.count, [&](int64_t r) { return act + r * job.width; },
      packed_act);
  multiply_tiles(job.kernels, down, tiles, 0, tiles.count, 0, down.num_panels, packed_act,
                 [&](int64_t r) { return job.results + pairs[r] * job.hidden; });
}

}  // namespace

void experts(const Ctx& ctx, const ExpertsArgs& a) {
  const int64_t num_tokens = a.x.dim(0), top_k = a.ids.dim(1), num_pairs = num_tokens * top_k;
  if (num_tokens == 0) return;
  ArenaScope scope(*ctx.arena);
  const auto num_experts = static_cast<int64_t>(a.down.size());
  const GemmKernels& kernels = gemm_kernels();
  const int threads = ctx.pool->size();

  auto* pairs = ctx.arena->array<int32_t>(num_pairs);
  const std::span<int32_t> begins(ctx.arena->array<int32_t>(num_experts + 1),
                                  static_cast<size_t>(num_experts + 1));
  group_pairs({a.ids.data<int32_t>(), static_cast<size_t>(num_pairs)}, begins, pairs);

  // About four tasks a thread, of whole register tiles; a task's scratch should stay in cache.
  const int64_t rows_per_task =
      std::clamp<int64_t>(align_up(div_ceil(num_pairs, 4 * threads), kernels.max_rows),
                          2 * kernels.max_rows, 8 * kernels.max_rows);
  auto* tasks = ctx.arena->array<Task>(num_experts + num_pairs / rows_per_task + 1);
  int64_t num_tasks = 0;
  for (int32_t e = 0; e < num_experts; ++e) {
    const int32_t end = begins[static_cast<size_t>(e) + 1];
    for (int32_t begin = begins[static_cast<size_t>(e)]; begin < end;) {
      const auto count = static_cast<int32_t>(std::min<int64_t>(rows_per_task, end - begin));
      tasks[num_tasks++] = {.expert = e, .begin = begin, .count = count};
      begin += count;
    }
  }
  std::sort(tasks, tasks + num_tasks, [](const Task& x, const Task& y) {
    return x.count != y.count ? x.count > y.count : x.begin < y.begin;
  });

  const bool same_rounding = round_alike(a.gate_up);
  const PanelMatrix gate_up = panel_matrix(a.gate_up[0]), down = panel_matrix(a.down[0]);
  Job job{.args = a,
          .kernels = kernels,
          .x = same_rounding ? rounded_rows(ctx, a.gate_up[0], a.x) : a.x,
          .same_rounding = same_rounding,
          .pairs = pairs,
          .top_k = top_k,
          .hidden = a.x.dim(1),
          .width = a.down[0].in,
          .results = ctx.arena->array<float>(num_pairs * a.x.dim(1))};
  const int64_t scratch_floats = task_scratch(gate_up, down, std::min(rows_per_task, num_tokens));
  auto* scratch = ctx.arena->array<float>(scratch_floats * threads);
  const auto run = [&](int64_t task, int thread_idx) {
    run_task(job, tasks[task], scratch + thread_idx * scratch_floats);
  };
  const double ns = (gemm_ns(gate_up, 1) + gemm_ns(down, 1)) * static_cast<double>(num_tasks);
  if (ns < kParallelNs) {
    for (int64_t task = 0; task < num_tasks; ++task) run(task, 0);
  } else {
    ctx.pool->run(num_tasks, run);
  }

  for_rows(ctx, num_tokens, static_cast<double>(top_k * job.hidden) * 0.1, [&](int64_t t) {
    constexpr int kMaxTopK = 64;
    CHECK_LE(top_k, kMaxTopK);
    const float* rows[kMaxTopK];
    for (int64_t s = 0; s < top_k; ++s) rows[s] = job.results + (t * top_k + s) * job.hidden;
    vector_kernels().weighted_sum(rows, a.weights.data<float>() + t * top_k,
                                  static_cast<int>(top_k), job.hidden,
                                  a.out.data<float>() + t * a.out.stride(0));
  });
}

}  // namespace eyrie::ops::cpu
