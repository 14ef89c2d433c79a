// The draft's part of a step on a GPU: true features of the newly known positions go through its
// layer, then the chain of single-token passes on its own output, all without the host in between;
// the proposals come back together. One recorded graph for each shape, as in DeviceTarget.
//
// The draft takes every position in at once, whether the row drafts or not (a plan's draft_waits is
// a CPU's saving: here the layer is one of dozens and rows ride along).
//
// Owned by the runner, engine thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "model/eagle3.h"
#include "ops/gpu/device.h"
#include "runtime/device_inputs.h"
#include "runtime/device_target.h"
#include "runtime/kv_storage.h"
#include "runtime/model_runner.h"

namespace eyrie::runtime {

class DeviceDrafter {
 public:
  DeviceDrafter(const ops::Ctx& ctx, const model::Eagle3& draft, const KvStorage& kv, Tensor aux,
                const DeviceLimits& limits);

  struct Inputs {
    const sched::StepPlan& plan;
    std::span<const int32_t> first_rows;            // of each plan row, in aux
    std::span<const SamplingParams* const> params;  // of each plan row
  };
  // Fills `proposed` of the rows and the draft's part of the times; `sampled` and numeric_fault are
  // there already. Waits for the device.
  void propose(const Inputs& inputs, StepOutput& output);

 private:
  struct Chain {
    size_t row_idx;
    int32_t last_position;  // of its newest entry
    int32_t num_wanted;
    int32_t source_row;   // that entry's row
    size_t sequence_idx;  // whose blocks it writes to
  };
  struct Shape {
    int32_t entries = 0, sequences = 0, rows_each = 0, chains = 0, depths = 0;
    bool is_recordable = false;
    auto key() const { return std::tuple(entries, sequences, rows_each, chains, depths); }
  };
  // Of the pass at one depth, an entry for each chain, and of its guess.
  struct Pass {
    DeviceSlot<ops::SampleRow> samples;
    DeviceSlot<int32_t> positions;
    DeviceSlot<ops::SequenceRows> sequences;
  };
  struct Placed {
    std::span<const int32_t> next_ids, positions, source_rows;
    std::span<const int32_t> newest_rows;  // of each chain, among the entries
    std::span<const ops::SequenceRows> sequences;
    std::vector<Pass> passes;
  };

  void collect(const Inputs& inputs, const StepOutput& output);
  Shape shape_now() const;
  void place(const Inputs& inputs, const Shape& shape);
  void fill_pass(const Inputs& inputs, int32_t depth,
                 std::span<const ops::SequenceRows> with_tables);
  void enqueue(const Shape& shape);
  bool run(const Shape& shape);
  std::span<int32_t> ids_of(int32_t depth, const Shape& shape) const;
  void take_guesses(const Shape& shape, StepOutput& output) const;

  ops::Ctx ctx_;
  const model::Eagle3& draft_;
  const KvStorage& kv_;
  Tensor aux_;
  DeviceLimits limits_;
  DeviceInputs inputs_;
  Buffer id_map_memory_;
  std::span<const int32_t> id_map_;  // d2t on the device
  Buffer ids_, host_ids_;            // [depths][chains]
  std::map<std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t>, ops::gpu::Graph> recorded_;

  // Of the step in hand; all are reused.
  std::vector<int32_t> next_ids_, positions_, source_rows_, table_sizes_;
  std::vector<ops::SequenceRows> sequences_;
  std::vector<Chain> chains_;
  Placed placed_;
};

}  // namespace eyrie::runtime
