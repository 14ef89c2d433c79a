#include "runtime/kv_storage.h"

#include <cstring>

#include "base/log.h"
#include "base/math.h"

namespace eyrie::runtime {
namespace {

constexpr int64_t kAlignment = 64;

int64_t value_bytes(DType dtype) {
  CHECK(dtype == DType::kBF16 || dtype == DType::kF8E4M3, "a cache of {}", dtype_name(dtype));
  return static_cast<int64_t>(dtype_bytes(dtype));
}

DType resolve(KvCacheDType wanted, const checkpoint::Checkpoint& files) {
  const bool fp8 = wanted == KvCacheDType::kFp8 ||
                   (wanted == KvCacheDType::kAuto && files.quant_config().kv_cache_fp8);
  return fp8 ? DType::kF8E4M3 : DType::kBF16;
}

void log_scales(const char* cache, int64_t num_stored, int64_t num_layers) {
  if (num_stored == num_layers) {
    log::info("Using {} data type to store the {} kv cache, with the checkpoint's scales",
              kv_dtype_name(DType::kF8E4M3), cache);
  } else {
    log::info(
        "Using KV cache scaling factor 1.0 for {} in {} of the {}'s {} layers: the checkpoint has "
        "no k/v_scale for them",
        kv_dtype_name(DType::kF8E4M3), num_layers - num_stored, cache, num_layers);
  }
}

}  // namespace

KvLayout KvLayout::of(const model::ModelConfig& target, const model::Eagle3Config* draft) {
  return {.num_target_layers = target.num_hidden_layers,
          .target_width = target.latent_width(),
          .draft_width = draft == nullptr ? 0 : draft->num_key_value_heads * draft->head_dim};
}

int64_t KvLayout::bytes_per_token() const {
  return num_target_layers * target_width * value_bytes(target_dtype) +
         2 * draft_width * value_bytes(draft_dtype);
}

KvLayout choose_kv_layout(KvCacheDType wanted, const LoadedModels& models) {
  KvLayout layout = KvLayout::of(models.target.config(),
                                 models.draft == nullptr ? nullptr : &models.draft->config());
  layout.target_dtype = resolve(wanted, models.target_files);
  if (layout.target_dtype == DType::kF8E4M3) {
    int64_t num_stored = 0;
    for (int64_t i = 0; i < layout.num_target_layers; ++i) {
      const std::optional<checkpoint::KvScales>& stored = models.target.kv_scales(i);
      num_stored += stored ? 1 : 0;
      layout.target_scales.push_back(stored ? stored->k : 1.0f);
    }
    log_scales("target", num_stored, layout.num_target_layers);
  }
  if (models.draft == nullptr) return layout;
  layout.draft_dtype = resolve(wanted, *models.draft_files);
  if (layout.draft_dtype == DType::kF8E4M3) {
    const std::optional<checkpoint::KvScales>& stored = models.draft->kv_scales();
    layout.draft_k_scale = stored ? stored->k : 1.0f;
    layout.draft_v_scale = stored ? stored->v : 1.0f;
    log_scales("draft", stored ? 1 : 0, 1);
  }
  return layout;
}

std::string_view kv_dtype_name(DType dtype) {
  return dtype == DType::kF8E4M3 ? "fp8_e4m3" : "bfloat16";
}

KvStorage::KvStorage(const KvLayout& layout, int64_t num_blocks, int32_t block_size,
                     const MemorySource* source)
    : num_blocks_(num_blocks), block_size_(block_size) {
  CHECK_GT(num_blocks, 0);
  CHECK(block_size > 0 && block_size % ops::kAttentionTile == 0, "block size {}", block_size);
  const int64_t slots = num_blocks * block_size;
  const auto bytes_of = [&](int64_t width, DType dtype) {
    return align_up(slots * width * value_bytes(dtype), kAlignment);
  };
  const auto bytes = static_cast<size_t>(layout.num_target_layers *
                                             bytes_of(layout.target_width, layout.target_dtype) +
                                         2 * bytes_of(layout.draft_width, layout.draft_dtype));
  memory_ = source == nullptr ? Buffer(bytes) : Buffer(bytes, *source);

  std::byte* next = memory_.data();
  const auto take = [&](int64_t width, DType dtype, float scale) {
    const Tensor data(next, dtype, {slots, width});
    next += bytes_of(width, dtype);
    return ops::CacheView{.data = data, .block_size = block_size, .scale = scale};
  };
  const bool has_scales = !layout.target_scales.empty();
  if (has_scales) {
    CHECK_EQ(static_cast<int64_t>(layout.target_scales.size()), layout.num_target_layers);
  }
  for (int64_t i = 0; i < layout.num_target_layers; ++i) {
    const float scale = has_scales ? layout.target_scales[static_cast<size_t>(i)] : 1.0f;
    target_.push_back(take(layout.target_width, layout.target_dtype, scale));
  }
  if (layout.draft_width > 0) {
    draft_.push_back(take(layout.draft_width, layout.draft_dtype, layout.draft_k_scale));
    draft_.push_back(take(layout.draft_width, layout.draft_dtype, layout.draft_v_scale));
  }
}

void KvStorage::clear_draft_slot(int64_t slot) {
  for (const ops::CacheView& view : draft_) {
    const Tensor row = view.data.rows(slot, 1);
    std::memset(row.raw(), 0, row.bytes());
  }
}

void KvStorage::poison() { std::memset(memory_.data(), 0xff, memory_.bytes()); }

}  // namespace eyrie::runtime
