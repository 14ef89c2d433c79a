#include "runtime/device_drafter.h"

#include <algorithm>
#include <bit>

#include "runtime/drafter.h"
#include "runtime/stopwatch.h"

namespace eyrie::runtime {
namespace {

constexpr int32_t kMostRecordedEntries = 512;

// Coarser than rows of the target: all that an entry costs is its keys and values, and lengths that
// size themselves meet every number of them.
int32_t recorded_entries(int32_t entries) {
  return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(entries)));
}

size_t input_bytes(const DeviceLimits& limits) {
  constexpr size_t kSlack = 4096;
  const auto tokens = static_cast<size_t>(limits.max_tokens);
  const auto sequences = static_cast<size_t>(limits.max_sequences);
  const auto depths = static_cast<size_t>(limits.max_rows_each);
  const size_t of_chain = 2 * sizeof(int32_t) + depths * (sizeof(int32_t) + sizeof(ops::SampleRow) +
                                                          sizeof(ops::SequenceRows) + 48);
  return kSlack +
         2 * (tokens * 3 * sizeof(int32_t) + sequences * (sizeof(ops::SequenceRows) + of_chain)) +
         2 * sequences * static_cast<size_t>(limits.max_table_size) * sizeof(int32_t);
}

}  // namespace

DeviceDrafter::DeviceDrafter(const ops::Ctx& ctx, const model::Eagle3& draft, const KvStorage& kv,
                             Tensor aux, const DeviceLimits& limits)
    : ctx_(ctx), draft_(draft), kv_(kv), aux_(aux), limits_(limits), inputs_(input_bytes(limits)) {
  const std::span<const int32_t> d2t = draft.d2t();
  if (!d2t.empty()) {
    id_map_memory_ = Buffer(d2t.size_bytes(), ops::gpu::device_memory());
    ops::gpu::copy_to_device(id_map_memory_.data(), d2t.data(), d2t.size_bytes(), ctx.stream);
    ops::gpu::synchronize(ctx.stream);
    id_map_ = {id_map_memory_.as<int32_t>(), d2t.size()};
  }
  const size_t bytes = static_cast<size_t>(limits.max_rows_each) *
                       static_cast<size_t>(recorded_rows(limits.max_sequences)) * sizeof(int32_t);
  ids_ = Buffer(bytes, ops::gpu::device_memory());
  host_ids_ = Buffer(bytes, ops::gpu::pinned_memory());
}

void DeviceDrafter::collect(const Inputs& inputs, const StepOutput& output) {
  next_ids_.clear();
  positions_.clear();
  source_rows_.clear();
  table_sizes_.clear();
  sequences_.clear();
  chains_.clear();
  for (size_t r = 0; r < inputs.plan.rows.size(); ++r) {
    const sched::StepRow& row = inputs.plan.rows[r];
    const sched::RowResult& result = output.rows[r];
    if (had_numeric_fault(row, result)) continue;
    const int32_t num_entries = num_valid_tokens(row, result);
    const TokenId after = row.samples ? result.sampled.back() : row.next_token;
    CHECK_GE(after, 0);
    const auto table_size = static_cast<int32_t>(row.block_table.size());
    sequences_.push_back({.first_row = static_cast<int32_t>(positions_.size()),
                          .num_rows = num_entries,
                          .first_position = row.first_position,
                          .block_table = row.block_table.data()});
    table_sizes_.push_back(table_size);
    for (int32_t i = 0; i < num_entries; ++i) {
      const bool last = i + 1 == num_entries;
      next_ids_.push_back(last ? after : row.tokens[static_cast<size_t>(i) + 1]);
      positions_.push_back(row.first_position + i);
      source_rows_.push_back(inputs.first_rows[r] + i);
    }
    // A chain's entries stay inside the blocks the sequence holds.
    const int32_t last_position = row.first_position + num_entries - 1;
    const int32_t num_wanted =
        std::min(row.num_drafts_to_propose, table_size * kv_.block_size() - last_position);
    if (row.samples && num_wanted > 0) {
      chains_.push_back({.row_idx = r,
                         .last_position = last_position,
                         .num_wanted = num_wanted,
                         .source_row = static_cast<int32_t>(positions_.size()) - 1,
                         .sequence_idx = sequences_.size() - 1});
    }
  }
}

