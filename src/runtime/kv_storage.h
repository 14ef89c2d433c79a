// The bytes behind block ids: one latent cache per target layer and, with a draft, its keys and
// values, all indexed by the same block table. The scheduler hands out ids, nobody here knows who
// holds them. Owned by the runner, engine thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/eagle3.h"
#include "model/kimi_k25.h"
#include "ops/ops.h"

namespace eyrie::runtime {

// How the cache is stored; kAuto: as the checkpoint's quantization_config says, else bfloat16.
enum class KvCacheDType { kAuto, kBf16, kFp8 };

// What one token costs in the cache: 576 values a layer for Kimi-K2.5, i.e. 70,272 bytes for its 61
// layers in bfloat16 and 35,136 in FP8 (E4M3).
struct KvLayout {
  int64_t num_target_layers = 0;
  int64_t target_width = 0;  // latent + rope
  int64_t draft_width = 0;   // kv_heads · head_dim, each of keys and values; 0 without a draft
  DType target_dtype = DType::kBF16;
  DType draft_dtype = DType::kBF16;
  // FP8 only (ops::CacheView): one a layer, or empty: 1 everywhere; the draft's keys and values.
  std::vector<float> target_scales = {};
  float draft_k_scale = 1.0f, draft_v_scale = 1.0f;

  static KvLayout of(const model::ModelConfig& target, const model::Eagle3Config* draft);
  int64_t bytes_per_token() const;
};

struct LoadedModels {
  const checkpoint::Checkpoint& target_files;
  const model::KimiK25& target;
  const checkpoint::Checkpoint* draft_files = nullptr;  // with the draft, or neither
  const model::Eagle3* draft = nullptr;
};

// Layout of the models' caches. Scales are the checkpoints' own or 1; a log line says which. With
// kAuto each model's own quantization_config decides.
KvLayout choose_kv_layout(KvCacheDType wanted, const LoadedModels& models);

// As vLLM names it: "bfloat16", "fp8_e4m3".
std::string_view kv_dtype_name(DType dtype);

class KvStorage {
 public:
  // source: of the memory, nullptr for the host's.
  KvStorage(const KvLayout& layout, int64_t num_blocks, int32_t block_size,
            const MemorySource* source = nullptr);

  std::span<const ops::CacheView> target() const { return target_; }
  std::span<const ops::CacheView> draft() const { return draft_; }  // {keys, values} or empty
  int64_t num_blocks() const { return num_blocks_; }
  int32_t block_size() const { return block_size_; }
  size_t bytes() const { return memory_.bytes(); }
  // The draft's keys and values there become zeros.
  void clear_draft_slot(int64_t slot);
  // Every byte 0xff (NaN): a test proves with it that no slot is read before it is written.
  void poison();

 private:
  int64_t num_blocks_;
  int32_t block_size_;
  Buffer memory_;
  std::vector<ops::CacheView> target_;
  std::vector<ops::CacheView> draft_;
};

}  // namespace eyrie::runtime
