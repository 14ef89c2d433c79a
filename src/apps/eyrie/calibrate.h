// Calibration of `eyrie quantize`: runs the unquantized model over prompts and records the largest
// magnitude that enters each layer to be quantized (ops/observe.h). The model must fit into memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/kimi_k25.h"
#include "tokenizer/tokenizer.h"

namespace eyrie::apps {

struct CalibrationProgress {
  int64_t tokens_done = 0;
  int64_t tokens_total = 0;
  double seconds = 0;
};

struct Calibration {
  std::map<std::string, float> amax;  // by module
  int64_t num_tokens = 0;
  // Of the experts to be quantized: all, and those that no token chose.
  int num_experts = 0;
  int num_idle_experts = 0;
};

// `modules`: the layers wanted, as the checkpoint names them; Error for one the text model lacks.
// All routed experts of a layer get the largest magnitude that any of them met: engines keep one
// scale for them, ModelOpt and Quark share it when they export, and an expert few tokens chose
// would clip what it is given later.
Calibration calibrate(checkpoint::Checkpoint* files, const std::vector<std::string>& modules,
                      std::span<const std::vector<TokenId>> prompts, int num_threads,
                      const std::function<void(const CalibrationProgress&)>& on_progress = nullptr);

}  // namespace eyrie::apps
