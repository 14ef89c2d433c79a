#include "runtime/drafter.h"

#include <algorithm>

#include "runtime/stopwatch.h"

namespace eyrie::runtime {
namespace {

// Entries of the backlog that go through the layer at once: enough to read its weights once for
// many, few enough to need no more scratch than a prompt's chunk.
constexpr size_t kLateEntries = 256;

}  // namespace

int32_t num_valid_tokens(const sched::StepRow& row, const sched::RowResult& result) {
  if (!row.samples) return row.num_tokens;
  const auto num_accepted = static_cast<int32_t>(result.sampled.size()) - 1;
  return row.num_tokens - row.num_draft_tokens + num_accepted;
}

bool had_numeric_fault(const sched::StepRow& row, const sched::RowResult& result) {
  return row.samples && result.sampled.empty();
}

void Drafter::Entries::clear() {
  next_ids.clear();
  positions.clear();
  sequences.clear();
}

// The positions of a run; its next_ids are the caller's.
void Drafter::Entries::add_run(int32_t first_position, int32_t num_rows,
                               const int32_t* block_table) {
  sequences.push_back({.first_row = static_cast<int32_t>(positions.size()),
                       .num_rows = num_rows,
                       .first_position = first_position,
                       .block_table = block_table});
  for (int32_t i = 0; i < num_rows; ++i) positions.push_back(first_position + i);
}

void Drafter::put_off(const Inputs& inputs, size_t row_idx, int32_t num_positions) {
  const sched::StepRow& row = inputs.plan.rows[row_idx];
  const auto width = static_cast<size_t>(inputs.aux.dim(1));
  for (int32_t i = 0; i < num_positions; ++i) {
    const int64_t aux_row = inputs.first_rows[row_idx] + i;
    inputs.backlog.put_off(inputs.backlog.slot_of(row.block_table.data(), row.first_position + i),
                           {inputs.aux.data<float>() + aux_row * inputs.aux.stride(0), width});
  }
}

// Positions before a row's own that still wait, of every row that does not. Each entry depends on
// its own feature and token only, so runs may come in any order and from shared blocks.
void Drafter::take_in_backlog(const ops::Ctx& ctx, const Inputs& inputs, const StepOutput& output) {
  num_late_ = 0;
  const int32_t block_size = inputs.kv.block_size();
  for (size_t r = 0; r < inputs.plan.rows.size(); ++r) {
    const sched::StepRow& row = inputs.plan.rows[r];
    if (row.draft_waits || had_numeric_fault(row, output.rows[r])) continue;
    const int32_t* table = row.block_table.data();
    for (int32_t position = 0; position < row.first_position; ++position) {
      if (position % block_size == 0 &&
          inputs.backlog.num_waiting_in(table[position / block_size]) == 0) {
        position += block_size - 1;
        continue;
      }
      const int64_t slot = inputs.backlog.slot_of(table, position);
      if (!inputs.backlog.waits(slot)) continue;
      const bool goes_on = !late_.sequences.empty() &&
                           late_.sequences.back().block_table == table &&
                           late_.positions.back() + 1 == position;
      if (goes_on) {
        late_.positions.push_back(position);
        ++late_.sequences.back().num_rows;
      } else {
        late_.add_run(position, 1, table);
      }
      late_.next_ids.push_back(inputs.texts[r][static_cast<size_t>(position) + 1]);
      late_slots_.push_back(slot);
      if (late_slots_.size() == kLateEntries) flush_late(ctx, inputs);
    }
    // Another row may hold the same slots: they are taken in once.
    flush_late(ctx, inputs);
  }
}

void Drafter::flush_late(const ops::Ctx& ctx, const Inputs& inputs) {
  if (late_slots_.empty()) return;
  const ArenaScope scratch(*ctx.arena);
  const int64_t width = inputs.aux.dim(1);
  const Tensor features = ctx.arena->f32({static_cast<int64_t>(late_slots_.size()), width});
  for (size_t i = 0; i < late_slots_.size(); ++i) {
    inputs.backlog.read(late_slots_[i], {features.data<float>() + static_cast<int64_t>(i) * width,
                                         static_cast<size_t>(width)});
    inputs.backlog.take_in(late_slots_[i]);
  }
  const model::Step step{.ctx = ctx,
                         .positions = late_.positions,
                         .sequences = late_.sequences,
                         .caches = inputs.kv.draft()};
  draft_.forward(step, late_.next_ids, draft_.fuse(step, features), {});
  num_late_ += static_cast<int32_t>(late_slots_.size());
  late_.clear();
  late_slots_.clear();
}

void Drafter::collect_entries(const Inputs& inputs, const StepOutput& output) {
  chains_.clear();
  entries_.clear();
  source_rows_.clear();
  for (size_t r = 0; r < inputs.plan.rows.size(); ++r) {
    const sched::StepRow& row = inputs.plan.rows[r];
    const sched::RowResult& result = output.rows[r];
    if (had_numeric_fault(row, result)) continue;
    const int32_t num_entries = num_valid_tokens(row, result);
    if (row.draft_waits) {
      put_off(inputs, r, num_entries);
      continue;
    }
    const TokenId after = row.samples ? result.sampled.back() : row.next_token;
    CHECK_GE(after, 0);

    entries_.add_run(row.first_position, num_entries, row.block_table.data());
    for (int32_t i = 0; i < num_entries; ++i) {
      const bool last = i + 1 == num_entries;
      entries_.next_ids.push_back(last ? after : row.tokens[static_cast<size_t>(i) + 1]);
      source_rows_.push_back(inputs.first_rows[r] + i);
      inputs.backlog.take_in(
          inputs.backlog.slot_of(row.block_table.data(), row.first_position + i));
    }

    // A chain's entries stay inside the blocks the sequence holds.
    const int32_t last_position = row.first_position + num_entries - 1;
    const auto num_slots = static_cast<int32_t>(row.block_table.size()) * inputs.kv.block_size();
    const int32_t num_wanted = std::min(row.num_drafts_to_propose, num_slots - last_position);
    if (row.samples && num_wanted > 0) {
      chains_.push_back({.row_idx = r,
                         .last_position = last_position,
                         .num_wanted = num_wanted,
                         .source_row = static_cast<int32_t>(entries_.positions.size()) - 1});
    }
  }
}

model::Eagle3::Newest Drafter::newest_entries(const Inputs& inputs) {
  newest_.clear();
  newest_rows_.clear();
  for (const Chain& chain : chains_) {
    newest_.add_run(chain.last_position, 1, inputs.plan.rows[chain.row_idx].block_table.data());
    newest_rows_.push_back(chain.source_row);
  }
  return {.rows = newest_rows_, .positions = newest_.positions, .sequences = newest_.sequences};
}

void Drafter::take_guesses(const Inputs& inputs, Tensor logits, Sampler& sampler,
                           StepOutput& output) {
  const auto width = static_cast<size_t>(logits.dim(1));
  for (size_t i = 0; i < chains_.size(); ++i) {
    Chain& chain = chains_[i];
    const std::span<const float> row(logits.data<float>() + i * width, width);
    // Entry p couples the feature of p with token p + 1 and guesses token p + 2.
    const TokenId token = sampler.sample_draft(row, draft_.d2t(), *inputs.params[chain.row_idx],
                                               chain.last_position + int64_t{2});
    chain.source_row = static_cast<int32_t>(i);
    // NaN in the draft is no reason to stop the request: it just proposes no more.
    if (token < 0) {
      chain.num_wanted = 0;
    } else {
      output.rows[chain.row_idx].proposed.push_back(token);
    }
  }
  std::erase_if(chains_, [&](const Chain& chain) {
    return static_cast<int32_t>(output.rows[chain.row_idx].proposed.size()) >= chain.num_wanted;
  });
}

void Drafter::extend_chains(const Inputs& inputs, const StepOutput& output) {
  entries_.clear();
  source_rows_.clear();
  for (Chain& chain : chains_) {
    ++chain.last_position;
    entries_.add_run(chain.last_position, 1, inputs.plan.rows[chain.row_idx].block_table.data());
    entries_.next_ids.push_back(output.rows[chain.row_idx].proposed.back());
    source_rows_.push_back(chain.source_row);
  }
}

void Drafter::propose(const ops::Ctx& ctx, const model::TapSink* tap_sink, const Inputs& inputs,
                      Sampler& sampler, StepOutput& output) {
  const auto step = [&] {
    return model::Step{.ctx = ctx,
                       .positions = entries_.positions,
                       .sequences = entries_.sequences,
                       .caches = inputs.kv.draft(),
                       .tap_sink = tap_sink};
  };
  const auto gather = [&](Tensor from) {
    const Tensor rows =
        ctx.arena->empty(from.dtype(), {static_cast<int64_t>(source_rows_.size()), from.dim(1)});
    ops::gather_rows(ctx, {.out = rows, .x = from, .rows = source_rows_});
    return rows;
  };
  sched::StepTimes& times = output.times;

  Tensor last;
  {
    const Stopwatch watch(times.follow_seconds);
    take_in_backlog(ctx, inputs, output);
    collect_entries(inputs, output);
    times.num_followed = num_late_ + static_cast<int32_t>(entries_.positions.size());
    if (entries_.positions.empty()) return;
    last = draft_.forward(step(), entries_.next_ids, draft_.fuse(step(), gather(inputs.aux)),
                          newest_entries(inputs));
  }
  while (!chains_.empty()) {
    sched::StepTimes::DraftPass& pass = times.passes.emplace_back();
    pass.num_rows = static_cast<int32_t>(chains_.size());
    if (times.passes.size() > 1) {
      const Stopwatch watch(pass.forward_seconds);
      extend_chains(inputs, output);
      last = draft_.forward(step(), entries_.next_ids, gather(feature_));
    }
    const Stopwatch watch(pass.guess_seconds);
    const model::Eagle3::Guess guess = draft_.guess(step(), last);
    feature_ = guess.feature;
    take_guesses(inputs, guess.logits, sampler, output);
  }
}

}  // namespace eyrie::runtime
