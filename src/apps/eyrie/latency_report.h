// What `bench latency` prints and writes: vLLM's lines and keys, and per batch size the decoding
// step beside what it has to read. Pure functions of the measurements.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "advise/step_traffic.h"
#include "apps/eyrie/decode_steps.h"

namespace eyrie::apps {

// What the machine can do, as far as the user told; 0: not told.
struct MachineLimits {
  double bytes_per_second = 0;
  double flops_per_second = 0;
};

struct LatencyPoint {
  int32_t batch_size = 1;         // sequences: the batch times --n
  int32_t num_drafts = 0;         // a step's, of each sequence, at most
  double draft_length = 0;        // a step's, of each sequence, on average
  std::vector<double> latencies;  // s, of each iteration
  // Of all iterations together.
  std::vector<double> step_seconds, target_seconds, draft_seconds;
  double tokens_per_sequence = 0;  // and step
  double output_tokens_per_second = 0;
  double context = 0;     // positions a row sees in the middle of the steps
  advise::StepRead read;  // of such a step
};

// "Avg latency: …" and the percentiles, as vLLM prints them.
std::string latency_text(const LatencyPoint& point);

// Two tables: the steps beside the limits, and what they read.
std::string step_tables(const std::vector<LatencyPoint>& points, const MachineLimits& limits);

// vLLM's keys for the first point, all points under "eyrie".
nlohmann::ordered_json latency_json(const std::vector<LatencyPoint>& points,
                                    const MachineLimits& limits);

}  // namespace eyrie::apps
