// Pairs (token, slot) are grouped by expert; a task is one expert and a run of its pairs, the
// longest first, and does gate/up, SiLU and down on its gathered rows. When there are too few tasks
// to keep all threads busy (a token alone, many cores), the columns of each are dealt out too:
// first gate/up and SiLU, then down. The weighted sum over slots comes last, in slot order.
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
  Tensor x;  // rounded already when all experts round alike
  bool same_rounding;
  const std::byte* records;  // x as int8, when all gate_up read it alike; else nullptr
  int64_t record_bytes;
  const int32_t* pairs;
  int64_t top_k, hidden, width;
  float* results;  // [T · top_k, hidden]

  const PreparedWeight& gate_up(const Task& task) const {
    return args.gate_up[static_cast<size_t>(task.expert)];
  }
  const PreparedWeight& down(const Task& task) const {
    return args.down[static_cast<size_t>(task.expert)];
  }
  int64_t token(const Task& task, int64_t r) const { return pairs[task.begin + r] / top_k; }
};

// Bump allocation from a thread's scratch, one task long.
class Scratch {
 public:
  explicit Scratch(std::byte* begin) : next_(begin) {}
  std::byte* bytes(int64_t count) {
    std::byte* const taken = next_;
    next_ += align_up(count, 64);
    return taken;
  }
  float* floats(int64_t count) {
    return reinterpret_cast<float*>(bytes(count * int64_t{sizeof(float)}));
  }

 private:
  std::byte* next_;
};

// What a task of so many rows takes, whatever formats its expert has: floats are the largest input.
int64_t task_scratch(const PreparedWeight& gate_up, const PreparedWeight& down, int64_t rows) {
  const int64_t inputs = align_up(gate_up.in, 16) + align_up(down.in, 16);
  return rows * (inputs + gate_up.in + gate_up.out + down.in) * int64_t{sizeof(float)} + 5 * 64;
}

bool round_alike(std::span<const PreparedWeight> weights) {
  return std::all_of(weights.begin(), weights.end(), [&](const PreparedWeight& weight) {
    return weight.activation == weights[0].activation &&
           weight.input_scale == weights[0].input_scale;
  });
}

// All int8, of one format.
bool read_alike(std::span<const PreparedWeight> weights) {
  return weights[0].activation == formats::ActivationRounding::kInt8 &&
         std::all_of(weights.begin(), weights.end(), [&](const PreparedWeight& weight) {
           return weight.format == weights[0].format && weight.activation == weights[0].activation;
         });
}

// The rows of gate_up's output [begin, end) and the same of its other half, of a task.
void multiply_gate_up(const Job& job, const Task& task, const RowTiles& tiles, int64_t begin,
                      int64_t end, Scratch& scratch, float* gate_up_out) {
  const PreparedWeight& weight = job.gate_up(task);
  const PanelMatrix m = panel_matrix(weight);
  const auto out = [&](int64_t r) { return gate_up_out + r * m.out; };
  if (job.records != nullptr) {
    const auto record = [&](int64_t r) {
      return job.records + job.token(task, r) * job.record_bytes;
    };
    const auto panels = [&](int64_t first, int64_t last) {
      multiply_records(m, tiles, 0, tiles.count, first / kInt8Panel, div_ceil(last, kInt8Panel),
                       record, out);
    };
    if (end - begin == job.width) return panels(0, m.out);
    panels(begin, end);
    return panels(job.width + begin, job.width + end);
  }
  float* rounded_x = scratch.floats(task.count * m.in);
  std::byte* input = scratch.bytes(input_bytes(m, task.count));
  const auto row = [&](int64_t r) {
    const float* x = job.x.data<float>() + job.token(task, r) * job.x.stride(0);
    if (job.same_rounding) return x;
    round_row(weight, x, m.in, rounded_x + r * m.in);
    return static_cast<const float*>(rounded_x + r * m.in);
  };
  take_tiles(m, tiles, 0, tiles.count, row, input);
  multiply_tiles(m, tiles, 0, tiles.count, 0, m.num_panels, input, out);
}

