// Tiny checkpoints for tests, made in memory and written to a folder as a producer would: the true
// architecture, random weights, a few thousand parameters. The pair speaks a "successor language":
// the target's next token is mostly a fixed permutation of the last one, disturbed by its random
// layers, and the draft knows the permutation; so drafts are mostly right and regularly wrong.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/weight.h"

namespace eyrie::model::testing {

// A folder under the system's temporary directory, removed at scope end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct TinyTensor {
  std::string dtype;  // safetensors' spelling
  std::vector<int64_t> shape;
  std::vector<float> values;  // what the file's numbers decode to, so an oracle may use them
  std::string bytes = {};     // as they lie in the file, when values alone do not say it
};

struct TinyCheckpoint {
  nlohmann::json config;
  std::map<std::string, TinyTensor> tensors;

  const std::vector<float>& operator[](const std::string& name) const {
    return tensors.at(name).values;
  }
  void write(const std::string& folder) const;
  // Weights whose name contains one of `parts` in another encoding, scales beside them.
  TinyCheckpoint encoded(const formats::WeightFormat& format,
                         const std::vector<std::string>& parts) const;
};

struct TinyOptions {
  uint64_t seed = 1;
  bool wrapped = true;      // kimi_k25 with text_config, or a flat deepseek_v3
  float layer_gain = 0.4F;  // how much the random layers disturb the successor
};
TinyCheckpoint tiny_target(const TinyOptions& options = {});

struct TinyDraftOptions {
  uint64_t seed = 2;
  bool midlayer_names = true;      // or layers.0
  int64_t draft_vocab_size = 128;  // below 128: own lm_head and d2t for every second token
  int64_t num_kv_heads = 4;        // of 4 query heads
  nlohmann::json extra = nullptr;  // merged into config.json; its norm tensors are added
};
TinyCheckpoint tiny_draft(const TinyCheckpoint& target, const TinyDraftOptions& options = {});

}  // namespace eyrie::model::testing
