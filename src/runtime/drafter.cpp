#include "runtime/drafter.h"

#include <algorithm>

namespace eyrie::runtime {

// Known tokens of the row after this step that the row itself computed: a rejected draft is none.
static int32_t num_valid_tokens(const sched::StepRow& row, const sched::RowResult& result) {
  if (!row.samples) return row.num_tokens;
  const auto num_accepted = static_cast<int32_t>(result.sampled.size()) - 1;
  return row.num_tokens - row.num_draft_tokens + num_accepted;
}

void Drafter::collect_entries(const Inputs& inputs, const StepOutput& output) {
  chains_.clear();
  next_ids_.clear();
  positions_.clear();
  sequences_.clear();
  source_rows_.clear();
  for (size_t r = 0; r < inputs.plan.rows.size(); ++r) {
    const sched::StepRow& row = inputs.plan.rows[r];
    const sched::RowResult& result = output.rows[r];
    if (row.samples && result.sampled.empty()) continue;  // numeric fault
    const int32_t num_entries = num_valid_tokens(row, result);
    const TokenId after = row.samples ? result.sampled.back() : row.next_token;
    CHECK_GE(after, 0);

    sequences_.push_back({.first_row = static_cast<int32_t>(positions_.size()),
                          .num_rows = num_entries,
                          .first_position = row.first_position,
                          .block_table = row.block_table.data()});
    for (int32_t i = 0; i < num_entries; ++i) {
      const bool last = i + 1 == num_entries;
      next_ids_.push_back(last ? after : row.tokens[static_cast<size_t>(i) + 1]);
      positions_.push_back(row.first_position + i);
      source_rows_.push_back(inputs.first_rows[r] + i);
    }

    // A chain's entries stay inside the blocks the sequence holds.
    const int32_t last_position = row.first_position + num_entries - 1;
    const auto num_slots = static_cast<int32_t>(row.block_table.size()) * inputs.kv.block_size();
    const int32_t num_wanted = std::min(row.num_drafts_to_propose, num_slots - last_position);
    if (row.samples && num_wanted > 0) {
      chains_.push_back({.row_idx = r,
                         .last_position = last_position,
                         .num_wanted = num_wanted,
                         .source_row = static_cast<int32_t>(positions_.size()) - 1});
    }
  }
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
  next_ids_.clear();
  for (const Chain& chain : chains_) {
    next_ids_.push_back(output.rows[chain.row_idx].proposed.back());
  }
}

void Drafter::extend_chains(const Inputs& inputs) {
  positions_.clear();
  sequences_.clear();
  source_rows_.clear();
  for (Chain& chain : chains_) {
    ++chain.last_position;
    sequences_.push_back({.first_row = static_cast<int32_t>(positions_.size()),
                          .num_rows = 1,
                          .first_position = chain.last_position,
                          .block_table = inputs.plan.rows[chain.row_idx].block_table.data()});
    positions_.push_back(chain.last_position);
    source_rows_.push_back(chain.source_row);
  }
}

void Drafter::propose(const ops::Ctx& ctx, const model::TapSink* tap_sink, const Inputs& inputs,
                      Sampler& sampler, StepOutput& output) {
  const auto step = [&] {
    return model::Step{.ctx = ctx,
                       .positions = positions_,
                       .sequences = sequences_,
                       .caches = inputs.kv.draft(),
                       .tap_sink = tap_sink};
  };
  const auto gather = [&](Tensor from) {
    const Tensor rows = ctx.arena->f32({static_cast<int64_t>(source_rows_.size()), from.dim(1)});
    model::gather_rows(rows, from, source_rows_);
    return rows;
  };

  collect_entries(inputs, output);
  if (positions_.empty()) return;
  Tensor feature = draft_.fuse(step(), gather(inputs.aux));
  Tensor last = draft_.forward(step(), next_ids_, feature);
  while (!chains_.empty()) {
    source_rows_.clear();
    for (const Chain& chain : chains_) source_rows_.push_back(chain.source_row);
    const model::Eagle3::Guess guess = draft_.guess(step(), last, source_rows_);
    take_guesses(inputs, guess.logits, sampler, output);
    if (chains_.empty()) break;
    extend_chains(inputs);
    last = draft_.forward(step(), next_ids_, gather(guess.feature));
    for (size_t i = 0; i < chains_.size(); ++i) chains_[i].source_row = static_cast<int32_t>(i);
  }
}

}  // namespace eyrie::runtime