// Columns [begin, end) of what down reads, into `input` (of the task's rows). All columns, or whole
// groups of them when everything is int8.
void run_gate_up(const Job& job, const Task& task, int64_t begin, int64_t end, Scratch scratch,
                 std::byte* input) {
  const PreparedWeight& weight = job.down(task);
  const PanelMatrix down = panel_matrix(weight);
  float* gate_up_out = scratch.floats(task.count * 2 * job.width);
  const RowTiles tiles(task.count, max_tile_rows(panel_matrix(job.gate_up(task))));
  multiply_gate_up(job, task, tiles, begin, end, scratch, gate_up_out);

  float* act = scratch.floats(task.count * job.width);
  for (int64_t r = 0; r < task.count; ++r) {
    const float* gate = gate_up_out + r * 2 * job.width + begin;
    float* row = act + r * job.width + begin;
    vector_kernels().silu_mul(gate, gate + job.width, end - begin, row);
    if (meets_int8(down.encoding)) {
      int8_kernels().round(down.encoding, row, end - begin,
                           input + r * int8_record_bytes(down.encoding, job.width) +
                               int8_record_bytes(down.encoding, begin));
    } else if (is_rounded_first(weight)) {
      round_row(weight, row, job.width, row);
    }
  }
  if (meets_int8(down.encoding)) return;
  const RowTiles down_tiles(task.count, max_tile_rows(down));
  take_tiles(
      down, down_tiles, 0, down_tiles.count, [&](int64_t r) { return act + r * job.width; }, input);
}

// Part `part` of `parts` of the outputs.
void run_down(const Job& job, const Task& task, int64_t part, int64_t parts,
              const std::byte* input) {
  const PanelMatrix down = panel_matrix(job.down(task));
  const RowTiles tiles(task.count, max_tile_rows(down));
  multiply_tiles(down, tiles, 0, tiles.count, down.num_panels * part / parts,
                 down.num_panels * (part + 1) / parts, input,
                 [&](int64_t r) { return job.results + job.pairs[task.begin + r] * job.hidden; });
}

// Tasks longest first, about four a thread and of whole tiles; a task's scratch should stay in
// cache.
std::span<const Task> make_tasks(const Ctx& ctx, std::span<const int32_t> begins,
                                 int64_t rows_per_task, int64_t num_pairs) {
  const auto num_experts = static_cast<int64_t>(begins.size()) - 1;
  auto* tasks = ctx.arena->array<Task>(num_experts + num_pairs / rows_per_task + 1);
  size_t count = 0;
  for (int32_t e = 0; e < num_experts; ++e) {
    const int32_t end = begins[static_cast<size_t>(e) + 1];
    for (int32_t begin = begins[static_cast<size_t>(e)]; begin < end;) {
      const auto rows = static_cast<int32_t>(std::min<int64_t>(rows_per_task, end - begin));
      tasks[count++] = {.expert = e, .begin = begin, .count = rows};
      begin += rows;
    }
  }
  std::sort(tasks, tasks + count, [](const Task& x, const Task& y) {
    return x.count != y.count ? x.count > y.count : x.begin < y.begin;
  });
  return {tasks, count};
}

// The tasks' columns dealt out in so many parts: two runs of the pool.
void run_in_parts(const Ctx& ctx, const Job& job, std::span<const Task> tasks, int64_t parts,
                  std::byte* scratch, int64_t scratch_bytes) {
  constexpr int64_t kUnit = 2 * kInt8Panel;  // whole panels and whole groups
  const Encoding encoding = panel_matrix(job.args.down[0]).encoding;
  const int64_t record_bytes = int8_record_bytes(encoding, job.width);
  int64_t num_pairs = 0;
  for (const Task& task : tasks) num_pairs += task.count;
  auto* inputs = ctx.arena->array<std::byte>(num_pairs * record_bytes);
  const auto num_runs = static_cast<int64_t>(tasks.size()) * parts;
  ctx.pool->run(num_runs, [&](int64_t i, int thread_idx) {
    const Task& task = tasks[static_cast<size_t>(i / parts)];
    const int64_t part = i % parts, units = job.width / kUnit;
    run_gate_up(job, task, units * part / parts * kUnit, units * (part + 1) / parts * kUnit,
                Scratch(scratch + thread_idx * scratch_bytes), inputs + task.begin * record_bytes);
  });
  ctx.pool->run(num_runs, [&](int64_t i, int) {
    const Task& task = tasks[static_cast<size_t>(i / parts)];
    run_down(job, task, i % parts, parts, inputs + task.begin * record_bytes);
  });
}

