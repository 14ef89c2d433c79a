#include "model/kimi_k25.h"

#include <cmath>

#include "base/error.h"

namespace eyrie::model {
namespace {

// Where a checkpoint keeps the text model: Kimi-K2.5, a text-only relative, a re-export.
struct Names {
  std::string model;
  std::string lm_head;
};

Names find_names(const checkpoint::Checkpoint& files) {
  const std::vector<Names> known = {{"language_model.model.", "language_model.lm_head"},
                                    {"model.", "lm_head"},
                                    {"language_model.", "language_model.lm_head"}};
  const bool wrapped = files.config().value("model_type", "") == "kimi_k25";
  if (files.is_dummy()) return wrapped ? known[0] : known[1];
  for (const Names& names : known) {
    if (files.contains(names.model + "embed_tokens.weight")) return names;
  }
  fail("{}: tensor 'language_model.model.embed_tokens.weight' is missing", files.path());
}

DType transposed_dtype(const formats::Weight& weight) {
  return weight.format == &formats::kBF16 ? DType::kBF16 : DType::kF32;
}

// U_hᵀ: rows [begin, begin + count) of kv_b_proj, transposed to [in, count]. Exact: the encoding is
// kept when it is bf16, anything else is decoded to float32.
Tensor transpose_rows(const formats::Weight& weight, int64_t begin, int64_t count,
                      const Buffer& buffer) {
  constexpr int64_t kBlock = 32;  // columns: what is written stays in the cache
  const DType dtype = transposed_dtype(weight);
  if (dtype == DType::kBF16) {
    for (int64_t i = 0; i < weight.in; i += kBlock) {
      const int64_t end = std::min(i + kBlock, weight.in);
      for (int64_t o = 0; o < count; ++o) {
        const auto* row = formats::row_of<bf16>(weight.data, begin + o);
        for (int64_t k = i; k < end; ++k) buffer.as<bf16>()[k * count + o] = row[k];
      }
    }
  } else {
    std::vector<float> row(static_cast<size_t>(weight.in));
    for (int64_t o = 0; o < count; ++o) {
      weight.format->decode_row(weight, begin + o, row);
      for (int64_t k = 0; k < weight.in; ++k) {
        buffer.as<float>()[k * count + o] = row[static_cast<size_t>(k)];
      }
    }
  }
  return Tensor(buffer.data(), dtype, {weight.in, count});
}

}  // namespace

// ---- attention ----------------------------------------------------------------------------------

Mla Mla::load(const Loader& loader, const ModelConfig& c, const std::string& prefix) {
  const int64_t heads = c.num_attention_heads;
  const int64_t nope = c.qk_nope_head_dim, v = c.v_head_dim;
  Mla a;
  a.qkv_a_proj = Linear::load(
      loader,
      {{prefix + ".q_a_proj", c.q_lora_rank}, {prefix + ".kv_a_proj_with_mqa", c.latent_width()}},
      c.hidden_size);
  a.q_a_layernorm = RmsNorm::load(loader, prefix + ".q_a_layernorm", c.q_lora_rank, c.rms_norm_eps);
  a.q_b_proj = Linear::load(loader, prefix + ".q_b_proj", heads * c.qk_head_dim(), c.q_lora_rank);
  a.kv_a_layernorm =
      RmsNorm::load(loader, prefix + ".kv_a_layernorm", c.kv_lora_rank, c.rms_norm_eps);
  a.o_proj = Linear::load(loader, prefix + ".o_proj", c.hidden_size, heads * v);
  a.kv_scales = checkpoint::find_kv_scales(loader.files, prefix);

  const formats::Weight kv_b =
      loader.files.weight(prefix + ".kv_b_proj", heads * (nope + v), c.kv_lora_rank);
  const size_t bytes =
      static_cast<size_t>(nope * c.kv_lora_rank) * dtype_bytes(transposed_dtype(kv_b));
  for (int64_t h = 0; h < heads; ++h) a.transposed.emplace_back(bytes);
  std::vector<Tensor> transposed(a.transposed.size());
  loader.ctx.pool->run(heads, [&](int64_t h, int) {
    const auto i = static_cast<size_t>(h);
    transposed[i] = transpose_rows(kv_b, h * (nope + v), nope, a.transposed[i]);
  });
  // What a format's hardware does to activations it does not do between a matrix's halves.
  const auto activation = loader.activation == ops::ActivationQuantization::kEmulate
                              ? ops::ActivationQuantization::kOff
                              : loader.activation;
  std::vector<ops::PreparedWeight> absorb, expand;
  for (int64_t h = 0; h < heads; ++h) {
    const formats::Weight u = formats::plain_weight(transposed[static_cast<size_t>(h)]);
    const formats::Weight value = weight_rows(kv_b, h * (nope + v) + nope, v);
    absorb.push_back(ops::prepare(loader.ctx, {&u, 1}, activation));
    expand.push_back(ops::prepare(loader.ctx, {&value, 1}, activation));
  }
  a.absorb = ops::stack(loader.ctx, std::move(absorb));
  a.expand = ops::stack(loader.ctx, std::move(expand));
  if (a.expand[0].source.empty()) {  // the kernels have their own layout
    a.transposed.clear();
    loader.files.done_with(kv_b);
  }
  return a;
}

Tensor Mla::forward(const Step& s, const ModelConfig& c, std::span<const double> inv_freq,
                    int64_t layer, Tensor x) const {
  const int64_t T = x.dim(0), heads = c.num_attention_heads;
  const int64_t nope = c.qk_nope_head_dim, rope = c.qk_rope_head_dim, latent = c.kv_lora_rank;
  const Tensor qkv = qkv_a_proj.forward(s, x);
  const Tensor c_q = qkv.columns(0, c.q_lora_rank);
  const Tensor kv = qkv.columns(c.q_lora_rank, latent + rope);
  ops::mla_cache_write(s.ctx, {.cache = s.caches[static_cast<size_t>(layer)],
                               .kv = kv,
                               .norm_weight = kv_a_layernorm.weight.view,
                               .eps = kv_a_layernorm.eps,
                               .positions = s.positions,
                               .inv_freq = inv_freq,
                               .magnitude = c.rope.magnitude(),
                               .style = ops::RopeStyle::kInterleaved,
                               .sequences = s.sequences,
                               .q = c_q,
                               .q_norm_weight = q_a_layernorm.weight.view,
                               .q_eps = q_a_layernorm.eps});
  s.tap("kv_latent", layer, kv.columns(0, latent));

  const Tensor q = q_b_proj.forward(s, c_q).split_last(heads, nope + rope);  // [T, heads, …]
  const Tensor q_latent = s.act({T, heads, latent});
  ops::mla_queries(s.ctx, {.q_latent = q_latent,
                           .q = q,
                           .weights = absorb,
                           .positions = s.positions,
                           .inv_freq = inv_freq,
                           .magnitude = c.rope.magnitude(),
                           .style = ops::RopeStyle::kInterleaved});
  const Tensor o_latent = s.act({T, heads, latent});
  ops::mla_attention(s.ctx, {.out = o_latent,
                             .q_latent = q_latent,
                             .q_rope = q.columns(nope, rope),
                             .cache = s.caches[static_cast<size_t>(layer)],
                             .sequences = s.sequences,
                             .scale = c.softmax_scale(),
                             .max_rows = s.max_rows});
  const Tensor o = s.act({T, heads, c.v_head_dim});
  ops::head_linear(s.ctx, {.out = o, .x = o_latent, .weights = expand});
  return o_proj.forward(s, o.reshape({T, heads * c.v_head_dim}));  // [T, H]
}

// ---- experts ------------------------------------------------------------------------------------

Moe Moe::load(const Loader& loader, const ModelConfig& c, const std::string& prefix) {
  Moe m;
  // The router decides in float32 whatever the experts' format; its activations are never rounded.
  const Loader plain{loader.ctx, loader.files};
  m.gate = Linear::load(plain, prefix + ".gate", c.n_routed_experts, c.hidden_size);
  m.e_score_correction_bias = ops::place(
      loader.ctx,
      loader.files.tensor_f32(prefix + ".gate.e_score_correction_bias", {c.n_routed_experts}));
  std::vector<ops::PreparedWeight> gate_up, down;
  for (int64_t e = 0; e < c.n_routed_experts; ++e) {
    Mlp expert = Mlp::load(loader, fmt::format("{}.experts.{}", prefix, e), c.hidden_size,
                           c.moe_intermediate_size);
    gate_up.push_back(std::move(expert.gate_up.weight));
    down.push_back(std::move(expert.down.weight));
  }
  m.gate_up = ops::stack(loader.ctx, std::move(gate_up));
  m.down = ops::stack(loader.ctx, std::move(down));
  if (c.n_shared_experts > 0) {
    m.shared_experts = Mlp::load(loader, prefix + ".shared_experts", c.hidden_size,
                                 c.moe_intermediate_size * c.n_shared_experts);
  }
  return m;
}

Tensor Moe::forward(const Step& s, const ModelConfig& c, int64_t layer, Tensor x) const {
  const int64_t T = x.dim(0), k = c.num_experts_per_tok;
  const Tensor logits = s.f32({T, gate.weight.out});  // [T, E]
  const Tensor ids = s.ctx.arena->empty(DType::kI32, {T, k});
  const Tensor weights = s.f32({T, k});
  const Tensor out = s.act({T, c.hidden_size});
  ops::MoeArgs args{
      .gate = {.out = logits, .x = x, .weight = &gate.weight},
      .route = {.ids = ids,
                .weights = weights,
                .logits = logits,
                .bias = e_score_correction_bias.view,
                .n_group = static_cast<int32_t>(c.n_group),
                .topk_group = static_cast<int32_t>(c.topk_group),
                .norm_topk_prob = c.norm_topk_prob,
                .routed_scaling_factor = static_cast<float>(c.routed_scaling_factor),
                .num_valid = s.num_valid},
      .experts = {
          .out = out, .x = x, .ids = ids, .weights = weights, .gate_up = gate_up, .down = down}};
  if (shared_experts.has_value()) {
    args.experts.shared_gate_up = &shared_experts->gate_up.weight;
    args.experts.shared_down = &shared_experts->down.weight;
  }
  ops::moe(s.ctx, args);
  s.tap("router_logits", layer, logits);
  return out;  // [T, H]
}

// ---- model --------------------------------------------------------------------------------------

KimiK25 KimiK25::load(const ops::Ctx& ctx, checkpoint::Checkpoint& files, ModelConfig config,
                      ops::ActivationQuantization activation) {
  const Loader loader{ctx, files, activation};
  const Names names = find_names(files);
  KimiK25 m;
  m.config_ = std::move(config);
  const ModelConfig& c = m.config_;
  m.inv_freq_ = Frequencies(ctx, c.rope.inv_freq(c.qk_rope_head_dim));
  m.prefix_ = names.model;
  m.embed_tokens_ =
      ops::place(ctx, files.weight(names.model + "embed_tokens", c.vocab_size, c.hidden_size));
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const std::string prefix = m.layer_name(i);
    DecoderLayer layer;
    layer.input_layernorm =
        RmsNorm::load(loader, prefix + "input_layernorm", c.hidden_size, c.rms_norm_eps);
    layer.self_attn = Mla::load(loader, c, prefix + "self_attn");
    layer.post_attention_layernorm =
        RmsNorm::load(loader, prefix + "post_attention_layernorm", c.hidden_size, c.rms_norm_eps);
    if (c.is_moe(i)) {
      layer.moe = Moe::load(loader, c, prefix + "mlp");
    } else {
      layer.mlp = Mlp::load(loader, prefix + "mlp", c.hidden_size, c.intermediate_size);
    }
    m.layers_.push_back(std::move(layer));
  }
  m.norm_ = RmsNorm::load(loader, names.model + "norm", c.hidden_size, c.rms_norm_eps);
  m.lm_head_name_ = c.tie_word_embeddings ? names.model + "embed_tokens" : names.lm_head;
  m.lm_head_ = Linear::load(loader, m.lm_head_name_, c.vocab_size, c.hidden_size);
  m.lm_head_source_ = files.weight(m.lm_head_name_, c.vocab_size, c.hidden_size);
  m.weight_bytes_ = m.count_weight_bytes();
  return m;
}

