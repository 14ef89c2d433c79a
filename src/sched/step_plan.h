// What one engine step does, as a plain printable value: the scheduler makes it, the runner
// executes it, tests snapshot and replay it. Nothing in it refers to memory of the scheduler.
//
// A sequence has N known tokens t_0..t_{N-1}, of which num_computed have their KV written. A row
// computes a run of positions; the last positions may be drafts:
//
//   position   num_computed …                 N-1 | N   …  N+k-1
//   token      t        …                t_{N-1} | d_1 …  d_k        (drafts, not yet accepted)
//              `------------- num_tokens --------------------'
//
// There is no prefill and no decode: a row that reaches t_{N-1} samples, any other does not.
//
// A draft model that keeps KV writes its entry for every position that a step computes for good
// (the prompt's, t_{N-1}'s and the accepted drafts', from true features), also when it proposes
// nothing: the prefix cache hands these blocks to others. Where draft_waits it may put that off to
// a later row of any sequence that holds the block; it then writes into shared blocks too, always
// the same. A block_table is good for its step only: later ones may name other blocks of equal
// content at any index.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace eyrie::sched {

using SequenceId = int64_t;
using TokenId = int32_t;
using BlockId = int32_t;

struct StepRow {
  SequenceId seq_id = 0;
  int32_t first_position = 0;    // == the sequence's num_computed_tokens
  int32_t num_tokens = 0;        // positions computed this step, drafts included
  int32_t num_draft_tokens = 0;  // how many of them, at the end, are drafts to verify
  bool samples = false;          // the row reaches the sequence's last known token
  // Drafts to propose after this step (0 = none): bounded by K, max_tokens and max_model_len, and
  // covered by the blocks in block_table (draft KV is written at the same slots).
  int32_t num_drafts_to_propose = 0;
  bool draft_waits = false;  // proposes nothing, and need not take this row's positions in yet
  // The token after the last position of a row that does not sample (a prompt chunk's true next
  // token, needed by the draft model, which sees tokens shifted by one); -1 when samples is true.
  TokenId next_token = -1;
  std::vector<TokenId> tokens;       // [num_tokens]
  std::vector<BlockId> block_table;  // all blocks of the sequence, covering lookahead slots too

  bool operator==(const StepRow&) const = default;
};

struct StepPlan {
  int64_t step = 0;
  std::vector<StepRow> rows;          // running order: oldest first
  std::vector<SequenceId> preempted;  // lost their blocks this step; will be recomputed
  int32_t num_tokens = 0;             // sum over rows

  bool empty() const { return rows.empty(); }
  std::string to_string() const;
  bool operator==(const StepPlan&) const = default;
};

// What the runner found for a row that samples: 1 + number of accepted drafts tokens, in order, and
// the drafts it proposes for the next step (at most num_drafts_to_propose).
struct RowResult {
  SequenceId seq_id = 0;
  std::vector<TokenId> sampled;   // [1 + accepted]; empty when the row does not sample
  std::vector<TokenId> proposed;  // next step's drafts
};

}  // namespace eyrie::sched
