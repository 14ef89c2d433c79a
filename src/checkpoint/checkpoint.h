// A checkpoint folder: config.json, the shard index and memory-mapped safetensors, presented as
// named tensors and, for linear layers, as Weights in the encoding their own files say (the
// tensor's dtype and its sibling scales decide; quantization_config is checked against it and a
// contradiction is one warning naming both). Knows files and names, no model.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "formats/weight.h"
#include "tensor/tensor.h"

namespace eyrie::checkpoint {

// One safetensors file: header validated completely (length, JSON, dtype, shape, offsets in range,
// no overlap, no duplicate name) before any tensor is given out.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::string& path() const { return file_.path(); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  MappedFile file_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

class Checkpoint {
 public:
  // Opens a folder with config.json and model.safetensors or model.safetensors.index.json (+
  // shards). hf_overrides is merged into config (RFC 7396), as vLLM's --hf-overrides. With
  // load_dummy the folder needs only config.json and tensors are made up (deterministic, from the
  // tensor's name).
  static Checkpoint open(const std::string& path, const nlohmann::json& hf_overrides = {},
                         bool load_dummy = false);

  const std::string& path() const { return path_; }
  const nlohmann::json& config() const { return config_; }
  bool is_dummy() const { return dummy_; }

  bool contains(const std::string& name) const;
  std::vector<std::string> names() const;
  size_t total_bytes() const;

  // The tensor, checked against the shape the model expects; Error names file, tensor, both shapes.
  Tensor tensor(const std::string& name, std::initializer_list<int64_t> shape);
  // F32 copy of a small tensor (norms, biases), whatever its float dtype.
  Tensor tensor_f32(const std::string& name, std::initializer_list<int64_t> shape);
  // `prefix`.weight with its scales as a linear layer's weight [out, in], any known encoding.
  formats::Weight weight(const std::string& prefix, int64_t out, int64_t in);

 private:
  std::string path_;
  nlohmann::json config_;
  bool dummy_ = false;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::pair<size_t, Tensor>> index_;  // name → (file, tensor)
  std::vector<std::unique_ptr<Buffer>> owned_;              // converted or dummy tensors
};

// Model id or path → folder: an existing directory, or an id found in the local hub cache
// (HF_HOME, HF_HUB_CACHE, ~/.cache/huggingface/hub/models--org--name/snapshots/<ref main>).
// Error says how to get it.
std::string resolve_model_path(const std::string& model);

}  // namespace eyrie::checkpoint
