// What a checkpoint's quantization_config claims: which linear layers are quantized and how. Claims
// only: the tensors decide (checkpoint.h), this is what they are compared with, and what a dummy
// load follows.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "formats/weight.h"

namespace eyrie::checkpoint {

// A list of layer names in any spelling found in the wild: exact names, shell globs (`*mlp.gate`),
// regular expressions (`re:.*fc.*`), with or without the prefixes `model.` and `language_model.`. A
// plain name also covers modules that end in it after a dot ("fc") or lie below it.
class ModuleList {
 public:
  ModuleList() = default;
  explicit ModuleList(const std::vector<std::string>& patterns);  // Error on a broken regex

  bool matches(std::string_view module) const;
  bool empty() const { return patterns_.empty(); }
  const std::vector<std::string>& patterns() const { return patterns_; }

 private:
  std::vector<std::string> patterns_;
  std::unordered_set<std::string> plain_;
  std::vector<std::string> globs_;
  struct Regex;  // compiled once; shared because a list is copied with its config, never changed
  std::vector<std::shared_ptr<const Regex>> regexes_;
};

// fnmatch(3) over the whole name: `*` also crosses dots.
bool glob_matches(const std::string& glob, const std::string& name);

struct QuantConfig {
  std::string method;  // quant_method: "quark", "modelopt" …; empty: no quantization_config
  std::string scheme;  // as the file describes it, for messages: "fp4 per_group 32"
  const formats::WeightFormat* format = nullptr;  // nullptr: none, or one we do not know
  ModuleList exclude;
  ModuleList special;  // modules with a rule of their own (layer_quant_config)

  // From quantization_config at the top level of config.json or inside text_config.
  static QuantConfig from_config(const nlohmann::json& config);

  // The format the config claims for a linear layer; nullptr when it claims none we know of.
  const formats::WeightFormat* claimed(std::string_view module) const;
};

// Is `tensor_name` the weight of a linear layer, by name? The producers' rule: it ends in .weight,
// its module does not end in "norm" and does not contain "embed" (and it has two dimensions).
bool is_linear_weight_name(std::string_view tensor_name);

}  // namespace eyrie::checkpoint