DeviceDrafter::Shape DeviceDrafter::shape_now() const {
  Shape shape{.entries = static_cast<int32_t>(positions_.size()),
              .sequences = static_cast<int32_t>(sequences_.size()),
              .chains = static_cast<int32_t>(chains_.size())};
  for (const ops::SequenceRows& sequence : sequences_) {
    shape.rows_each = std::max(shape.rows_each, sequence.num_rows);
  }
  for (const Chain& chain : chains_) shape.depths = std::max(shape.depths, chain.num_wanted);
  shape.is_recordable = !limits_.enforce_eager && shape.entries <= kMostRecordedEntries &&
                        recorded_entries(shape.entries) <= limits_.max_tokens &&
                        shape.rows_each <= limits_.max_rows_each;
  if (shape.is_recordable) {
    shape.entries = recorded_entries(shape.entries);
    shape.sequences = recorded_rows(shape.sequences);
    // How many were accepted changes from step to step; the work hardly does.
    shape.rows_each = limits_.max_rows_each;
    shape.chains = shape.depths > 0 ? shape.sequences : 0;
  }
  return shape;
}

void DeviceDrafter::place(const Inputs& inputs, const Shape& shape) {
  inputs_.begin();
  const auto fill = [&](std::span<const int32_t> from, int32_t count) {
    const DeviceSlot<int32_t> slot = inputs_.take<int32_t>(static_cast<size_t>(count));
    const auto end = std::copy(from.begin(), from.end(), slot.host.begin());
    std::fill(end, slot.host.end(), 0);
    return slot.device;
  };
  placed_.next_ids = fill(next_ids_, shape.entries);
  placed_.positions = fill(positions_, shape.entries);
  placed_.source_rows = fill(source_rows_, shape.entries);
  const auto sequences = inputs_.take<ops::SequenceRows>(static_cast<size_t>(shape.sequences));
  placed_.sequences = sequences.device;
  placed_.passes.clear();
  const auto chains = static_cast<size_t>(shape.chains);
  const auto newest_rows = inputs_.take<int32_t>(chains);
  placed_.newest_rows = newest_rows.device;
  std::ranges::fill(newest_rows.host, 0);
  for (size_t c = 0; c < chains_.size(); ++c) newest_rows.host[c] = chains_[c].source_row;
  for (int32_t depth = 0; depth < shape.depths; ++depth) {
    placed_.passes.push_back({.samples = inputs_.take<ops::SampleRow>(chains),
                              .positions = inputs_.take<int32_t>(chains),
                              .sequences = inputs_.take<ops::SequenceRows>(chains)});
  }
  take_tables(inputs_, sequences_, table_sizes_, sequences.host);
  for (int32_t depth = 0; depth < shape.depths; ++depth) {
    fill_pass(inputs, depth, sequences.host);
  }
  inputs_.upload(ctx_.stream);
}

// Chains that want no draft so deep, and those that only fill the recording, have no rows in the
// pass: they write nothing, and what is guessed for them is nobody's.
void DeviceDrafter::fill_pass(const Inputs& inputs, int32_t depth,
                              std::span<const ops::SequenceRows> with_tables) {
  const Pass& pass = placed_.passes[static_cast<size_t>(depth)];
  std::ranges::fill(pass.samples.host, ops::SampleRow{});
  std::ranges::fill(pass.positions.host, 0);
  std::ranges::fill(pass.sequences.host, ops::SequenceRows{});
  for (size_t c = 0; c < chains_.size(); ++c) {
    const Chain& chain = chains_[c];
    if (depth >= chain.num_wanted) continue;
    const int32_t position = chain.last_position + depth;
    const SamplingParams& params = *inputs.params[chain.row_idx];
    // Entry p couples the feature of p with token p + 1 and guesses token p + 2.
    pass.samples.host[c] = {
        .seed = params.seed,
        .position = position + int64_t{2},
        .temperature = params.greedy() ? 0.0f : static_cast<float>(params.temperature)};
    pass.positions.host[c] = position;
    pass.sequences.host[c] = {.first_row = static_cast<int32_t>(c),
                              .num_rows = 1,
                              .first_position = position,
                              .block_table = with_tables[chain.sequence_idx].block_table};
  }
}