std::string KimiK25::layer_name(int64_t layer) const {
  return fmt::format("{}layers.{}.", prefix_, layer);
}

std::vector<NamedWeight> KimiK25::named_weights() const {
  std::vector<NamedWeight> named;
  const auto add_mlp = [&](const std::string& prefix, const ops::PreparedWeight& gate_up,
                           const ops::PreparedWeight& down) {
    named.push_back({{prefix + ".gate_proj", prefix + ".up_proj"}, &gate_up});
    named.push_back({{prefix + ".down_proj"}, &down});
  };
  for (size_t i = 0; i < layers_.size(); ++i) {
    const DecoderLayer& layer = layers_[i];
    const Mla& a = layer.self_attn;
    const std::string prefix = layer_name(static_cast<int64_t>(i));
    named.push_back({{prefix + "self_attn.q_a_proj", prefix + "self_attn.kv_a_proj_with_mqa"},
                     &a.qkv_a_proj.weight});
    named.push_back({{prefix + "self_attn.q_b_proj"}, &a.q_b_proj.weight});
    named.push_back({{prefix + "self_attn.o_proj"}, &a.o_proj.weight});
    if (layer.mlp.has_value()) {
      add_mlp(prefix + "mlp", layer.mlp->gate_up.weight, layer.mlp->down.weight);
    }
    if (!layer.moe.has_value()) continue;
    const Moe& moe = *layer.moe;
    named.push_back({{prefix + "mlp.gate"}, &moe.gate.weight});
    for (size_t e = 0; e < moe.down.weights.size(); ++e) {
      add_mlp(fmt::format("{}mlp.experts.{}", prefix, e), moe.gate_up[e], moe.down[e]);
    }
    if (moe.shared_experts.has_value()) {
      add_mlp(prefix + "mlp.shared_experts", moe.shared_experts->gate_up.weight,
              moe.shared_experts->down.weight);
    }
  }
  named.push_back({{lm_head_name_}, &lm_head_.weight});
  return named;
}

