#include "runtime/device_target.h"

#include <algorithm>
#include <bit>

namespace eyrie::runtime {
namespace {

// Steps of more rows take long enough that launching them one by one costs little.
constexpr int32_t kMostRecordedRows = 512;
// Rows whose logits are asked for at once, beyond those that sample.
constexpr int32_t kMostScored = 64;

size_t input_bytes(const DeviceLimits& limits) {
  constexpr size_t kSlack = 4096;
  const auto tokens = static_cast<size_t>(limits.max_tokens);
  const auto sequences = static_cast<size_t>(limits.max_sequences);
  return kSlack +
         2 * (tokens * (3 * sizeof(int32_t) + sizeof(ops::SampleRow)) +
              sequences * sizeof(ops::SequenceRows)) +
         sequences * static_cast<size_t>(limits.max_table_size) * sizeof(int32_t);
}

}  // namespace

int32_t recorded_rows(int32_t rows) {
  if (rows <= 3) return std::max(rows, 1);
  const auto power = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(rows)));
  const int32_t half_way = power / 4 * 3;
  return rows <= half_way ? half_way : power;
}

void take_tables(DeviceInputs& inputs, std::span<const ops::SequenceRows> sequences,
                 std::span<const int32_t> table_sizes, std::span<ops::SequenceRows> placed) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto table = inputs.take<int32_t>(static_cast<size_t>(table_sizes[i]));
    std::copy_n(sequences[i].block_table, table.host.size(), table.host.begin());
    placed[i] = sequences[i];
    placed[i].block_table = table.device.data();
  }
  // Whoever fills a recording's batch has no rows and reads nothing.
  for (size_t i = sequences.size(); i < placed.size(); ++i) placed[i] = {};
}

DeviceTarget::DeviceTarget(const ops::Ctx& ctx, const model::KimiK25& target, const KvStorage& kv,
                           std::span<const int64_t> aux_layers, const DeviceLimits& limits)
    : ctx_(ctx),
      target_(target),
      kv_(kv),
      aux_layers_(aux_layers),
      limits_(limits),
      inputs_(input_bytes(limits)) {
  if (!aux_layers.empty()) {
    const int64_t width = static_cast<int64_t>(aux_layers.size()) * target.config().hidden_size;
    const DType dtype = ops::activation_dtype(ctx);
    const int64_t rows = recorded_rows(limits.max_tokens);
    aux_memory_ =
        Buffer(static_cast<size_t>(rows * width) * dtype_bytes(dtype), ops::gpu::device_memory());
    aux_ = Tensor(aux_memory_.data(), dtype, {rows, width});
  }
  const auto most_logits = static_cast<size_t>(recorded_rows(limits.max_tokens));
  ids_ = Buffer(most_logits * sizeof(int32_t), ops::gpu::device_memory());
  host_ids_ = Buffer(most_logits * sizeof(int32_t), ops::gpu::pinned_memory());
  host_logits_ =
      Buffer(static_cast<size_t>(kMostScored * target.config().vocab_size) * sizeof(float),
             ops::gpu::pinned_memory());
}

DeviceTarget::Shape DeviceTarget::shape_of(const Rows& rows) const {
  Shape shape{.tokens = static_cast<int32_t>(rows.ids.size()),
              .sequences = static_cast<int32_t>(rows.sequences.size()),
              .logits = static_cast<int32_t>(rows.logit_rows.size())};
  for (const ops::SequenceRows& sequence : rows.sequences) {
    shape.rows_each = std::max(shape.rows_each, sequence.num_rows);
  }
  shape.is_recordable =
      !limits_.enforce_eager && rows.only_decodes && shape.tokens <= kMostRecordedRows &&
      recorded_rows(shape.tokens) <= limits_.max_tokens && shape.rows_each <= limits_.max_rows_each;
  if (shape.is_recordable) {
    shape.tokens = recorded_rows(shape.tokens);
    shape.sequences = recorded_rows(shape.sequences);
    // Verification is one shape, however many drafts there are: fewer recordings.
    if (shape.rows_each > 1) shape.rows_each = limits_.max_rows_each;
    shape.logits = shape.tokens;
  }
  return shape;
}

