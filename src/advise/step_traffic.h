// What one decoding step must read and compute, counted from the model's shapes: the roofline that
// a measured step is held against. Everything a step reads is counted once however many rows meet
// it; activations, norms and what is written to the cache are left out (below 1 % at Kimi-K2.5's
// size). Which experts a row meets is taken as uniform and independent, so `distinct` is an
// expectation. Bytes and operations are of one device that holds the whole model. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/eagle3.h"
#include "model/kimi_k25.h"

namespace eyrie::advise {

// Parameters of a part of the model and the bytes they lie in (scales included).
struct Part {
  double parameters = 0;
  double bytes = 0;
  Part& operator+=(const Part& other) {
    parameters += other.parameters;
    bytes += other.bytes;
    return *this;
  }
};

// A model as far as reading it matters. Parts are sums over all layers.
struct ModelTraffic {
  Part attention;  // projections, both halves of kv_b_proj
  Part router;
  Part dense;   // feed-forward of the layers without experts
  Part shared;  // shared experts
  Part routed;  // all routed experts of all layers
  Part head;
  int64_t num_layers = 0;
  int64_t num_experts = 0;  // of a layer; 0: no layer has any
  int64_t experts_per_token = 0;
  double kv_bytes_per_position = 0;   // all layers
  double score_ops_per_position = 0;  // multiply-adds of one row of attention against a position

  // Of the draft: what every pass reads, what one catch-up reads beside it.
  Part draft_layer, draft_head, draft_fc;
  double draft_kv_bytes_per_position = 0;
  double draft_score_ops_per_position = 0;
};

// Bytes of a weight as the file stores it; of several formats together, as they are prepared.
Part part_of(const ops::PreparedWeight& weight);

ModelTraffic traffic_of(const model::KimiK25& target, const model::Eagle3* draft);

// A step that decodes: every sequence brings 1 + num_drafts rows, and proposes num_drafts tokens
// for the next step (on average, where drafts size themselves).
struct StepShape {
  int64_t num_sequences = 1;
  double num_drafts = 0;
  double context = 0;  // positions a row sees
};

struct StepRead {
  double distinct = 0;  // experts of a layer that some row meets, expected
  // Name and bytes, in the order of a step; without a draft its parts are missing.
  std::vector<std::pair<std::string, double>> parts;
  double flops = 0;

  double bytes() const;
  // At least so long: the slower of reading and computing. flops_per_second 0: reading alone.
  double seconds(double bytes_per_second, double flops_per_second = 0) const;
};

double expected_distinct(int64_t num_experts, int64_t experts_per_token, double num_rows);
StepRead step_read(const ModelTraffic& model, const StepShape& shape);

}  // namespace eyrie::advise