size_t KimiK25::count_weight_bytes() const {
  size_t bytes = 0;
  for (const NamedWeight& named : named_weights()) bytes += named.weight->bytes();
  for (const DecoderLayer& layer : layers_) {
    for (const auto& weight : layer.self_attn.absorb.weights) bytes += weight.bytes();
    for (const auto& weight : layer.self_attn.expand.weights) bytes += weight.bytes();
  }
  return bytes;
}

Tensor KimiK25::forward(const Step& s, std::span<const int32_t> ids,
                        std::span<const int64_t> aux_layers, Tensor aux) const {
  const int64_t T = s.num_rows(), H = config_.hidden_size;
  const auto capture = [&](int64_t layer, Tensor h) {
    for (size_t i = 0; i < aux_layers.size(); ++i) {
      if (aux_layers[i] == layer) {
        ops::copy_rows(s.ctx, {.out = aux.columns(static_cast<int64_t>(i) * H, H), .x = h});
      }
    }
  };

  const Tensor h = s.f32({T, H});  // the residual stream
  const Tensor x = s.act({T, H});  // normalised: what the next half layer reads
  ops::embedding(s.ctx, {.out = h, .table = &embed_tokens_.view, .ids = ids});
  s.tap("embedding", -1, h);
  layers_.front().input_layernorm.forward_into(s, x, h);
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const ArenaScope scratch(*s.ctx.arena);
    const DecoderLayer& layer = layers_[static_cast<size_t>(i)];
    capture(i, h);
    const Tensor attn_out = layer.self_attn.forward(s, config_, inv_freq_.values(), i, x);
    s.tap("attention_output", i, attn_out);
    layer.post_attention_layernorm.add_and_forward_into(s, x, h, attn_out);
    const Tensor ffn_out =
        layer.moe.has_value() ? layer.moe->forward(s, config_, i, x) : layer.mlp->forward(s, x);
    s.tap("ffn_output", i, ffn_out);
    if (i + 1 < config_.num_hidden_layers) {
      layers_[static_cast<size_t>(i) + 1].input_layernorm.add_and_forward_into(s, x, h, ffn_out);
    } else {
      ops::add(s.ctx, {.residual = h, .x = ffn_out});
    }
    s.tap("layer_output", i, h);
  }
  capture(config_.num_hidden_layers, h);
  return h;
}

void KimiK25::logits(const Step& s, Tensor hidden, std::span<const int32_t> rows,
                     Tensor out) const {
  const ArenaScope scratch(*s.ctx.arena);
  const Tensor x = s.f32({static_cast<int64_t>(rows.size()), config_.hidden_size});
  ops::gather_rows(s.ctx, {.out = x, .x = hidden, .rows = rows});
  const Tensor normed = norm_.forward(s, x);
  s.tap("final_norm", -1, normed);
  ops::linear(s.ctx, {.out = out, .x = normed, .weight = &lm_head_.weight});
  ops::scale_rows(s.ctx, {.x = out, .factor = static_cast<float>(config_.logit_scale)});
}

}  // namespace eyrie::model
