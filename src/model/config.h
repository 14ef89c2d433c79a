// What a checkpoint's config.json says, read once and checked: a missing or senseless key is an
// Error that names it, never another model's default. Two models: the target (Kimi-K2/K2.5,
// DeepSeek-V3: one architecture) and its EAGLE-3 draft. Field names are Hugging Face's. Plain
// values, any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace eyrie::model {

// YaRN (Peng et al. 2023): low frequencies are divided by `factor`, high ones kept, and the softmax
// is made sharper.
struct Yarn {
  double factor = 1;
  double original_max_position_embeddings = 4096;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;
};

struct RopeConfig {
  double theta = 10000;
  std::optional<Yarn> yarn = std::nullopt;

  std::vector<double> inv_freq(int64_t dim) const;  // [dim / 2]
  float magnitude() const;                          // factor of cos and sin
  float softmax_factor() const;                     // factor of the softmax scale in MLA
};

struct ModelConfig {
  std::string model_type;  // as the file says: kimi_k25, kimi_k2, deepseek_v3
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  double logit_scale = 1.0;

  // attention
  int64_t num_attention_heads = 0;
  int64_t q_lora_rank = 0;
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  RopeConfig rope;

  // feed-forward: layers below first_k_dense_replace are dense
  int64_t intermediate_size = 0;
  int64_t moe_intermediate_size = 0;
  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t first_k_dense_replace = 0;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.0;

  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> pad_token_id;

  bool is_moe(int64_t layer) const { return layer >= first_k_dense_replace; }
  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int64_t latent_width() const { return kv_lora_rank + qk_rope_head_dim; }  // KV cache, per token
  float softmax_scale() const;
  double num_parameters() const;  // of the text model, norms left out

  // The whole config.json; Error names the key.
  static ModelConfig parse(const nlohmann::json& config);
};

// Drafts number the target layers they listen to in two ways: 1, 29, 57 = "output of layer 1 …"
// (training tools), 2, 30, 58 = "input of layer 2 …" (vLLM). `kGuess` tells them apart by the
// customary choice for the target's depth and else by the tensor names (midlayer / layers.0).
enum class AuxLayerIds { kGuess, kOutputs, kInputs };

struct Eagle3Config {
  int64_t vocab_size = 0;
  int64_t draft_vocab_size = 0;  // == vocab_size when the draft has no vocabulary of its own
  int64_t hidden_size = 0;
  int64_t target_hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  double rms_norm_eps = 1e-6;
  double logit_scale = 1.0;
  RopeConfig rope;

  int64_t num_aux_hidden_states = 3;
  std::vector<int64_t> aux_layer_ids;  // as written; empty: the customary three
  bool norm_before_residual = false;   // the residual starts from the normalised hidden state
  bool norm_before_fc = false;         // one norm over the concatenation
  bool fc_norm = false;                // one norm per captured state (EAGLE-3.1)
  bool norm_output = false;            // the next step is fed the post-norm state (EAGLE-3.1)

  static Eagle3Config parse(const nlohmann::json& config);

  double num_parameters() const;  // its own vocabulary included, norms left out

  // Error in one sentence when the draft cannot serve this target.
  void check_fits(const ModelConfig& target) const;
  // Target layers whose input is captured, low to high; 0 = embedding, num_hidden_layers = after
  // the last. Checked to be in range.
  std::vector<int64_t> aux_layer_inputs(const ModelConfig& target, bool has_midlayer_names,
                                        AuxLayerIds convention = AuxLayerIds::kGuess) const;
};

}  // namespace eyrie::model
