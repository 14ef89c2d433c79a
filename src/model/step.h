// One forward pass as the model sees it: the ops context plus the rows' positions, the sequences
// they belong to and the caches. Filled by the runtime, passed explicitly, read-only to the model.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "ops/ops.h"

namespace eyrie::model {

// Receives named intermediates ("layer_output", layer index, [T, H]); the tensor lives until the
// call returns. Layer is -1 outside layers.
using TapSink = std::function<void(std::string_view name, int64_t layer, const Tensor& tensor)>;

struct Step {
  ops::Ctx ctx;
  std::span<const int32_t> positions;            // [T]
  std::span<const ops::SequenceRows> sequences;  // cover the T rows in order
  std::span<const ops::CacheView> caches;        // target: one a layer; draft: keys, values
  int32_t max_rows = 0;                          // of any sequence; 0: not known
  const int32_t* num_valid = nullptr;  // rows from there on only fill a captured graph's batch
  const TapSink* tap_sink = nullptr;

  int64_t num_rows() const { return static_cast<int64_t>(positions.size()); }
  Tensor f32(std::initializer_list<int64_t> shape) const { return ctx.arena->f32(shape); }
  // What flows between matrix products.
  Tensor act(std::initializer_list<int64_t> shape) const {
    return ctx.arena->empty(ops::activation_dtype(ctx), shape);
  }
  void tap(std::string_view name, int64_t layer, const Tensor& tensor) const {
    if (tap_sink != nullptr) (*tap_sink)(name, layer, tensor);
  }
};

}  // namespace eyrie::model
