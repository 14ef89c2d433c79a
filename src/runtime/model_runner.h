// What the engine asks of a runner: sequences come and go, a StepPlan is executed. `Runner` does it
// with a model; tests script tokens behind the same interface. Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/sampler.h"
#include "sched/draft_policy.h"
#include "sched/step_plan.h"

namespace eyrie::runtime {

// Beside a row's tokens: what only some requests ask for.
struct RowExtras {
  bool numeric_fault = false;      // NaN or infinity in this row's logits; the row sampled nothing
  std::vector<Logprobs> logprobs;  // one per sampled token when the request wants them
  // Logprobs of the prompt tokens at positions first_position + 1 … first_position + num_tokens
  // that lie inside the prompt (the logits at position p speak about token p + 1), when asked for.
  std::vector<Logprobs> prompt_logprobs;
};

// One entry per plan row, in plan order; owned by the runner, valid until the next execute().
struct StepOutput {
  std::vector<sched::RowResult> rows;
  std::vector<RowExtras> extras;
  sched::StepTimes times;  // all but what is outside the runner
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  // The prompt and parameters of a sequence, before its first row appears in a plan.
  virtual void add_sequence(sched::SequenceId seq_id, std::span<const TokenId> prompt,
                            const SamplingParams& params) = 0;
  virtual void remove_sequence(sched::SequenceId seq_id) = 0;
  virtual const StepOutput& execute(const sched::StepPlan& plan) = 0;

  // A device works while its host does other things: launch() begins a plan, finish() ends it, and
  // between them the plan stays as it is and no sequence in it is removed. What the last step put
  // out is no longer valid. execute() is both.
  virtual bool runs_ahead() const { return false; }
  virtual void launch(const sched::StepPlan& plan) { output_of_launched_ = &execute(plan); }
  virtual const StepOutput& finish() { return *output_of_launched_; }

 private:
  const StepOutput* output_of_launched_ = nullptr;
};

}  // namespace eyrie::runtime