DeviceTarget::Placed DeviceTarget::place(const Rows& rows, const Shape& shape) {
  inputs_.begin();
  const auto fill = [&]<typename T>(std::span<const T> from, int32_t count) {
    const DeviceSlot<T> slot = inputs_.take<T>(static_cast<size_t>(count));
    const auto end = std::copy(from.begin(), from.end(), slot.host.begin());
    std::fill(end, slot.host.end(), T{});
    return slot.device;
  };
  Placed placed;
  const int32_t num_rows = static_cast<int32_t>(rows.ids.size());
  placed.num_valid = fill(std::span<const int32_t>(&num_rows, 1), 1).data();
  placed.ids = fill(rows.ids, shape.tokens);
  placed.positions = fill(rows.positions, shape.tokens);
  placed.logit_rows = fill(rows.logit_rows, shape.logits);
  placed.samples = fill(rows.samples, shape.logits);
  const auto sequences = inputs_.take<ops::SequenceRows>(static_cast<size_t>(shape.sequences));
  placed.sequences = sequences.device;
  take_tables(inputs_, rows.sequences, rows.table_sizes, sequences.host);
  inputs_.upload(ctx_.stream);
  return placed;
}

model::Step DeviceTarget::step_of(const Placed& placed, const Shape& shape) const {
  return {.ctx = ctx_,
          .positions = placed.positions,
          .sequences = placed.sequences,
          .caches = kv_.target(),
          .max_rows = shape.rows_each,
          .num_valid = placed.num_valid};
}

DeviceTarget::Outputs DeviceTarget::enqueue(const Placed& placed, const Shape& shape) {
  const model::Step step = step_of(placed, shape);
  const Tensor aux = aux_.empty() ? Tensor() : aux_.rows(0, shape.tokens);
  Outputs outputs;
  outputs.hidden = target_.forward(step, placed.ids, aux_layers_, aux);
  if (shape.logits == 0) return outputs;
  outputs.logits = ctx_.arena->f32({shape.logits, target_.config().vocab_size});
  target_.logits(step, outputs.hidden, placed.logit_rows, outputs.logits);
  ops::sample(ctx_, {.ids = {ids_.as<int32_t>(), static_cast<size_t>(shape.logits)},
                     .logits = outputs.logits,
                     .rows = placed.samples,
                     .id_map = {}});
  return outputs;
}

void DeviceTarget::start(const Rows& rows) {
  shape_ = shape_of(rows);
  ctx_.arena->reset();
  placed_ = place(rows, shape_);
  replays_ = false;
  if (!shape_.is_recordable) {
    outputs_ = enqueue(placed_, shape_);
  } else {
    Recorded& recorded = recorded_[shape_.key()];
    replays_ = !recorded.graph.empty();
    if (!replays_) {
      recorded.graph = ops::gpu::Graph::record(
          ctx_.stream, [&] { recorded.outputs = enqueue(placed_, shape_); });
    }
    recorded.graph.launch(ctx_.stream);
    outputs_ = recorded.outputs;
  }
  const size_t num_ids = rows.logit_rows.size();
  if (num_ids > 0) {
    ops::gpu::copy_to_host(host_ids_.data(), ids_.data(), num_ids * sizeof(int32_t), ctx_.stream);
  }
  sampled_ = {host_ids_.as<int32_t>(), num_ids};
}

void DeviceTarget::wait() { ops::gpu::synchronize(ctx_.stream); }

std::span<const float> DeviceTarget::logits_row(int64_t row) {
  const Tensor logits = outputs_.logits.rows(row, 1);
  ops::gpu::copy_to_host(host_logits_.data(), logits.raw(), logits.bytes(), ctx_.stream);
  ops::gpu::synchronize(ctx_.stream);
  return {host_logits_.as<float>(), static_cast<size_t>(logits.dim(1))};
}

Tensor DeviceTarget::more_logits(std::span<const int32_t> rows) {
  CHECK_LE(rows.size(), static_cast<size_t>(kMostScored));
  const ArenaScope scratch(*ctx_.arena);
  const auto count = static_cast<int64_t>(rows.size());
  auto* placed = ctx_.arena->array<int32_t>(count);
  ops::gpu::copy_to_device(placed, rows.data(), rows.size_bytes(), ctx_.stream);
  const Tensor logits = ctx_.arena->f32({count, target_.config().vocab_size});
  target_.logits(step_of(placed_, shape_), outputs_.hidden, {placed, rows.size()}, logits);
  ops::gpu::copy_to_host(host_logits_.data(), logits.raw(), logits.bytes(), ctx_.stream);
  ops::gpu::synchronize(ctx_.stream);
  return Tensor(host_logits_.data(), DType::kF32, {count, logits.dim(1)});
}

}  // namespace eyrie::runtime
