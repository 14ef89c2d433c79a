// The bytes behind block ids: one latent cache per target layer and, with a draft, its keys and
// values, all indexed by the same block table. The scheduler hands out ids, nobody here knows who
// holds them. Owned by the runner, engine thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/config.h"
#include "ops/ops.h"

namespace eyrie::runtime {

// What one token costs in the cache (bf16): 576 values a layer for Kimi-K2.5, i.e. 70,272 bytes for
// its 61 layers.
struct KvLayout {
  int64_t num_target_layers = 0;
  int64_t target_width = 0;  // latent + rope
  int64_t draft_width = 0;   // kv_heads · head_dim, each of keys and values; 0 without a draft

  static KvLayout of(const model::ModelConfig& target, const model::Eagle3Config* draft);
  int64_t bytes_per_token() const;
};

class KvStorage {
 public:
  KvStorage(const KvLayout& layout, int64_t num_blocks, int32_t block_size);

  std::span<const ops::CacheView> target() const { return target_; }
  std::span<const ops::CacheView> draft() const { return draft_; }  // {keys, values} or empty
  int64_t num_blocks() const { return num_blocks_; }
  int32_t block_size() const { return block_size_; }
  size_t bytes() const { return memory_.bytes(); }
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
