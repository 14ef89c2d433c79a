// What planning costs: schedule() + update() of a steady batch, and choosing its draft lengths,
// which must stay far below the fastest model step (about a millisecond).
#include <benchmark/benchmark.h>

#include "sched/draft_sizer.h"
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

// Sequences that missed a prompt each; up to six drafts; costs that leave it open what is best.
void choose_drafts(benchmark::State& state) {
  StepCosts costs;
  for (int32_t rows = 1; rows <= 512; rows *= 2) {
    costs.forward.set(rows, 50e-6 + 100e-6 * rows);
    costs.head.set(rows, 10e-6 * rows);
    costs.follow.set(rows, 20e-6 * rows);
    costs.guess.set(rows, 10e-6 * rows);
    costs.chain.set(rows, 30e-6 * rows);
  }
  DraftSizer sizer({.num_speculative_tokens = 6, .costs = costs});
  std::vector<DraftRecord> records(static_cast<size_t>(state.range(0)));
  std::vector<DraftSeat> seats;
  for (DraftRecord& record : records) {
    record.num_behind = 140;
    seats.push_back({.record = &record, .max_drafts = 6, .num_remaining = 100});
  }
  for (auto _ : state) sizer.choose(seats);
}
BENCHMARK(choose_drafts)->ArgName("sequences")->Arg(1)->Arg(4)->Arg(16)->Arg(64);

}  // namespace
}  // namespace eyrie::sched

BENCHMARK_MAIN();
