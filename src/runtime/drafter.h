// Lets an EAGLE-3 draft follow the sequences and propose their next tokens, batched over all rows
// of a step. After the target has run and the rows are sampled, a row of a sequence with N known
// tokens (the new ones included) gives the draft these entries:
//
//   catch-up   positions first_position … N-2, true features, KV slots alike;  last one → d_1
//   chain      positions N-1, N, … (K-1 of them), own output as feature        → d_2 … d_K
//
// A row that does not reach the sequence's end (a prompt chunk) only catches up; so do all entries
// but the newest of each chain, and they skip what only guesses need. Features of
// rejected drafts are skipped. A row that waits leaves its features in the backlog; the next row of
// that sequence (or of another with the same block) that does not wait takes them in first.
// Owned by the runner, engine thread; all vectors are reused.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/eagle3.h"
#include "runtime/draft_backlog.h"
#include "runtime/kv_storage.h"
#include "runtime/model_runner.h"

namespace eyrie::runtime {

// Known tokens of the row after this step that the row itself computed: a rejected draft is none.
int32_t num_valid_tokens(const sched::StepRow& row, const sched::RowResult& result);
bool had_numeric_fault(const sched::StepRow& row, const sched::RowResult& result);

class Drafter {
 public:
  explicit Drafter(const model::Eagle3& draft) : draft_(draft) {}

  struct Inputs {
    const sched::StepPlan& plan;
    std::span<const int32_t> first_rows;              // of each plan row, in aux
    std::span<const SamplingParams* const> params;    // of each plan row
    std::span<const std::span<const TokenId>> texts;  // all known tokens, new ones too; likewise
    Tensor aux;                                       // [T, num_aux · Ht]
    const KvStorage& kv;
    DraftBacklog& backlog;
  };
  // Fills `proposed` of the rows and the draft's part of the times; `sampled` and numeric_fault are
  // there already.
  void propose(const ops::Ctx& ctx, const model::TapSink* tap_sink, const Inputs& inputs,
               Sampler& sampler, StepOutput& output);

 private:
  // A sequence that still wants drafts: where its newest guess comes from.
  struct Chain {
    size_t row_idx;
    int32_t last_position;  // position of its newest entry
    int32_t num_wanted;
    int32_t source_row;  // that entry's row in the last forward, then in the last guess
  };

  // Entries of one forward of the layer.
  struct Entries {
    std::vector<int32_t> next_ids;
    std::vector<int32_t> positions;
    std::vector<ops::SequenceRows> sequences;
    void clear();
    void add_run(int32_t first_position, int32_t num_rows, const int32_t* block_table);
  };

  void put_off(const Inputs& inputs, size_t row_idx, int32_t num_positions);
  void take_in_backlog(const ops::Ctx& ctx, const Inputs& inputs, const StepOutput& output);
  void flush_late(const ops::Ctx& ctx, const Inputs& inputs);
  void collect_entries(const Inputs& inputs, const StepOutput& output);
  model::Eagle3::Newest newest_entries(const Inputs& inputs);
  void extend_chains(const Inputs& inputs, const StepOutput& output);
  void take_guesses(const Inputs& inputs, Tensor logits, Sampler& sampler, StepOutput& output);

  const model::Eagle3& draft_;
  std::vector<Chain> chains_;
  Entries entries_;                   // of the next forward
  std::vector<int32_t> source_rows_;  // where each entry's feature lies
  Entries newest_;                    // of each chain, of those
  std::vector<int32_t> newest_rows_;
  Entries late_;  // from the backlog
  std::vector<int64_t> late_slots_;
  int32_t num_late_ = 0;
  Tensor feature_;  // of the last guess: what the chains' next entries are fed
};

}  // namespace eyrie::runtime
