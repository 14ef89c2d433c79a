// The text model of Kimi-K2.5 (and K2, DeepSeek-V3: the same architecture): multi-head latent
// attention in its absorbed form, so a token's whole KV is one latent of kv_lora_rank values and a
// shared rope key, and a router over many small experts. Owned by the runner; const after load.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/kv_scales.h"
#include "model/blocks.h"
#include "model/config.h"
#include "model/step.h"

namespace eyrie::model {

struct Mla {
  Linear qkv_a_proj;  // q_a_proj and kv_a_proj_with_mqa: [q_lora + latent + rope, H]
  RmsNorm q_a_layernorm;
  Linear q_b_proj;  // [heads · (nope + rope), q_lora]
  RmsNorm kv_a_layernorm;
  ops::WeightStack absorb;                        // per head U_hᵀ [latent, nope] of kv_b_proj
  ops::WeightStack expand;                        // per head V_h [v, latent] of kv_b_proj
  Linear o_proj;                                  // [H, heads · v]
  std::vector<Buffer> transposed;                 // memory of the U_hᵀ
  std::optional<checkpoint::KvScales> kv_scales;  // of an FP8 cache, when the file has them

  static Mla load(const Loader& loader, const ModelConfig& config, const std::string& prefix);
  Tensor forward(const Step& s, const ModelConfig& config, std::span<const double> inv_freq,
                 int64_t layer, Tensor x) const;
};

struct Moe {
  Linear gate;                                // [E, H], the router
  ops::PlacedTensor e_score_correction_bias;  // [E] F32
  ops::WeightStack gate_up, down;             // per expert [2·I, H], [H, I]
  std::optional<Mlp> shared_experts;

  static Moe load(const Loader& loader, const ModelConfig& config, const std::string& prefix);
  Tensor forward(const Step& s, const ModelConfig& config, int64_t layer, Tensor x) const;
};

struct DecoderLayer {
  RmsNorm input_layernorm;
  Mla self_attn;
  RmsNorm post_attention_layernorm;
  std::optional<Mlp> mlp;  // exactly one of mlp and moe
  std::optional<Moe> moe;
};

// A weight that activations meet in a linear layer, and the modules of the checkpoint it was made
// of, in the order of its rows.
struct NamedWeight {
  std::vector<std::string> modules;
  const ops::PreparedWeight* weight;
};

class KimiK25 {
 public:
  static KimiK25 load(const ops::Ctx& ctx, checkpoint::Checkpoint& files, ModelConfig config,
                      ops::ActivationQuantization activation = ops::ActivationQuantization::kOff);

  const ModelConfig& config() const { return config_; }
  size_t weight_bytes() const { return weight_bytes_; }  // read by one pass over everything

  // The residual stream after the last layer, before the final norm [T, H]. With aux_layers (sorted
  // target layers) also copies the residual stream entering each into its columns of
  // aux [T, num_aux · H].
  Tensor forward(const Step& s, std::span<const int32_t> ids,
                 std::span<const int64_t> aux_layers = {}, Tensor aux = {}) const;
  // Final norm and lm_head for some rows only: out [rows, V].
  void logits(const Step& s, Tensor hidden, std::span<const int32_t> rows, Tensor out) const;

  // Stored scales of a layer's FP8 cache; nothing when the file has none.
  const std::optional<checkpoint::KvScales>& kv_scales(int64_t layer) const {
    return layers_[static_cast<size_t>(layer)].self_attn.kv_scales;
  }

  // Every linear layer but kv_b_proj, whose halves the attention keeps head by head; valid while
  // the model lives and is not moved.
  std::vector<NamedWeight> named_weights() const;
  // The module whose input is the tap "kv_latent" of a layer.
  std::string kv_b_proj_name(int64_t layer) const {
    return layer_name(layer) + "self_attn.kv_b_proj";
  }
  const std::string& lm_head_name() const { return lm_head_name_; }

  // What a draft may share.
  const formats::Weight& embed_tokens() const { return embed_tokens_.view; }
  const Linear& lm_head() const { return lm_head_; }
  // The same as it lies in the file.
  const formats::Weight& lm_head_source() const { return lm_head_source_; }

 private:
  size_t count_weight_bytes() const;
  // "language_model.model.layers.3."
  std::string layer_name(int64_t layer) const;

  ModelConfig config_;
  std::string prefix_;        // of the modules, "language_model.model."
  std::string lm_head_name_;  // the embedding's when they are one
  Frequencies inv_freq_;
  ops::PlacedWeight embed_tokens_;  // [V, H]
  std::vector<DecoderLayer> layers_;
  RmsNorm norm_;
  Linear lm_head_;  // [V, H]
  formats::Weight lm_head_source_;
  size_t weight_bytes_ = 0;
};

}  // namespace eyrie::model
