// Checkpoint to checkpoint: linear layers are encoded in a producer's layout, names and arithmetic
// (formats/recipe.h), everything else is copied byte for byte. Sources are BF16, F16 and F32;
// native INT4 and FP8 blocks are decoded to BF16 on the way. Works shard by shard with a tensor or
// two in memory, rows spread over all cores. The output has the name OUT.partial until it is
// complete and re-opened, so what is called OUT is whole; a run that was interrupted is taken up
// where it stopped and gives the same bytes.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/quant_config.h"
#include "formats/recipe.h"

namespace eyrie::quantize {

struct Progress {
  size_t bytes_done = 0;  // of the input's tensors
  size_t bytes_total = 0;
  double seconds = 0;
};

struct Options {
  std::string input;
  std::string output;
  const formats::Recipe* recipe = nullptr;
  std::optional<std::vector<std::string>>
      exclude;                       // module patterns; default_exclude() when absent
  std::vector<std::string> include;  // quantize these even if excluded
  bool kv_cache_fp8 = false;         // the config asks engines for an FP8 KV cache
  // NVFP4: gate and up (and q, k, v) get one global scale, for engines that keep one of the two.
  // false: each its own, as Quark's file-to-file tool writes them.
  bool share_global_scales = true;
  // What calibration saw: the largest magnitude that entered each layer, by module name. Recipes
  // with static scales of activations store one a layer then; every quantized layer must be there.
  // Empty: none is stored, and the config asks for none where the producer's can say so.
  std::map<std::string, float> input_amax;
  bool overwrite = false;  // replace OUT, once the new one is complete
  int num_threads = 0;     // 0: all cores
  std::function<void(const Progress&)> on_progress = nullptr;
};

struct Report {
  int num_quantized = 0;  // tensors
  int num_kept = 0;
  int num_resumed_shards = 0;  // taken over from an interrupted run; their tensors are counted too
  size_t bytes_in = 0;         // tensors
  size_t bytes_out = 0;
  double seconds = 0;
};

// Error (one sentence) when something is wrong with input, output or patterns; OUT.partial is gone
// then, unless it holds finished shards to resume from.
Report quantize(const Options& options);

// The layers quantize() would quantize, sorted; the same Errors.
std::vector<std::string> selected_modules(const Options& options);

// The formats quantize() makes.
std::vector<const formats::WeightFormat*> schemes();

// Is this the config of an EAGLE-3 draft?
bool is_draft(const nlohmann::json& config);

// What stays as it is when the user says nothing: for a draft `fc` and `lm_head`, for a target
// attention, router, head, projector and vision; the 4-bit formats further keep dense and shared
// MLPs, as AMD's and Moonshot's Kimi checkpoints do (only routed experts are 4 bits).
std::vector<std::string> default_exclude(const nlohmann::json& config,
                                         const formats::WeightFormat& format);

}  // namespace eyrie::quantize
