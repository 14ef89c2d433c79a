// Lets an EAGLE-3 draft follow the sequences and propose their next tokens, batched over all rows
// of a step. After the target has run and the rows are sampled, a row of a sequence with N known
// tokens (the new ones included) gives the draft these entries:
//
//   catch-up   positions first_position … N-2, true features, KV slots alike;  last one → d_1
//   chain      positions N-1, N, … (K-1 of them), own output as feature        → d_2 … d_K
//
// A row that does not reach the sequence's end (a prompt chunk) only catches up. Features of
// rejected drafts are skipped. Owned by the runner, engine thread; all vectors are reused.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/eagle3.h"
#include "runtime/kv_storage.h"
#include "runtime/model_runner.h"

namespace eyrie::runtime {

class Drafter {
 public:
  explicit Drafter(const model::Eagle3& draft) : draft_(draft) {}

  struct Inputs {
    const sched::StepPlan& plan;
    std::span<const int32_t> first_rows;            // of each plan row, in aux
    std::span<const SamplingParams* const> params;  // of each plan row
    Tensor aux;                                     // [T, num_aux · Ht]
    const KvStorage& kv;
  };
  // Fills `proposed` of the rows; `sampled` and numeric_fault are there already.
  void propose(const ops::Ctx& ctx, const model::TapSink* tap_sink, const Inputs& inputs,
               Sampler& sampler, StepOutput& output);

 private:
  // A sequence that still wants drafts: where its newest guess comes from.
  struct Chain {
    size_t row_idx;
    int32_t last_position;  // position of its newest entry
    int32_t num_wanted;
    int32_t source_row;  // that entry's row in the last forward
  };

  void collect_entries(const Inputs& inputs, const StepOutput& output);
  void extend_chains(const Inputs& inputs);
  void take_guesses(const Inputs& inputs, Tensor logits, Sampler& sampler, StepOutput& output);

  const model::Eagle3& draft_;
  std::vector<Chain> chains_;
  // Rows of the next forward.
  std::vector<int32_t> next_ids_;
  std::vector<int32_t> positions_;
  std::vector<ops::SequenceRows> sequences_;
  std::vector<int32_t> source_rows_;  // where each row's feature lies
};

}  // namespace eyrie::runtime
