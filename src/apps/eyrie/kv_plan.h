// How large the KV cache becomes and how long a context fits: a pure function of what the user
// asked, what the model needs and what the machine has, computed once at start.
#pragma once

#include <cstdint>
#include <optional>

namespace eyrie::apps {

struct KvDemand {
  // The machine.
  int64_t memory_bytes = 0;   // this process may use at most utilization × this
  double utilization = 0.92;  // --gpu-memory-utilization, (0, 1]
  // The model.
  int64_t weights_bytes = 0;
  int64_t workspace_bytes = 0;  // scratch of the largest step
  int64_t bytes_per_token = 0;  // target and draft KV
  int64_t model_max_len = 0;    // max_position_embeddings
  // The user.
  std::optional<int64_t> kv_bytes = std::nullopt;    // --kv-cache-memory-bytes
  std::optional<int64_t> num_blocks = std::nullopt;  // --num-gpu-blocks-override
  int64_t max_model_len = 0;                         // 0: the model's; -1: the largest that fits
  int64_t max_num_seqs = 256;
  int64_t block_size = 16;
};

struct KvPlan {
  int64_t num_blocks = 0;
  int64_t max_model_len = 0;
  int64_t kv_bytes = 0;
  int64_t num_tokens() const { return num_blocks * block_size; }
  int64_t block_size = 16;
};

// Never more blocks than max_num_seqs sequences of max_model_len can fill. Throws Error with the
// needed and available memory and the largest context that fits.
KvPlan plan_kv(const KvDemand& demand);

// Memory this process may use: physical, or the cgroup's limit when that is lower.
int64_t usable_memory_bytes();

}  // namespace eyrie::apps
