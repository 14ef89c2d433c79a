// A checkpoint folder: config.json, the shard index and memory-mapped safetensors, presented as
// named tensors and, for linear layers, as Weights in the encoding their own files say (the
// tensor's dtype and its sibling scales decide; quantization_config is checked against it and a
// contradiction is one warning naming both). Knows files and names, no model. A draft is its own
// Checkpoint with its own config: nothing of the target's quantization reaches it.
//
// Loading happens on one thread. Everything given out stays valid as long as the Checkpoint lives
// (moving it is fine).
#pragma once

#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/threads.h"
#include "checkpoint/dummy_pattern.h"
#include "checkpoint/quant_config.h"
#include "checkpoint/safetensors.h"
#include "formats/weight.h"
#include "tensor/tensor.h"

namespace eyrie::checkpoint {

class Checkpoint {
 public:
  // Opens a folder with config.json and model.safetensors or model.safetensors.index.json (+
  // shards). hf_overrides is merged into config (RFC 7396), as vLLM's --hf-overrides. With
  // load_dummy the folder needs only config.json and tensors are made up (checkpoint/dummy.h), in
  // the encoding quantization_config claims.
  static Checkpoint open(const std::string& path, const nlohmann::json& hf_overrides = {},
                         bool load_dummy = false);

  const std::string& path() const { return path_; }
  const nlohmann::json& config() const { return config_; }
  const QuantConfig& quant_config() const { return quant_config_; }
  bool is_dummy() const { return dummy_; }
  // From now on made-up weights are views of one pattern (dummy_pattern.h): for models whose values
  // would take long to make up and more memory than there is.
  void repeat_dummies() { repeats_dummies_ = true; }

  // What the files hold. A dummy has nothing (false, none), so optional tensors count as absent.
  bool contains(const std::string& name) const { return find(name) != nullptr; }
  const Tensor* find(const std::string& name) const;  // nullptr when absent
  std::vector<std::string> names() const;             // sorted
  const std::vector<SafetensorsFile>& files() const { return files_; }
  // Bytes of all tensors; for a dummy, of those made so far.
  size_t total_bytes() const;

  // The tensor, checked against the shape the model expects; Error names file, tensor, both shapes.
  Tensor tensor(const std::string& name, std::initializer_list<int64_t> shape);
  // The same with the shape the file has, aligned for its dtype.
  Tensor require(const std::string& name);
  // F32 copy of a small tensor (norms, biases), whatever its float dtype.
  Tensor tensor_f32(const std::string& name, std::initializer_list<int64_t> shape);
  // `prefix`.weight with its scales as a linear layer's weight [out, in], any known encoding.
  // Scales always come as [scale_rows, scale_columns] of the format's dtype.
  formats::Weight weight(const std::string& prefix, int64_t out, int64_t in);
  // The same with the shape the file has.
  formats::Weight stored_weight(const std::string& prefix);
  // The encoding of a stored linear layer; nullptr when it has no weight or one we cannot read.
  const formats::WeightFormat* format_of(const std::string& prefix) const;
  // What lies in the files may leave memory until it is touched again, what was converted or made
  // up for this weight is freed: for who has a copy of their own and will not read the weight
  // again. Pages go some megabytes at a time.
  void done_with(const formats::Weight& weight);
  // Threads for making up large weights; without, and for all else, the caller's own.
  void use(ThreadPool& pool) { pool_ = &pool; }
  // Frees conversions and aligned copies; Weights and Tensors given out before are gone with them.
  void drop_copies() { owned_.clear(); }
  // Names of all tensors that make up a linear layer's weight: packed data, scales, shape.
  std::vector<std::string> weight_tensors(const std::string& prefix) const;

 private:
  void open_files();
  void open_shards(const std::string& index_path);
  void add_file(const std::string& path);
  void warn_of_contradictions() const;
  void warn_of_idle_exclusions() const;
  std::string contradiction(const std::string& module, const Tensor& tensor) const;

  const std::string& file_of(const std::string& name) const;
  Tensor aligned(const Tensor& tensor);           // a copy when the file has it misaligned
  Tensor converted_to_f32(const Tensor& tensor);  // float dtypes only
  std::byte* allocate(size_t bytes);
  void drop_done_pages();

  struct Linear;  // what the siblings of one layer say (weights.cpp)
  std::optional<Linear> identify(const std::string& prefix, std::string* problem) const;
  Linear inspect_linear(const std::string& prefix) const;
  float positive_scalar(const std::string& name) const;
  void read_global_scales(const std::string& prefix, const Linear& linear,
                          formats::Weight* weight) const;
  void check_stored_shape(const std::string& prefix, int64_t out, int64_t in) const;
  Tensor exact_bf16(const std::string& name, const Tensor& stored, const Tensor& values);
  Tensor scales_of(const Linear& linear, int64_t out, int64_t in);
  formats::Weight dummy_weight(const std::string& prefix, int64_t out, int64_t in);
  formats::Weight made_up(const formats::WeightFormat& format, const std::string& prefix,
                          int64_t out, int64_t in);

  std::string path_;
  nlohmann::json config_;
  QuantConfig quant_config_;
  bool dummy_ = false;
  bool repeats_dummies_ = false;
  std::map<std::pair<const formats::WeightFormat*, float>, DummyPattern> patterns_;  // by stddev
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::pair<size_t, Tensor>> index_;  // name → (file, tensor)
  std::vector<Buffer> owned_;                               // converted or dummy tensors
  size_t freed_bytes_ = 0;                                  // of those, by done_with()
  std::vector<std::span<const std::byte>> done_;            // in files, still in memory
  size_t done_bytes_ = 0;
  ThreadPool* pool_ = nullptr;
};

// Model id or path → folder: an existing directory, or an id found in the local hub cache
// (HF_HUB_CACHE, HF_HOME/hub, ~/.cache/huggingface/hub: models--org--name/snapshots/<ref main>).
// Error says how to get it.
std::string resolve_model_path(const std::string& model);

}  // namespace eyrie::checkpoint
