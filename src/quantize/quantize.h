// Checkpoint to checkpoint: the linear layers of a BF16, F16 or F32 checkpoint become MXFP4 or FP8
// in AMD Quark's layout and names, everything else is copied byte for byte. Works shard by shard
// with a tensor or two in memory, rows spread over all cores. The output has the name OUT.partial
// until it is complete and re-opened, so what is called OUT is whole.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/quant_config.h"
#include "formats/weight.h"

namespace eyrie::quantize {

struct Progress {
  size_t bytes_done = 0;  // of the input's tensors
  size_t bytes_total = 0;
  double seconds = 0;
};

struct Options {
  std::string input;
  std::string output;
  const formats::WeightFormat* format = nullptr;  // kMxfp4 or kFp8
  std::optional<std::vector<std::string>>
      exclude;                       // module patterns; default_exclude() when absent
  std::vector<std::string> include;  // quantize these even if excluded
  bool overwrite = false;            // replace OUT, once the new one is complete
  int num_threads = 0;               // 0: all cores
  std::function<void(const Progress&)> on_progress = nullptr;
};

struct Report {
  int num_quantized = 0;  // tensors
  int num_kept = 0;
  size_t bytes_in = 0;  // tensors
  size_t bytes_out = 0;
  double seconds = 0;
};

// Error (one sentence) when something is wrong with input, output or patterns; OUT.partial is gone
// then.
Report quantize(const Options& options);

// The formats quantize() makes.
std::vector<const formats::WeightFormat*> schemes();

// Is this the config of an EAGLE-3 draft?
bool is_draft(const nlohmann::json& config);

// What stays as it is when the user says nothing: for a draft `fc` and `lm_head`, for a target
// attention, router, head, projector and vision; MXFP4 further keeps dense and shared MLPs, as
// AMD's published Kimi checkpoints do (only routed experts are MXFP4).
std::vector<std::string> default_exclude(const nlohmann::json& config,
                                         const formats::WeightFormat& format);

}  // namespace eyrie::quantize
