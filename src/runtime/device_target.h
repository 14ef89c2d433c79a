// The target's part of a step on a GPU: rows go over in one copy, the forward, the logits and the
// sampling run on the device, sampled ids come back. Steps that only decode are recorded, one graph
// for each shape (rows, sequences, rows of a sequence, all rounded up), when they are first seen:
// what may not happen while recording, growing the scratch, the runner's warm-up has done.
//
// Owned by the runner, engine thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "model/kimi_k25.h"
#include "ops/gpu/device.h"
#include "runtime/device_inputs.h"
#include "runtime/kv_storage.h"

namespace eyrie::runtime {

struct DeviceLimits {
  int32_t max_tokens = 2048;  // rows of a step
  int32_t max_sequences = 256;
  int32_t max_rows_each = 1;   // of a sequence that decodes: 1 + drafts
  int32_t max_table_size = 0;  // blocks of a sequence
  bool enforce_eager = false;  // nothing is recorded
};

class DeviceTarget {
 public:
  // aux_layers: whose inputs the draft wants, in aux [max_tokens, num_aux · H]; or none.
  DeviceTarget(const ops::Ctx& ctx, const model::KimiK25& target, const KvStorage& kv,
               std::span<const int64_t> aux_layers, const DeviceLimits& limits);

  struct Rows {
    std::span<const int32_t> ids, positions;       // [T]
    std::span<const ops::SequenceRows> sequences;  // block tables on the host
    std::span<const int32_t> table_sizes;          // of each sequence
    std::span<const int32_t> logit_rows;           // [R] rows whose logits are wanted
    std::span<const ops::SampleRow> samples;       // [R]
    bool only_decodes = false;                     // every sequence samples all its rows
  };
  // Begins the step; wait() ends it. run() is both.
  void start(const Rows& rows);
  void wait();
  // Whether later steps of the shape will do the same: not so where it was recorded.
  bool is_typical() const { return replays_ || !shape_.is_recordable; }
  void run(const Rows& rows) {
    start(rows);
    wait();
  }

  // Of the last run, by logit row. -1: a numeric fault.
  std::span<const int32_t> sampled() const { return sampled_; }
  // A copy of one row of the logits, valid until the next call.
  std::span<const float> logits_row(int64_t row);
  // Logits of other rows of the last run: [count, V], copied to the host; valid as above.
  Tensor more_logits(std::span<const int32_t> rows);
  Tensor aux() const { return aux_; }
  int64_t num_recorded() const { return static_cast<int64_t>(recorded_.size()); }

 private:
  struct Shape {
    int32_t tokens = 0, sequences = 0, rows_each = 0, logits = 0;
    bool is_recordable = false;
    auto key() const { return std::tuple(tokens, sequences, rows_each, logits); }
  };
  struct Placed {
    std::span<const int32_t> ids, positions, logit_rows;
    std::span<const ops::SequenceRows> sequences;
    std::span<const ops::SampleRow> samples;
    const int32_t* num_valid = nullptr;
  };
  struct Outputs {
    Tensor hidden, logits;
  };
  struct Recorded {
    ops::gpu::Graph graph;
    Outputs outputs;
  };

  Shape shape_of(const Rows& rows) const;
  Placed place(const Rows& rows, const Shape& shape);
  model::Step step_of(const Placed& placed, const Shape& shape) const;
  Outputs enqueue(const Placed& placed, const Shape& shape);

  ops::Ctx ctx_;
  const model::KimiK25& target_;
  const KvStorage& kv_;
  std::span<const int64_t> aux_layers_;
  DeviceLimits limits_;
  Buffer aux_memory_;
  Tensor aux_;
  DeviceInputs inputs_;
  Buffer ids_;       // [most logits] on the device
  Buffer host_ids_;  // pinned
  Buffer host_logits_;
  std::map<std::tuple<int32_t, int32_t, int32_t, int32_t>, Recorded> recorded_;
  Outputs outputs_;  // of the last run
  Placed placed_;
  Shape shape_;
  bool replays_ = false;
  std::span<const int32_t> sampled_;
};

}  // namespace eyrie::runtime
