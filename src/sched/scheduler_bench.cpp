// What planning costs: schedule() + update() of a steady batch, which must stay far below the
// fastest model step (about a millisecond).
#include <benchmark/benchmark.h>

#include "sched/scheduler.h"
#include "sched/testing.h"

namespace eyrie::sched {
namespace {

// Arguments: running sequences, drafts per sequence. 1K prompts, 1K generated, as in the tutorials;
// ended sequences are replaced, half of the drafts are right.
void step_of_a_full_batch(benchmark::State& state) {
  const int32_t num_running = static_cast<int32_t>(state.range(0));
  const int32_t num_drafts = static_cast<int32_t>(state.range(1));
  Scheduler scheduler({.max_num_seqs = num_running,
                       .max_num_batched_tokens = 8192,
                       .max_model_len = 4096,
                       .block_size = 16,
                       .num_blocks = num_running * 160,
                       .num_speculative_tokens = num_drafts});
  std::vector<RowResult> results(static_cast<size_t>(num_running));
  SequenceId next_id = 0;
  int64_t num_tokens = 0;
  for (auto _ : state) {
    state.PauseTiming();
    while (scheduler.num_sequences() < num_running) {
      const int32_t id = static_cast<int32_t>(next_id++);
      if (!scheduler.add(testing::sequence(id, testing::counting(1024, id * 7), 1024))) {
        state.SkipWithError("refused");
        return;
      }
    }
    state.ResumeTiming();
    const StepPlan& plan = scheduler.schedule();
    state.PauseTiming();
    for (size_t idx = 0; idx < plan.rows.size(); ++idx) {
      const StepRow& row = plan.rows[idx];
      results[idx] = testing::answer(row, static_cast<TokenId>(idx), row.num_draft_tokens / 2);
      num_tokens += row.num_tokens;
    }
    state.ResumeTiming();
    benchmark::DoNotOptimize(scheduler.update(plan, {results.data(), plan.rows.size()}));
  }
  state.counters["tokens_per_step"] =
      static_cast<double>(num_tokens) / static_cast<double>(state.iterations());
}
BENCHMARK(step_of_a_full_batch)
    ->ArgNames({"running", "drafts"})
    ->Args({1, 0})
    ->Args({64, 0})
    ->Args({64, 6})
    ->Args({256, 0})
    ->Args({256, 6});

}  // namespace
}  // namespace eyrie::sched

BENCHMARK_MAIN();
