#include <algorithm>

#include "base/math.h"
#include "ops/cpu/backend.h"
#include "ops/cpu/kernels.h"

namespace eyrie::ops::cpu {
namespace {

// Rows of a sequence, and either some whole groups of heads or a part of one group.
struct Task {
  int32_t sequence;
  int32_t first_row, num_rows;  // within the sequence
  int32_t first_head, num_groups, heads_per_group;
};

// Queries that share a tile's conversion: more save work, fewer balance better.
constexpr int64_t kQueriesPerTask = 64;
// Splitting a group's heads over tasks repeats the conversion, so a part keeps at least this many.
constexpr int64_t kMinHeadsPerTask = 8;

struct TaskList {
  Task* tasks;
  int64_t count;
};

// heads_per_group: heads with the same keys and values. Long rows come first within a sequence.
TaskList make_tasks(const Ctx& ctx, std::span<const SequenceRows> sequences, int64_t num_heads,
                    int64_t heads_per_group) {
  int64_t heads = num_heads;  // of a task
  const auto rows_per_task = [&] { return std::max<int64_t>(1, kQueriesPerTask / heads); };
  const auto count_tasks = [&] {
    int64_t count = 0;
    for (const SequenceRows& s : sequences) count += div_ceil(s.num_rows, rows_per_task());
    return count * (num_heads / heads);
  };
  while (count_tasks() < 2 * ctx.pool->size()) {
    const bool whole_groups = heads / 2 >= heads_per_group && heads / 2 % heads_per_group == 0;
    const bool parts = heads <= heads_per_group && heads / 2 >= kMinHeadsPerTask;
    if (heads % 2 != 0 || !(whole_groups || parts)) break;
    heads /= 2;
  }
  TaskList list{.tasks = ctx.arena->array<Task>(count_tasks()), .count = 0};
  const int64_t rows = rows_per_task(), group = std::min(heads, heads_per_group);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t num_rows = sequences[i].num_rows;
    for (int64_t chunk = div_ceil(num_rows, rows) - 1; chunk >= 0; --chunk) {
      for (int64_t head = 0; head < num_heads; head += heads) {
        list.tasks[list.count++] = {
            .sequence = static_cast<int32_t>(i),
            .first_row = static_cast<int32_t>(chunk * rows),
            .num_rows = static_cast<int32_t>(std::min(rows, num_rows - chunk * rows)),
            .first_head = static_cast<int32_t>(head),
            .num_groups = static_cast<int32_t>(heads / group),
            .heads_per_group = static_cast<int32_t>(group)};
      }
    }
  }
  return list;
}

// common: everything but rows, heads, positions and pointers' offsets, which a task adds.
void run_tasks(const Ctx& ctx, std::span<const SequenceRows> sequences, int64_t num_heads,
               int64_t heads_per_group, DType cache_dtype, const AttendParams& common) {
  const auto attend = cache_dtype == DType::kF8E4M3 ? attention_kernels().attend_fp8
                                                    : attention_kernels().attend_bf16;
  ArenaScope scope(*ctx.arena);
  const TaskList list = make_tasks(ctx, sequences, num_heads, heads_per_group);
  const int64_t width = common.dim0 + common.dim1;
  const int64_t floats = align_up(attend_scratch(std::max(kQueriesPerTask, num_heads),
                                                 num_heads / heads_per_group, width, common.dim_v),
                                  16);
  auto* scratch = ctx.arena->array<float>(floats * ctx.pool->size());
  const auto run = [&](int64_t task_idx, int thread_idx) {
    const Task& task = list.tasks[task_idx];
    const SequenceRows& sequence = sequences[static_cast<size_t>(task.sequence)];
    const int64_t row = sequence.first_row + task.first_row, head = task.first_head;
    const int64_t column = head / heads_per_group * common.kv_group;
    AttendParams p = common;
    p.q0 += row * p.q0_row + head * p.q0_head;
    p.q1 += row * p.q1_row + head * p.q1_head;
    p.out += row * p.out_row + head * p.out_head;
    p.first_column = column;
    p.block_table = sequence.block_table;
    p.num_rows = task.num_rows;
    p.num_groups = task.num_groups;
    p.heads_per_group = task.heads_per_group;
    p.first_position = sequence.first_position + task.first_row;
    attend(p, scratch + thread_idx * floats);
  };
  double ns = 0;
  for (const SequenceRows& s : sequences) {
    ns += static_cast<double>((s.first_position + s.num_rows) * (s.num_rows + 1) * num_heads *
                              (width + common.dim_v)) /
          15.0;
  }
  constexpr double kWorthwhileNs = 8000;
  if (ns < kWorthwhileNs) {
    for (int64_t task = 0; task < list.count; ++task) run(task, 0);
  } else {
    ctx.pool->run(list.count, run);
  }
}

}  // namespace

