#include "runtime/kv_storage.h"

#include <cstring>

#include "base/math.h"

namespace eyrie::runtime {
namespace {

constexpr int64_t kValueBytes = 2;  // bf16
constexpr int64_t kAlignment = 64;

}  // namespace

KvLayout KvLayout::of(const model::ModelConfig& target, const model::Eagle3Config* draft) {
  return {.num_target_layers = target.num_hidden_layers,
          .target_width = target.latent_width(),
          .draft_width = draft == nullptr ? 0 : draft->num_key_value_heads * draft->head_dim};
}

int64_t KvLayout::bytes_per_token() const {
  return (num_target_layers * target_width + 2 * draft_width) * kValueBytes;
}

KvStorage::KvStorage(const KvLayout& layout, int64_t num_blocks, int32_t block_size)
    : num_blocks_(num_blocks), block_size_(block_size) {
  CHECK_GT(num_blocks, 0);
  CHECK(block_size > 0 && block_size % ops::kAttentionTile == 0, "block size {}", block_size);
  const int64_t slots = num_blocks * block_size;
  const int64_t target_bytes = align_up(slots * layout.target_width * kValueBytes, kAlignment);
  const int64_t draft_bytes = align_up(slots * layout.draft_width * kValueBytes, kAlignment);
  memory_ = Buffer(static_cast<size_t>(layout.num_target_layers * target_bytes + 2 * draft_bytes));

  std::byte* next = memory_.data();
  const auto take = [&](int64_t width, int64_t bytes) {
    const Tensor data(next, DType::kBF16, {slots, width});
    next += bytes;
    return ops::CacheView{.data = data, .block_size = block_size};
  };
  for (int64_t i = 0; i < layout.num_target_layers; ++i) {
    target_.push_back(take(layout.target_width, target_bytes));
  }
  for (int i = 0; layout.draft_width > 0 && i < 2; ++i) {
    draft_.push_back(take(layout.draft_width, draft_bytes));
  }
}

void KvStorage::poison() { std::memset(memory_.data(), 0xff, memory_.bytes()); }

}  // namespace eyrie::runtime
