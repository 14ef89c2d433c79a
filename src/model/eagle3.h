// An EAGLE-3 draft of the Llama type: one decoder layer that reads the target's captured hidden
// states (fused by fc) beside the embedding of the next token, and guesses the token after it.
//
//   entry i:  feature of position i  +  embedding of t_{i+1}  →  logits for t_{i+2};  KV slot i
//
// In a chain the layer's own output stands in for the feature. Owned by the runner; const after
// load. The target outlives it (shared embedding and lm_head).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/kv_scales.h"
#include "model/blocks.h"
#include "model/config.h"
#include "model/kimi_k25.h"
#include "model/step.h"

namespace eyrie::model {

class Eagle3 {
 public:
  // With fp8_head a lm_head that is 16 or 32 bits in its file is made FP8 for drafting: every pass
  // of a chain reads all of it, and what a draft guesses never changes the output.
  static Eagle3 load(const ops::Ctx& ctx, checkpoint::Checkpoint& files, Eagle3Config config,
                     const KimiK25& target, AuxLayerIds convention = AuxLayerIds::kGuess,
                     ops::ActivationQuantization activation = ops::ActivationQuantization::kOff,
                     bool fp8_head = false);

  const Eagle3Config& config() const { return config_; }
  size_t weight_bytes() const { return weight_bytes_; }
  std::span<const int64_t> aux_layers() const { return aux_layers_; }  // inputs of these layers

  // Captured states [T, num_aux · Ht] → feature [T, H].
  Tensor fuse(const Step& s, Tensor aux) const;
  // One pass of the layer over entries (feature, next token): its output [T, H]. Writes the KV of
  // the step's positions; s.caches = {keys, values}.
  Tensor forward(const Step& s, std::span<const int32_t> next_ids, Tensor feature) const;
  // Entries of a pass that guess: the newest of each sequence, so a row is a sequence.
  struct Newest {
    std::span<const int32_t> rows;                 // [R], of the pass
    std::span<const int32_t> positions;            // [R], theirs
    std::span<const ops::SequenceRows> sequences;  // [R], over the R rows
  };
  // The same pass where no other entry guesses: output [R, H]. Of the others only keys and values
  // are ever read again, so they skip attention, o_proj and the MLP.
  Tensor forward(const Step& s, std::span<const int32_t> next_ids, Tensor feature,
                 const Newest& newest) const;
  struct Guess {
    Tensor logits;   // [R, draft_vocab_size]
    Tensor feature;  // [R, H]: what the next entry of the chain is fed
  };
  Guess guess(const Step& s, Tensor output) const;

  // Every linear layer, the LM head that may be the target's included. A single module stands for
  // those that are fused with it.
  std::vector<NamedWeight> named_weights() const;

  // Stored scales of an FP8 cache; nothing when the file has none.
  const std::optional<checkpoint::KvScales>& kv_scales() const { return kv_scales_; }

  // target id = d2t[draft id]; empty when the vocabulary is the target's.
  std::span<const int32_t> d2t() const { return d2t_; }

 private:
  struct Taken {
    Tensor residual;  // [T, H]
    Tensor queries;   // [T, heads · head_dim], not rotated yet
  };
  Taken take_in(const Step& s, std::span<const int32_t> next_ids, Tensor feature) const;
  void rotate(const Step& s, Tensor x) const;
  void finish(const Step& s, Tensor residual, Tensor queries) const;
  void load_vocabulary(const Loader& loader, const std::string& root, const KimiK25& target,
                       bool fp8_head);
  const Linear& lm_head() const { return own_lm_head_ ? *own_lm_head_ : *target_lm_head_; }

  Eagle3Config config_;
  std::vector<int64_t> aux_layers_;
  Frequencies inv_freq_;
  std::vector<int32_t> d2t_;
  std::optional<ops::PlacedWeight> own_embed_tokens_;
  formats::Weight embed_tokens_;       // its own or the target's
  std::optional<RmsNorm> input_norm_;  // norm_before_fc
  std::vector<RmsNorm> fc_norms_;      // fc_norm
  Linear fc_;                          // [H, num_aux · Ht]
  RmsNorm input_layernorm_;            // of the embedding
  RmsNorm hidden_norm_;                // of the feature
  Linear qkv_proj_;                    // [(heads + 2·kv_heads) · head_dim, 2·H]
  std::optional<checkpoint::KvScales> kv_scales_;
  Linear o_proj_;
  RmsNorm post_attention_layernorm_;
  Mlp mlp_;
  RmsNorm norm_;
  std::optional<Linear> own_lm_head_;       // [draft_vocab_size, H]
  Buffer fp8_head_;                         // memory of one made FP8, where the ops read it
  const Linear* target_lm_head_ = nullptr;  // shared when there is no own
  size_t weight_bytes_ = 0;
};

}  // namespace eyrie::model
