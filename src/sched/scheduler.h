// Decides what each engine step computes. One idea: every sequence has tokens, some of them
// computed, and the computed ones catch up with the tokens (drafts included) under a token budget.
// There are no prefill and decode phases; chunked prefill, prefix hits, preemption and speculation
// are cases of catching up. A pure state machine on the engine thread: no clock, I/O, randomness or
// device.
//
//   while (serving) {
//     …add() and abort() what arrived…
//     const StepPlan& plan = scheduler.schedule();
//     if (plan.empty()) continue;                       // nothing to do: wait for the inbox
//     results = runner.execute(plan);
//     for (const SequenceEvent& event : scheduler.update(plan, results)) publish(event);
//   }
//
// Policy
//  - Running sequences before waiting ones; both in order of priority, then arrival.
//  - Decoding sequences are older than the prompt that is being computed in chunks, so they come
//    first and the prompt takes what is left of the budget: neither starves the other.
//  - A waiting sequence is admitted when there are blocks for its tokens beyond what is cached, and
//    one spare block per running sequence (else it would soon be preempted).
//  - When a running sequence lacks a block, blocks that others hold only for drafts are taken back;
//    then the last in order is preempted: it loses its blocks and later recomputes (or finds in the
//    prefix cache) its prompt and what it has generated. Its output does not change.
//  - How many drafts a sequence proposes is a DraftPolicy's to say.
//  - Drafts never cost anybody anything: they get the budget that leaves every running sequence its
//    own token, and blocks that nobody needs; short of either they are trimmed, down to none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/block_pool.h"
#include "sched/draft_policy.h"
#include "sched/request.h"
#include "sched/sequence.h"
#include "sched/step_plan.h"

namespace eyrie::sched {

struct SchedulerConfig {
  int32_t max_num_seqs = 256;             // running at once
  int32_t max_num_batched_tokens = 2048;  // budget of a step, drafts included
  int32_t max_model_len = 4096;           // prompt + generated
  int32_t block_size = 16;
  int32_t num_blocks = 0;
  bool enable_prefix_caching = true;
  int32_t num_speculative_tokens = 0;  // K, 0 = no drafts
  bool draft_keeps_kv = true;          // an EAGLE draft; false for n-gram look-up
  int32_t max_waiting = 4096;
  // Admission takes blocks for all known tokens, not only for the first chunk.
  bool reserve_full_prompt = true;
  // Most tokens one sequence computes in a step (0 = no limit but the budget), so that short
  // prompts need not wait for a long one.
  int32_t long_prefill_token_threshold = 0;
};

// Counters are totals since the start.
struct SchedulerStats {
  int32_t num_running = 0;
  int32_t num_waiting = 0;           // preempted ones included
  double kv_usage = 0;               // held blocks / all blocks, 0..1
  int64_t prefix_cache_queries = 0;  // tokens looked up at first admission
  int64_t prefix_cache_hits = 0;     // tokens found
  int64_t num_preemptions = 0;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Whether such a sequence can finish at all, alone in the cache: its prompt leaves room for a
  // token in max_model_len, and its longest form has blocks. Depends on the config only; any
  // thread.
  bool fits(int64_t num_prompt_tokens, int64_t max_tokens) const;

  // False, with nothing changed: the waiting queue is full, or it does not fit().
  [[nodiscard]] bool add(NewSequence sequence);

  // Drops a sequence wherever it is; false when unknown (already finished). No event follows, not
  // even for a step in flight. finish() is for a stop that the engine found in the text.
  bool abort(SequenceId seq_id) { return drop(seq_id); }
  bool finish(SequenceId seq_id) { return drop(seq_id); }
  // As abort(), for a sequence whose computation went wrong: nobody finds its blocks again, those
  // it published or took from the prefix cache included.
  bool fault(SequenceId seq_id);

  // The next step. A plan with rows must be answered by update() before the next schedule(); an
  // empty one need not. The reference is good until the next schedule().
  const StepPlan& schedule();

  // results[i] answers plan.rows[i]. The reference is good until the next update().
  const std::vector<SequenceEvent>& update(const StepPlan& plan,
                                           std::span<const RowResult> results);

  // Most drafts to verify and to propose from the next step on, 0..num_speculative_tokens.
  void set_draft_limit(int32_t num_drafts);
  // Who decides within that limit; outlives its use here. Null (as at first): always the limit.
  void set_draft_policy(DraftPolicy* policy) { draft_policy_ = policy; }

  bool has_work() const { return !sequences_.empty(); }
  int32_t num_sequences() const { return static_cast<int32_t>(sequences_.size()); }
  SchedulerStats stats() const;
  bool reset_prefix_cache() { return pool_.reset_prefix_cache(); }

  const SchedulerConfig& config() const { return config_; }
  const kv::BlockPool& pool() const { return pool_; }
  const Sequence* find(SequenceId seq_id) const;
  // CHECKs the pool, that its references are exactly our sequences', and the order of the queues.
  void check_integrity() const;

 private:
  // A row in the making: counts only, until fill_row() copies tokens and blocks.
  struct Slice {
    Sequence* sequence = nullptr;
    int32_t num_known = 0;   // known tokens to compute
    int32_t num_drafts = 0;  // drafts to verify after them
    int32_t num_propose = 0;
    bool samples = false;
    bool draft_waits = false;
  };

  void schedule_running();
  void schedule_waiting();
  bool admit(Sequence& sequence);
  int32_t chunk_size(const Sequence& sequence) const;
  bool ensure_slots(Sequence& sequence, int32_t num_slots);
  void preempt_last();
  bool take_back_draft_blocks();
  void ask_policy();
  void size_drafts(Slice& slice);
  void fill_row(const Slice& slice, StepRow& row) const;

  void apply(Sequence& sequence, const StepRow& row, const RowResult& result);
  void append_tokens(Sequence& sequence, std::span<const TokenId> sampled, SequenceEvent& event);
  void publish_blocks(Sequence& sequence);

  bool drop(SequenceId seq_id);
  void enqueue_waiting(Sequence& sequence);
  void enqueue_running(Sequence& sequence);
  void remove(Sequence& sequence);

  SchedulerConfig config_;
  int32_t draft_limit_ = 0;
  DraftPolicy* draft_policy_ = nullptr;
  kv::BlockPool pool_;  // before the sequences: their lists refer to it
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> running_;  // served from the front, preempted from the back
  std::vector<Sequence*> waiting_;  // served from the back
  int64_t num_arrivals_ = 0;
  int64_t num_steps_ = 0;
  bool in_flight_ = false;
  int64_t prefix_cache_queries_ = 0;
  int64_t prefix_cache_hits_ = 0;
  int64_t num_preemptions_ = 0;

  // Of the step being planned; kept as members so that their memory is reused.
  int32_t budget_ = 0;
  bool took_back_ = false;
  std::vector<Slice> slices_;
  std::vector<DraftSeat> seats_;
  std::vector<kv::BlockId> found_blocks_;
  StepPlan plan_;
  std::vector<StepRow> spare_rows_;
  std::vector<SequenceEvent> events_;
  std::vector<SequenceEvent> spare_events_;
};

}  // namespace eyrie::sched