std::span<int32_t> DeviceDrafter::ids_of(int32_t depth, const Shape& shape) const {
  const auto chains = static_cast<size_t>(shape.chains);
  return {ids_.as<int32_t>() + static_cast<size_t>(depth) * chains, chains};
}

void DeviceDrafter::enqueue(const Shape& shape) {
  const auto step_of = [&](std::span<const int32_t> positions,
                           std::span<const ops::SequenceRows> sequences, int32_t rows_each) {
    return model::Step{.ctx = ctx_,
                       .positions = positions,
                       .sequences = sequences,
                       .caches = kv_.draft(),
                       .max_rows = rows_each};
  };
  const model::Step first = step_of(placed_.positions, placed_.sequences, shape.rows_each);
  const Tensor features = ctx_.arena->empty(aux_.dtype(), {shape.entries, aux_.dim(1)});
  ops::gather_rows(ctx_, {.out = features, .x = aux_, .rows = placed_.source_rows});
  model::Eagle3::Newest newest;
  if (shape.depths > 0) {
    newest = {.rows = placed_.newest_rows,
              .positions = placed_.passes[0].positions.device,
              .sequences = placed_.passes[0].sequences.device};
  }
  Tensor last = draft_.forward(first, placed_.next_ids, draft_.fuse(first, features), newest);
  Tensor feature;
  for (int32_t depth = 0; depth < shape.depths; ++depth) {
    const Pass& pass = placed_.passes[static_cast<size_t>(depth)];
    const model::Step step = step_of(pass.positions.device, pass.sequences.device, 1);
    if (depth > 0) last = draft_.forward(step, ids_of(depth - 1, shape), feature);
    const model::Eagle3::Guess guess = draft_.guess(step, last);
    feature = guess.feature;
    ops::sample(ctx_, {.ids = ids_of(depth, shape),
                       .logits = guess.logits,
                       .rows = pass.samples.device,
                       .id_map = id_map_});
  }
}

// Whether later runs of the shape will do the same.
bool DeviceDrafter::run(const Shape& shape) {
  ctx_.arena->reset();
  if (!shape.is_recordable) {
    enqueue(shape);
    return true;
  }
  ops::gpu::Graph& graph = recorded_[shape.key()];
  const bool replays = !graph.empty();
  if (!replays) graph = ops::gpu::Graph::record(ctx_.stream, [&] { enqueue(shape); });
  graph.launch(ctx_.stream);
  return replays;
}

void DeviceDrafter::take_guesses(const Shape& shape, StepOutput& output) const {
  const auto* ids = host_ids_.as<int32_t>();
  for (size_t c = 0; c < chains_.size(); ++c) {
    for (int32_t depth = 0; depth < chains_[c].num_wanted; ++depth) {
      const TokenId token = ids[static_cast<size_t>(depth * shape.chains) + c];
      // NaN in the draft is no reason to stop the request: it just proposes no more.
      if (token < 0) break;
      output.rows[chains_[c].row_idx].proposed.push_back(token);
    }
  }
}

void DeviceDrafter::propose(const Inputs& inputs, StepOutput& output) {
  sched::StepTimes& times = output.times;
  double seconds = 0;
  collect(inputs, output);
  if (positions_.empty()) return;
  const Shape shape = shape_now();
  {
    const Stopwatch watch(seconds);
    place(inputs, shape);
    times.is_typical = run(shape) && times.is_typical;
    const size_t bytes = static_cast<size_t>(shape.depths * shape.chains) * sizeof(int32_t);
    if (bytes > 0) ops::gpu::copy_to_host(host_ids_.data(), ids_.data(), bytes, ctx_.stream);
    ops::gpu::synchronize(ctx_.stream);
  }
  take_guesses(shape, output);
  // One recorded launch has no parts to time: following counts as one pass more.
  const double share = seconds / (1 + shape.depths);
  times.num_followed = static_cast<int32_t>(positions_.size());
  times.follow_seconds = share;
  for (int32_t depth = 0; depth < shape.depths; ++depth) {
    const auto rows = static_cast<int32_t>(std::ranges::count_if(
        chains_, [&](const Chain& chain) { return depth < chain.num_wanted; }));
    times.passes.push_back({.num_rows = rows, .forward_seconds = 0, .guess_seconds = share});
  }
}

}  // namespace eyrie::runtime
