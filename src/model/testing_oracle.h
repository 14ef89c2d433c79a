// The two models once more, written straight from the formulas in double precision: materialised
// attention (keys and values of every head spelled out), whole sequences, no cache, no ops. Only
// the rounding of cached values to bf16 is shared with the real thing. For tests.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/testing.h"

namespace eyrie::model::testing {

using Rows = std::vector<std::vector<double>>;  // [T][N]

struct TargetOutput {
  std::vector<Rows> layer_inputs;  // the residual stream entering each layer, and after the last
  Rows logits;
};
TargetOutput oracle_target(const TinyCheckpoint& files, const ModelConfig& config,
                           const std::vector<int32_t>& ids);

// The draft over one sequence of entries (feature, next token) at positions 0 … T-1. Entries with a
// target state in `aux` are fused by fc; the rest of the chain is fed its own output.
struct DraftOutput {
  Rows outputs;
  Rows logits;
};
DraftOutput oracle_draft(const TinyCheckpoint& files, const TinyCheckpoint& target,
                         const Eagle3Config& config, const Rows& aux,
                         const std::vector<int32_t>& next_ids);

// ‖a - b‖ / ‖b‖
double relative_error(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace eyrie::model::testing
