// What a checkpoint's quantization_config claims: which linear layers are quantized and how. Claims
// only: the tensors decide (checkpoint.h), this is what they are compared with, and what a dummy
// load follows.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/weight.h"

namespace eyrie::checkpoint {

// A list of layer names in any spelling found in the wild: exact names, shell globs (`*mlp.gate`),
// regular expressions (`re:.*fc.*`), with or without the prefixes `model.` and `language_model.`. A
// plain name also covers modules that end in it after a dot ("fc") or lie below it. The name of a
// fused layer (gate_up_proj, qkv_proj, fused_qkv_a_proj_with_mqa) covers its parts.
class ModuleList {
 public:
  ModuleList() = default;
  explicit ModuleList(const std::vector<std::string>& patterns);  // Error on a broken regex

  bool matches(std::string_view module) const;
  // For each pattern, how many of the modules it matches; no further than `enough` when > 0.
  std::vector<int64_t> count_matches(const std::vector<std::string>& modules,
                                     int64_t enough = 0) const;
  bool empty() const { return patterns_.empty(); }
  const std::vector<std::string>& patterns() const { return patterns_; }

 private:
  struct Regex;  // compiled once; shared because a list is copied with its config, never changed
  struct Visitor;
  bool visit(std::string_view module, const Visitor& visitor) const;
  bool visit_name(std::string_view name, std::string_view spelled, const Visitor& visitor) const;

  std::vector<std::string> patterns_;
  std::unordered_map<std::string, std::vector<size_t>> plain_;  // spelling → patterns
  std::vector<size_t> globs_;                                   // patterns
  std::vector<std::pair<size_t, std::shared_ptr<const Regex>>> regexes_;
};

// fnmatch(3) over the whole name: `*` also crosses dots.
bool glob_matches(const std::string& glob, const std::string& name);

struct QuantConfig {
  std::string method;  // quant_method: "quark", "modelopt" …; empty: no quantization_config
  std::string scheme;  // as the file describes it, for messages: "fp4 per_group 32"
  const formats::WeightFormat* format = nullptr;  // nullptr: none, or one we do not know
  ModuleList exclude;
  ModuleList special;            // modules with a rule of their own (layer_quant_config)
  bool text_only = false;        // found in text_config: says nothing of the vision tower
  bool lists_exclusions = true;  // false: what is not quantized is listed nowhere
  bool kv_cache_fp8 = false;     // made for an FP8 KV cache

  // From quantization_config at the top level of config.json or inside text_config, or from
  // hf_quant_config.json in `folder`. Error (naming the file) when the method is none we read.
  static QuantConfig from_config(const nlohmann::json& config, const std::string& folder = "");

  // The format the config claims for a linear layer; nullptr when it claims none we know of.
  const formats::WeightFormat* claimed(std::string_view module) const;
};

// "a.b" of the tensors a.b.weight and a.b.weight_packed, "" of all others.
std::string_view module_of(std::string_view tensor_name);

// Is `tensor_name` the weight of a linear layer, by name? The producers' rule: it ends in .weight
// (or .weight_packed), its module does not end in "norm" and does not contain "embed" (and it has
// two dimensions).
bool is_linear_weight_name(std::string_view tensor_name);

}  // namespace eyrie::checkpoint
