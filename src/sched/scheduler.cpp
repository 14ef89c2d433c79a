#include "sched/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/math.h"

namespace eyrie::sched {
namespace {

int32_t blocks_for(int64_t num_slots, int32_t block_size) {
  return checked_narrow<int32_t>(div_ceil(num_slots, block_size));
}

bool contains(const std::vector<TokenId>& tokens, TokenId token) {
  return std::ranges::find(tokens, token) != tokens.end();
}

// Empties used but keeps its elements, so that their inner vectors are used again.
template <typename T>
void recycle(std::vector<T>& used, std::vector<T>& spare) {
  std::ranges::move(used, std::back_inserter(spare));
  used.clear();
}

template <typename T>
T& append_recycled(std::vector<T>& used, std::vector<T>& spare) {
  if (spare.empty()) return used.emplace_back();
  used.push_back(std::move(spare.back()));
  spare.pop_back();
  return used.back();
}

bool ends_in_repetition(std::span<const TokenId> tokens, const RepetitionLimit& limit) {
  for (int32_t size = limit.min_pattern_size; size <= limit.max_pattern_size; ++size) {
    const size_t pattern = static_cast<size_t>(size);
    const size_t repeated = pattern * static_cast<size_t>(limit.min_count - 1);
    if (pattern + repeated > tokens.size()) return false;
    // Equal to itself a pattern further on, all the way: as many copies in a row.
    const auto tail = tokens.last(pattern + repeated);
    if (std::equal(tail.begin(), tail.begin() + static_cast<int64_t>(repeated),
                   tail.begin() + static_cast<int64_t>(pattern))) {
      return true;
    }
  }
  return false;
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(config),
      draft_limit_(config.num_speculative_tokens),
      pool_({.num_blocks = config.num_blocks,
             .block_size = config.block_size,
             .enable_prefix_caching = config.enable_prefix_caching,
             .key_has_next_token = config.num_speculative_tokens > 0 && config.draft_keeps_kv}) {
  CHECK_GE(config.max_num_seqs, 1);
  CHECK_GE(config.max_num_batched_tokens, 1);
  CHECK_GE(config.max_model_len, 2);
  CHECK_GE(config.num_speculative_tokens, 0);
  CHECK_GE(config.max_waiting, 1);
  CHECK_GE(config.long_prefill_token_threshold, 0);
  checked_narrow<int32_t>(int64_t{config.num_blocks} * config.block_size);  // slots are int32

  // Room for the largest step, so that a warm scheduler never allocates (untouched pages cost
  // nothing).
  const size_t max_rows = static_cast<size_t>(config.max_num_seqs);
  const size_t max_row_tokens =
      static_cast<size_t>(std::min(config.max_num_batched_tokens, config.max_model_len));
  const size_t max_row_blocks = static_cast<size_t>(
      std::min(config.num_blocks, blocks_for(config.max_model_len, config.block_size)));
  running_.reserve(max_rows);
  waiting_.reserve(static_cast<size_t>(config.max_waiting) + max_rows);
  slices_.reserve(max_rows);
  seats_.reserve(max_rows);
  found_blocks_.reserve(max_row_blocks);
  plan_.rows.reserve(max_rows);
  plan_.preempted.reserve(max_rows);
  spare_rows_.resize(max_rows);
  for (StepRow& row : spare_rows_) {
    row.tokens.reserve(max_row_tokens);
    row.block_table.reserve(max_row_blocks);
  }
  events_.reserve(max_rows);
  spare_events_.resize(max_rows);
  for (SequenceEvent& event : spare_events_) {
    event.new_tokens.reserve(static_cast<size_t>(config.num_speculative_tokens) + 1);
  }
}

bool Scheduler::fits(int64_t num_prompt_tokens, int64_t max_tokens) const {
  if (num_prompt_tokens < 1 || max_tokens < 1) return false;
  if (num_prompt_tokens >= config_.max_model_len) return false;
  // The last token of a sequence is never computed, so it needs no slot.
  const int64_t num_generated = std::min(max_tokens, config_.max_model_len - num_prompt_tokens);
  return div_ceil(num_prompt_tokens + num_generated - 1, config_.block_size) <= config_.num_blocks;
}

bool Scheduler::add(NewSequence added) {
  if (static_cast<int64_t>(waiting_.size()) >= config_.max_waiting) return false;
  if (!fits(static_cast<int64_t>(added.prompt.size()), added.max_tokens)) return false;
  auto owned = std::make_unique<Sequence>();
  Sequence& sequence = *owned;
  sequence.arrival = num_arrivals_++;
  sequence.tokens = std::move(added.prompt);
  sequence.request = std::move(added);
  sequence.num_prompt_tokens = sequence.num_tokens();
  const int32_t max_len = sequence.num_tokens() + sequence.num_remaining(config_.max_model_len);
  sequence.tokens.reserve(static_cast<size_t>(max_len));
  sequence.draft_tokens.reserve(static_cast<size_t>(config_.num_speculative_tokens));
  sequence.draft_record.tried.resize(static_cast<size_t>(config_.num_speculative_tokens));
  sequence.draft_record.accepted.resize(static_cast<size_t>(config_.num_speculative_tokens));
  sequence.blocks.reserve(blocks_for(config_.num_speculative_tokens + max_len, config_.block_size));
  CHECK(sequences_.emplace(sequence.request.seq_id, std::move(owned)).second, "sequence {} twice",
        sequence.request.seq_id);
  enqueue_waiting(sequence);
  return true;
}

void Scheduler::set_draft_limit(int32_t num_drafts) {
  CHECK(num_drafts >= 0 && num_drafts <= config_.num_speculative_tokens, "{}", num_drafts);
  draft_limit_ = num_drafts;
}

// -------------------------------------------------------------------------------- schedule

const StepPlan& Scheduler::schedule() {
  CHECK(!in_flight_, "step {} has not been answered", plan_.step);
  recycle(plan_.rows, spare_rows_);
  plan_.preempted.clear();
  plan_.num_tokens = 0;
  slices_.clear();
  budget_ = config_.max_num_batched_tokens;
  took_back_ = false;

  schedule_running();
  // After a preemption there are no blocks to give away.
  if (plan_.preempted.empty()) schedule_waiting();
  ask_policy();
  for (Slice& slice : slices_) size_drafts(slice);

  plan_.step = num_steps_;
  for (const Slice& slice : slices_) {
    StepRow& row = append_recycled(plan_.rows, spare_rows_);
    fill_row(slice, row);
    plan_.num_tokens += row.num_tokens;
    slice.sequence->is_in_flight = true;
  }
  in_flight_ = !plan_.empty();
  num_steps_ += in_flight_;
  return plan_;
}

// Gives every running sequence its known tokens, and blocks for them at any price. Drafts only get
// a share of the budget here; whether blocks are left for them is known when all have been served.
void Scheduler::schedule_running() {
  for (size_t idx = 0; idx < running_.size() && budget_ > 0; ++idx) {
    Sequence& sequence = *running_[idx];
    Slice slice{.sequence = &sequence, .num_known = chunk_size(sequence)};
    const int32_t num_reached = sequence.num_computed_tokens + slice.num_known;
    slice.samples = num_reached == sequence.num_tokens();
    const int32_t num_blocks = blocks_for(num_reached, config_.block_size);
    while (!pool_.grow(sequence.blocks, num_blocks)) {
      if (take_back_draft_blocks()) continue;
      const bool was_itself = running_.back() == &sequence;
      preempt_last();
      if (was_itself) return;  // it was the last, so all others have been served
    }
    budget_ -= slice.num_known;
    if (slice.samples) {
      const int32_t num_behind = static_cast<int32_t>(running_.size() - idx) - 1;
      slice.num_drafts =
          std::clamp(std::min({static_cast<int32_t>(sequence.draft_tokens.size()), draft_limit_,
                               sequence.num_remaining(config_.max_model_len) - 1}),
                     0, std::max(0, budget_ - num_behind));
      budget_ -= slice.num_drafts;
    }
    slices_.push_back(slice);
  }
}

void Scheduler::schedule_waiting() {
  while (!waiting_.empty() && budget_ > 0 &&
         static_cast<int32_t>(running_.size()) < config_.max_num_seqs) {
    Sequence& sequence = *waiting_.back();
    if (!admit(sequence)) {
      if (take_back_draft_blocks()) continue;
      return;  // nobody overtakes the first in the queue
    }
    waiting_.pop_back();
    enqueue_running(sequence);
    Slice slice{.sequence = &sequence, .num_known = chunk_size(sequence)};
    slice.samples = sequence.num_computed_tokens + slice.num_known == sequence.num_tokens();
    budget_ -= slice.num_known;
    slices_.push_back(slice);
  }
}

// Takes cached blocks and new ones for a waiting sequence; false with nothing changed when there
// are too few.
bool Scheduler::admit(Sequence& sequence) {
  // At least one token is left to compute: sampling needs its hidden state.
  const int32_t max_found = (sequence.num_tokens() - 1) / config_.block_size;
  pool_.find_prefix(sequence.tokens, sequence.request.cache_salt,
                    sequence.request.skip_prefix_cache ? 0 : max_found, found_blocks_);
  const int32_t num_found = static_cast<int32_t>(found_blocks_.size());
  const int32_t num_cached_tokens = num_found * config_.block_size;

  sequence.num_computed_tokens = num_cached_tokens;
  const int32_t num_slots = config_.reserve_full_prompt ? sequence.num_tokens()
                                                        : num_cached_tokens + chunk_size(sequence);
  const int32_t num_blocks = blocks_for(num_slots, config_.block_size);
  const int32_t num_spare = static_cast<int32_t>(running_.size());
  if (pool_.num_available() - pool_.count_cached(found_blocks_) <
      num_blocks - num_found + num_spare) {
    sequence.num_computed_tokens = 0;
    return false;
  }
  pool_.hold(sequence.blocks, found_blocks_);
  CHECK(pool_.grow(sequence.blocks, num_blocks));
  sequence.num_published_blocks = num_found;
  if (!std::exchange(sequence.was_admitted, true)) {
    sequence.num_cached_tokens = num_cached_tokens;
    if (config_.enable_prefix_caching && !sequence.request.skip_prefix_cache) {
      prefix_cache_queries_ += sequence.num_tokens();
      prefix_cache_hits_ += num_cached_tokens;
    }
  }
  return true;
}

int32_t Scheduler::chunk_size(const Sequence& sequence) const {
  const int32_t wanted = std::min(sequence.num_tokens() - sequence.num_computed_tokens, budget_);
  const int32_t threshold = config_.long_prefill_token_threshold;
  return threshold > 0 ? std::min(wanted, threshold) : wanted;
}

// Blocks beyond a sequence's known tokens were only for drafts, and nothing in them is needed: the
// draft writes its entries anew. Once a step, before drafts are sized; false when already done.
bool Scheduler::take_back_draft_blocks() {
  if (std::exchange(took_back_, true)) return false;
  for (Sequence* sequence : running_) {
    sequence->blocks.truncate(
        std::min(sequence->blocks.size(), blocks_for(sequence->num_tokens(), config_.block_size)));
  }
  return true;
}

void Scheduler::preempt_last() {
  Sequence& sequence = *running_.back();
  running_.pop_back();
  sequence.blocks.clear();
  sequence.num_computed_tokens = 0;
  sequence.num_published_blocks = 0;
  sequence.draft_tokens.clear();
  sequence.draft_record.num_behind = 0;
  ++sequence.num_preemptions;
  ++num_preemptions_;
  plan_.preempted.push_back(sequence.request.seq_id);
  enqueue_waiting(sequence);
}

// How many drafts each sampling sequence should propose. More than remaining - 2 would be wasted:
// this step emits one token at least, and of the rest the last one comes from the target.
void Scheduler::ask_policy() {
  seats_.clear();
  for (Slice& slice : slices_) {
    if (!slice.samples) continue;
    Sequence& sequence = *slice.sequence;
    const int32_t num_remaining = sequence.num_remaining(config_.max_model_len);
    slice.num_propose = std::max(0, std::min(draft_limit_, num_remaining - 2));
    seats_.push_back({.record = &sequence.draft_record,
                      .max_drafts = slice.num_propose,
                      .num_known = slice.num_known,
                      .num_remaining = num_remaining});
  }
  if (draft_policy_ == nullptr || config_.num_speculative_tokens == 0) return;
  draft_policy_->choose(seats_);
  size_t seat_idx = 0;
  for (Slice& slice : slices_) {
    if (slice.samples) {
      const DraftSeat& seat = seats_[seat_idx++];
      CHECK(seat.num_drafts >= 0 && seat.num_drafts <= seat.max_drafts, "{} of {} drafts",
            seat.num_drafts, seat.max_drafts);
      slice.num_propose = seat.num_drafts;
    }
    slice.draft_waits =
        config_.draft_keeps_kv && slice.num_propose == 0 && !draft_policy_->follows_always();
  }
}

// Trims the drafts to verify to the blocks that are left, and those to propose likewise:
//
//   known …  N-1 | N … N+k-1  | N+k … N+k+p-2      p drafts proposed after the step; when all k are
//   verified now |  k drafts  | draft model's KV   accepted, the draft writes entries up to N+k+p-2
void Scheduler::size_drafts(Slice& slice) {
  if (!slice.samples) return;
  Sequence& sequence = *slice.sequence;
  const int32_t num_tokens = sequence.num_tokens();
  const int32_t num_slots = (sequence.blocks.size() + pool_.num_available()) * config_.block_size;
  slice.num_drafts = std::min(slice.num_drafts, num_slots - num_tokens);

  const int32_t num_verified = num_tokens + slice.num_drafts;
  int32_t num_propose = slice.num_propose;
  int32_t num_lookahead = 0;
  if (config_.draft_keeps_kv) {
    num_propose =
        std::min(num_propose, std::min(num_slots, config_.max_model_len) - num_verified + 1);
    num_lookahead = std::max(0, num_propose - 1);
  }
  slice.num_propose = std::max(0, num_propose);
  CHECK(pool_.grow(sequence.blocks, blocks_for(num_verified + num_lookahead, config_.block_size)));
}

void Scheduler::fill_row(const Slice& slice, StepRow& row) const {
  const Sequence& sequence = *slice.sequence;
  const auto first = sequence.tokens.begin() + sequence.num_computed_tokens;
  row.seq_id = sequence.request.seq_id;
  row.first_position = sequence.num_computed_tokens;
  row.num_tokens = slice.num_known + slice.num_drafts;
  row.num_draft_tokens = slice.num_drafts;
  row.samples = slice.samples;
  row.num_drafts_to_propose = slice.num_propose;
  row.draft_waits = slice.draft_waits;
  row.next_token = slice.samples ? -1 : *(first + slice.num_known);
  row.tokens.assign(first, first + slice.num_known);
  row.tokens.insert(row.tokens.end(), sequence.draft_tokens.begin(),
                    sequence.draft_tokens.begin() + slice.num_drafts);
  row.block_table.assign(sequence.blocks.ids().begin(), sequence.blocks.ids().end());
}

// ---------------------------------------------------------------------------------- update

// The draft has taken a row's num_valid positions in, with all it had put off, or has put them off.
static void note_followed(Sequence& sequence, const StepRow& row, int32_t num_valid) {
  int32_t& num_behind = sequence.draft_record.num_behind;
  num_behind = row.draft_waits ? num_behind + num_valid : 0;
}

const std::vector<SequenceEvent>& Scheduler::update(const StepPlan& plan,
                                                    std::span<const RowResult> results) {
  CHECK(in_flight_ == !plan.empty() && plan.step == plan_.step, "step {} is not the one in flight",
        plan.step);
  CHECK_EQ(results.size(), plan.rows.size());
  in_flight_ = false;
  recycle(events_, spare_events_);
  for (size_t idx = 0; idx < results.size(); ++idx) {
    const StepRow& row = plan.rows[idx];
    CHECK_EQ(results[idx].seq_id, row.seq_id);
    const auto it = sequences_.find(row.seq_id);
    CHECK(it != sequences_.end() && it->second->is_in_flight, "sequence {}", row.seq_id);
    Sequence& sequence = *it->second;
    sequence.is_in_flight = false;
    if (sequence.is_dropped) {
      remove(sequence);
    } else {
      apply(sequence, row, results[idx]);
    }
  }
#ifndef NDEBUG
  check_integrity();
#endif
  return events_;
}

void Scheduler::apply(Sequence& sequence, const StepRow& row, const RowResult& result) {
  if (!row.samples) {
    CHECK(result.sampled.empty() && result.proposed.empty());
    sequence.num_computed_tokens += row.num_tokens;
    note_followed(sequence, row, row.num_tokens);
    publish_blocks(sequence);
    return;
  }
  const int32_t num_sampled = static_cast<int32_t>(result.sampled.size());
  CHECK(num_sampled >= 1 && num_sampled <= 1 + row.num_draft_tokens, "{} tokens for {} drafts",
        num_sampled, row.num_draft_tokens);
  CHECK(std::equal(result.sampled.begin(), result.sampled.end() - 1,
                   row.tokens.end() - row.num_draft_tokens),
        "sequence {}: an accepted token is not the draft", row.seq_id);

  SequenceEvent& event = append_recycled(events_, spare_events_);
  event.seq_id = row.seq_id;
  event.is_first = sequence.num_generated() == 0;
  event.num_draft_tokens = row.num_draft_tokens;
  event.num_accepted_tokens = num_sampled - 1;
  append_tokens(sequence, result.sampled, event);
  event.num_prompt_tokens = sequence.num_prompt_tokens;
  event.num_generated_tokens = sequence.num_generated();
  event.num_cached_tokens = sequence.num_cached_tokens;
  event.num_preemptions = sequence.num_preemptions;

  note_followed(sequence, row, row.num_tokens - row.num_draft_tokens + num_sampled - 1);
  if (draft_policy_ != nullptr && row.num_draft_tokens > 0) {
    draft_policy_->note_verified(sequence.draft_record, row.num_draft_tokens, num_sampled - 1);
  }

  // Accepted drafts were computed in this step; the last token was sampled from them. (After a cut
  // it has KV, which nobody will need.)
  sequence.num_computed_tokens = sequence.num_tokens() - 1;
  publish_blocks(sequence);
  if (event.finish != FinishReason::kNone) {
    if (draft_policy_ != nullptr) draft_policy_->note_finished(sequence.num_generated());
    remove(sequence);
    return;
  }
  const int32_t num_proposed = static_cast<int32_t>(result.proposed.size());
  CHECK_LE(num_proposed, row.num_drafts_to_propose);
  const int32_t num_useful =
      std::min(num_proposed, sequence.num_remaining(config_.max_model_len) - 1);
  sequence.draft_tokens.assign(result.proposed.begin(), result.proposed.begin() + num_useful);
}

// Token by token, so that a stop inside an accepted run is seen before the length cap behind it.
void Scheduler::append_tokens(Sequence& sequence, std::span<const TokenId> sampled,
                              SequenceEvent& event) {
  const NewSequence& request = sequence.request;
  event.new_tokens.clear();
  event.finish = FinishReason::kNone;
  event.stop_token = -1;
  event.stopped_by_eos = false;
  for (const TokenId token : sampled) {
    sequence.tokens.push_back(token);
    event.new_tokens.push_back(token);
    const bool may_stop = sequence.num_generated() >= request.min_tokens;
    const bool is_eos = !request.ignore_eos && contains(request.eos_token_ids, token);
    if (may_stop && (is_eos || contains(request.stop_token_ids, token))) {
      event.finish = FinishReason::kStop;
      event.stop_token = token;
      event.stopped_by_eos = is_eos;
      return;
    }
    if (sequence.num_remaining(config_.max_model_len) == 0) {
      event.finish = FinishReason::kLength;
      return;
    }
    const auto generated =
        std::span(sequence.tokens).subspan(static_cast<size_t>(sequence.num_prompt_tokens));
    if (may_stop && ends_in_repetition(generated, request.repetition)) {
      event.finish = FinishReason::kRepetition;
      return;
    }
  }
}

// Computed tokens are final and the token after them is known (it was sampled, or is the prompt's),
// so every full block of them may be shared.
void Scheduler::publish_blocks(Sequence& sequence) {
  const int32_t num_full = sequence.num_computed_tokens / config_.block_size;
  while (sequence.num_published_blocks < num_full) {
    pool_.publish(sequence.blocks, sequence.num_published_blocks++, sequence.tokens,
                  sequence.request.cache_salt);
  }
}

// ---------------------------------------------------------------------------------- queues

bool Scheduler::fault(SequenceId seq_id) {
  const auto it = sequences_.find(seq_id);
  if (it == sequences_.end() || it->second->is_dropped) return false;
  pool_.forget(it->second->blocks);
  return drop(seq_id);
}

bool Scheduler::drop(SequenceId seq_id) {
  const auto it = sequences_.find(seq_id);
  if (it == sequences_.end() || it->second->is_dropped) return false;
  // The step in flight writes to its blocks, so it keeps them until that step is over.
  if (it->second->is_in_flight) {
    it->second->is_dropped = true;
  } else {
    remove(*it->second);
  }
  return true;
}

void Scheduler::enqueue_waiting(Sequence& sequence) {
  sequence.is_running = false;
  const auto place = std::ranges::partition_point(
      waiting_, [&](const Sequence* other) { return sequence.goes_before(*other); });
  waiting_.insert(place, &sequence);
}

void Scheduler::enqueue_running(Sequence& sequence) {
  sequence.is_running = true;
  const auto place = std::ranges::partition_point(
      running_, [&](const Sequence* other) { return other->goes_before(sequence); });
  running_.insert(place, &sequence);
}

void Scheduler::remove(Sequence& sequence) {
  std::erase(sequence.is_running ? running_ : waiting_, &sequence);
  sequences_.erase(sequence.request.seq_id);
}

const Sequence* Scheduler::find(SequenceId seq_id) const {
  const auto it = sequences_.find(seq_id);
  return it == sequences_.end() ? nullptr : it->second.get();
}

SchedulerStats Scheduler::stats() const {
  return {.num_running = static_cast<int32_t>(running_.size()),
          .num_waiting = static_cast<int32_t>(waiting_.size()),
          .kv_usage = static_cast<double>(pool_.num_held()) / pool_.num_blocks(),
          .prefix_cache_queries = prefix_cache_queries_,
          .prefix_cache_hits = prefix_cache_hits_,
          .num_preemptions = num_preemptions_};
}

void Scheduler::check_integrity() const {
  pool_.check_integrity();
  CHECK_EQ(running_.size() + waiting_.size(), sequences_.size());
  CHECK(std::ranges::is_sorted(running_, [](auto* a, auto* b) { return a->goes_before(*b); }));
  CHECK(std::ranges::is_sorted(waiting_, [](auto* a, auto* b) { return b->goes_before(*a); }));
  int64_t num_held_by_us = 0, num_references = 0;
  for (const auto& [seq_id, sequence] : sequences_) {
    CHECK_LT(sequence->num_computed_tokens, sequence->num_tokens());
    CHECK(sequence->is_running || sequence->blocks.size() == 0);
    CHECK_GE(sequence->num_remaining(config_.max_model_len), 1);
    num_held_by_us += sequence->blocks.size();
    // Whatever is still to be written has one owner.
    const auto ids = sequence->blocks.ids();
    for (int32_t idx = sequence->num_published_blocks; idx < sequence->blocks.size(); ++idx) {
      CHECK_EQ(pool_.num_references(ids[static_cast<size_t>(idx)]), 1);
    }
  }
  for (kv::BlockId id = 0; id < pool_.num_blocks(); ++id) {
    num_references += pool_.num_references(id);
  }
  CHECK_EQ(num_held_by_us, num_references);
}

}  // namespace eyrie::sched