void cache_write(const Ctx&, const CacheWriteArgs& a) {
  const int64_t width = a.x.dim(1), block_size = a.cache.block_size;
  for (const SequenceRows& sequence : a.sequences) {
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const int64_t position = sequence.first_position + i;
      const int64_t slot =
          sequence.block_table[position / block_size] * block_size + position % block_size;
      const float* x = a.x.data<float>() + (sequence.first_row + i) * a.x.stride(0);
      if (a.cache.data.dtype() == DType::kF8E4M3) {
        vector_kernels().to_fp8(x, width, a.cache.scale,
                                static_cast<uint8_t*>(a.cache.data.raw()) + slot * width);
      } else {
        vector_kernels().to_bf16(x, width, a.cache.data.data<bf16>() + slot * width);
      }
    }
  }
}

void mla_attention(const Ctx& ctx, const MlaAttentionArgs& a) {
  const int64_t num_heads = a.out.dim(1);
  const auto latent = static_cast<int>(a.q_latent.dim(2));
  const auto rope = static_cast<int>(a.q_rope.dim(2));
  const AttendParams params{.q0 = a.q_latent.data<float>(),
                            .q1 = a.q_rope.data<float>(),
                            .q0_row = a.q_latent.stride(0),
                            .q0_head = a.q_latent.stride(1),
                            .q1_row = a.q_rope.stride(0),
                            .q1_head = a.q_rope.stride(1),
                            .dim0 = latent,
                            .dim1 = rope,
                            .dim_v = latent,
                            .out = a.out.data<float>(),
                            .out_row = a.out.stride(0),
                            .out_head = a.out.stride(1),
                            .keys = a.cache.data.raw(),
                            .values = a.cache.data.raw(),
                            .first_column = 0,
                            .key_stride = latent + rope,
                            .value_stride = latent + rope,
                            .kv_group = 0,
                            .block_table = nullptr,
                            .block_size = a.cache.block_size,
                            .num_rows = 0,
                            .num_groups = 0,
                            .heads_per_group = 0,
                            .first_position = 0,
                            .scale = a.scale * a.cache.scale,
                            .value_scale = a.cache.scale};
  run_tasks(ctx, a.sequences, num_heads, num_heads, a.cache.data.dtype(), params);
}

void gqa_attention(const Ctx& ctx, const GqaAttentionArgs& a) {
  const int64_t num_heads = a.out.dim(1), row_width = a.num_kv_heads * a.q.dim(2);
  const auto dim = static_cast<int>(a.q.dim(2));
  const AttendParams params{.q0 = a.q.data<float>(),
                            .q1 = a.q.data<float>(),
                            .q0_row = a.q.stride(0),
                            .q0_head = a.q.stride(1),
                            .q1_row = 0,
                            .q1_head = 0,
                            .dim0 = dim,
                            .dim1 = 0,
                            .dim_v = dim,
                            .out = a.out.data<float>(),
                            .out_row = a.out.stride(0),
                            .out_head = a.out.stride(1),
                            .keys = a.k_cache.data.raw(),
                            .values = a.v_cache.data.raw(),
                            .first_column = 0,
                            .key_stride = row_width,
                            .value_stride = row_width,
                            .kv_group = dim,
                            .block_table = nullptr,
                            .block_size = a.k_cache.block_size,
                            .num_rows = 0,
                            .num_groups = 0,
                            .heads_per_group = 0,
                            .first_position = 0,
                            .scale = a.scale * a.k_cache.scale,
                            .value_scale = a.v_cache.scale};
  run_tasks(ctx, a.sequences, num_heads, num_heads / a.num_kv_heads, a.k_cache.data.dtype(),
            params);
}

}  // namespace eyrie::ops::cpu