// Parts that the columns of each task are dealt out in; 1 when there are tasks enough.
int64_t parts_for(const Job& job, int64_t num_tasks, int64_t threads, double ns) {
  if (ns < 2 * kParallelNs || job.records == nullptr || !read_alike(job.args.down) ||
      job.width % (2 * kInt8Panel) != 0) {
    return 1;
  }
  return std::clamp<int64_t>(div_ceil(4 * threads, num_tasks), 1, job.width / (2 * kInt8Panel));
}

void run_tasks(const Ctx& ctx, const Job& job, std::span<const Task> tasks, int64_t max_rows) {
  const PanelMatrix gate_up = panel_matrix(job.args.gate_up[0]);
  const PanelMatrix down = panel_matrix(job.args.down[0]);
  const int64_t scratch_bytes =
      align_up(task_scratch(job.args.gate_up[0], job.args.down[0], max_rows), 64);
  auto* scratch = ctx.arena->array<std::byte>(scratch_bytes * ctx.pool->size());
  const double ns = (gemm_ns(gate_up, 1) + gemm_ns(down, 1)) * static_cast<double>(tasks.size());
  const auto run = [&](int64_t i, int thread_idx) {
    const Task& task = tasks[static_cast<size_t>(i)];
    Scratch mine(scratch + thread_idx * scratch_bytes);
    std::byte* input = mine.bytes(input_bytes(panel_matrix(job.down(task)), task.count));
    run_gate_up(job, task, 0, job.width, mine, input);
    run_down(job, task, 0, 1, input);
  };
  const auto num_tasks = static_cast<int64_t>(tasks.size());
  if (ns < kParallelNs || ctx.pool->size() == 1) {
    for (int64_t i = 0; i < num_tasks; ++i) run(i, 0);
    return;
  }
  const int64_t parts = parts_for(job, num_tasks, ctx.pool->size(), ns);
  if (parts > 1) return run_in_parts(ctx, job, tasks, parts, scratch, scratch_bytes);
  ctx.pool->run(num_tasks, run);
}

// x as records for all experts, or nullptr.
const std::byte* shared_records(const Ctx& ctx, const ExpertsArgs& a, int64_t record_bytes) {
  if (!read_alike(a.gate_up)) return nullptr;
  const int64_t num_tokens = a.x.dim(0), width = a.x.dim(1);
  const Encoding encoding = panel_matrix(a.gate_up[0]).encoding;
  auto* records = ctx.arena->array<std::byte>(num_tokens * record_bytes);
  for_rows(ctx, num_tokens, static_cast<double>(width) * 0.2, [&](int64_t t) {
    int8_kernels().round(encoding, a.x.data<float>() + t * a.x.stride(0), width,
                         records + t * record_bytes);
  });
  return records;
}

}  // namespace

void experts(const Ctx& ctx, const ExpertsArgs& a) {
  const int64_t num_tokens = a.x.dim(0), top_k = a.ids.dim(1), num_pairs = num_tokens * top_k;
  if (num_tokens == 0) return;
  ArenaScope scope(*ctx.arena);
  const auto num_experts = static_cast<int64_t>(a.down.size());

  auto* pairs = ctx.arena->array<int32_t>(num_pairs);
  const std::span<int32_t> begins(ctx.arena->array<int32_t>(num_experts + 1),
                                  static_cast<size_t>(num_experts + 1));
  group_pairs({a.ids.data<int32_t>(), static_cast<size_t>(num_pairs)}, begins, pairs);

  const PanelMatrix gate_up = panel_matrix(a.gate_up[0]);
  const int64_t tile_rows = max_tile_rows(gate_up);
  const int64_t rows_per_task = std::clamp<int64_t>(
      align_up(div_ceil(num_pairs, 4 * ctx.pool->size()), tile_rows), 2 * tile_rows, 8 * tile_rows);
  const bool same_rounding = round_alike(a.gate_up);
  const int64_t record_bytes =
      meets_int8(gate_up.encoding) ? int8_record_bytes(gate_up.encoding, gate_up.in) : 0;
  const Job job{.args = a,
                .x = same_rounding ? rounded_rows(ctx, a.gate_up[0], a.x) : a.x,
                .same_rounding = same_rounding,
                .records = shared_records(ctx, a, record_bytes),
                .record_bytes = record_bytes,
                .pairs = pairs,
                .top_k = top_k,
                .hidden = a.x.dim(1),
                .width = a.down[0].in,
                .results = ctx.arena->array<float>(num_pairs * a.x.dim(1))};
  run_tasks(ctx, job, make_tasks(ctx, begins, rows_per_task, num_pairs),
            std::min(rows_per_task, num_tokens * top_k));

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
