#include "model/eagle3.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/math.h"

namespace eyrie::model {
namespace {

// Where a draft's file keeps its tensors: training tools say midlayer, vLLM-style exports layers.0,
// some put everything under model.
struct Names {
  std::string root;
  std::string layer;
  bool is_midlayer = true;
};

Names find_names(const checkpoint::Checkpoint& files) {
  if (files.is_dummy()) return {"", "midlayer.", true};
  for (const std::string root : {"", "model."}) {
    for (const bool is_midlayer : {true, false}) {
      const std::string layer = root + (is_midlayer ? "midlayer." : "layers.0.");
      if (files.contains(layer + "hidden_norm.weight")) return {root, layer, is_midlayer};
    }
  }
  fail("{}: tensor 'midlayer.hidden_norm.weight' (or 'layers.0.hidden_norm.weight') is missing",
       files.path());
}

// target id of each draft id. The file stores target id - draft id, and ids ascend.
std::vector<int32_t> load_d2t(checkpoint::Checkpoint& files, const std::string& name,
                              const Eagle3Config& c) {
  const Tensor offsets = files.tensor(name, {c.draft_vocab_size});
  if (offsets.dtype() != DType::kI64) {
    fail("{}: tensor '{}' is {}, expected I64", files.path(), name, offsets.shape_string());
  }
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < c.draft_vocab_size; ++i) {
    const int64_t id = i + offsets.data<int64_t>()[i];
    const int64_t least = ids.empty() ? 0 : ids.back() + int64_t{1};
    if (id < least || id >= c.vocab_size) {
      fail("{}: tensor '{}' maps draft token {} to {}, expected ascending ids below {}",
           files.path(), name, i, id, c.vocab_size);
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

// The weight in FP8, a scale a row: [out, in] codes and then [out] scales.
formats::Weight in_fp8(ThreadPool& pool, const formats::Weight& weight, std::byte* memory) {
  const int64_t out = weight.out, in = weight.in;
  auto* scales = reinterpret_cast<float*>(memory + out * in);
  constexpr int64_t kRowsPerTask = 256;
  pool.run(div_ceil(out, kRowsPerTask), [&](int64_t task, int) {
    std::vector<float> row(static_cast<size_t>(in));
    for (int64_t o = task * kRowsPerTask; o < std::min(out, (task + 1) * kRowsPerTask); ++o) {
      weight.format->decode_row(weight, o, row);
      formats::kFp8.encode_row(row, {memory + o * in, static_cast<size_t>(in)},
                               std::as_writable_bytes(std::span(scales + o, 1)));
    }
  });
  return {.format = &formats::kFp8,
          .out = out,
          .in = in,
          .data = Tensor(memory, DType::kF8E4M3, {out, in}),
          .scales = Tensor::of(scales, {out, 1})};
}

}  // namespace

Eagle3 Eagle3::load(const ops::Ctx& ctx, checkpoint::Checkpoint& files, Eagle3Config config,
                    const KimiK25& target, AuxLayerIds convention,
                    ops::ActivationQuantization activation, bool fp8_head) {
  config.check_fits(target.config());
  const Loader loader{ctx, files, activation};
  const Names names = find_names(files);
  Eagle3 d;
  d.config_ = std::move(config);
  const Eagle3Config& c = d.config_;
  const int64_t H = c.hidden_size, num_aux = c.num_aux_hidden_states;
  const int64_t q_width = c.num_attention_heads * c.head_dim;
  const int64_t kv_width = c.num_key_value_heads * c.head_dim;
  d.aux_layers_ = c.aux_layer_inputs(target.config(), names.is_midlayer, convention);
  d.inv_freq_ = Frequencies(ctx, c.rope.inv_freq(c.head_dim));
  const auto norm = [&](const std::string& name, int64_t size) {
    return RmsNorm::load(loader, name, size, c.rms_norm_eps);
  };

  if (c.norm_before_fc)
    d.input_norm_ = norm(names.root + "input_norm", num_aux * c.target_hidden_size);
  for (int64_t i = 0; c.fc_norm && i < num_aux; ++i) {
    d.fc_norms_.push_back(norm(fmt::format("{}fc_norm.{}", names.root, i), c.target_hidden_size));
  }
  d.fc_ = Linear::load(loader, names.root + "fc", H, num_aux * c.target_hidden_size);
  d.input_layernorm_ = norm(names.layer + "input_layernorm", H);
  d.hidden_norm_ = norm(names.layer + "hidden_norm", H);
  const std::string attn = names.layer + "self_attn.";
  d.qkv_proj_ = Linear::load(
      loader,
      {{attn + "q_proj", q_width}, {attn + "k_proj", kv_width}, {attn + "v_proj", kv_width}},
      2 * H);
  d.kv_scales_ = checkpoint::find_kv_scales(files, names.layer + "self_attn");
  d.o_proj_ = Linear::load(loader, attn + "o_proj", H, q_width);
  d.post_attention_layernorm_ = norm(names.layer + "post_attention_layernorm", H);
  d.mlp_ = Mlp::load(loader, names.layer + "mlp", H, c.intermediate_size);
  d.norm_ = norm(names.root + "norm", H);
  d.load_vocabulary(loader, names.root, target, fp8_head);

  for (const NamedWeight& named : d.named_weights()) d.weight_bytes_ += named.weight->bytes();
  return d;
}

std::vector<NamedWeight> Eagle3::named_weights() const {
  return {{{"fc"}, &fc_.weight},
          {{"self_attn.q_proj"}, &qkv_proj_.weight},
          {{"self_attn.o_proj"}, &o_proj_.weight},
          {{"mlp.gate_proj"}, &mlp_.gate_up.weight},
          {{"mlp.down_proj"}, &mlp_.down.weight},
          {{"lm_head"}, &lm_head().weight}};
}

void Eagle3::load_vocabulary(const Loader& loader, const std::string& root, const KimiK25& target,
                             bool fp8_head) {
  const Eagle3Config& c = config_;
  checkpoint::Checkpoint& files = loader.files;
  const bool same_width = c.hidden_size == c.target_hidden_size;
  const auto in_file = [&](const std::string& name) {
    return !files.is_dummy() && files.contains(name);
  };

  if (in_file(root + "embed_tokens.weight") || !same_width) {
    own_embed_tokens_ =
        ops::place(loader.ctx, files.weight(root + "embed_tokens", c.vocab_size, c.hidden_size));
    embed_tokens_ = own_embed_tokens_->view;
  } else {
    embed_tokens_ = target.embed_tokens();
  }

  const std::string head = in_file(root + "lm_head.weight") ? root + "lm_head" : "lm_head";
  const bool is_own =
      in_file(head + ".weight") || !same_width || c.draft_vocab_size != c.vocab_size;
  const formats::Weight source = !fp8_head ? formats::Weight{}
                                 : is_own  ? files.weight(head, c.draft_vocab_size, c.hidden_size)
                                           : target.lm_head_source();
  if (!source.empty() && source.format->bits_per_element >= 16) {
    fp8_head_ =
        Buffer(static_cast<size_t>(source.out) * (static_cast<size_t>(source.in) + sizeof(float)));
    const formats::Weight encoded = in_fp8(*loader.ctx.pool, source, fp8_head_.data());
    own_lm_head_ = Linear{.weight = ops::prepare(loader.ctx, {&encoded, 1})};
    if (own_lm_head_->weight.source.empty()) fp8_head_ = {};
  } else if (is_own) {
    own_lm_head_ = Linear::load(loader, head, c.draft_vocab_size, c.hidden_size);
  } else {
    target_lm_head_ = &target.lm_head();
  }

  const std::string d2t = in_file(root + "d2t") ? root + "d2t" : "d2t";
  if (c.draft_vocab_size == c.vocab_size) return;
  if (!files.is_dummy()) {
    d2t_ = load_d2t(files, d2t, c);
  } else {
    for (int32_t i = 0; i < c.draft_vocab_size; ++i) d2t_.push_back(i);
  }
}

Tensor Eagle3::fuse(const Step& s, Tensor aux) const {
  const int64_t Ht = config_.target_hidden_size;
  if (input_norm_.has_value()) aux = input_norm_->forward(s, aux);
  if (!fc_norms_.empty()) {
    const Tensor normed = s.act({aux.dim(0), aux.dim(1)});
    for (size_t i = 0; i < fc_norms_.size(); ++i) {
      const int64_t begin = static_cast<int64_t>(i) * Ht;
      ops::rms_norm(s.ctx, {.out = normed.columns(begin, Ht),
                            .x = aux.columns(begin, Ht),
                            .weight = fc_norms_[i].weight.view,
                            .eps = fc_norms_[i].eps});
    }
    aux = normed;
  }
  return fc_.forward(s, aux);  // [T, H]
}

// What every entry goes through: its keys and values are in the cache afterwards.
Eagle3::Taken Eagle3::take_in(const Step& s, std::span<const int32_t> next_ids,
                              Tensor feature) const {
  const Eagle3Config& c = config_;
  const int64_t T = s.num_rows(), H = c.hidden_size, D = c.head_dim;
  const int64_t q_width = c.num_attention_heads * D, kv_width = c.num_key_value_heads * D;
  const Tensor u = s.act({T, 2 * H});  // [embedding | feature]
  const Tensor e = s.f32({T, H});
  ops::embedding(s.ctx, {.out = e, .table = &embed_tokens_, .ids = next_ids});
  input_layernorm_.forward_into(s, u.columns(0, H), e);
  hidden_norm_.forward_into(s, u.columns(H, H), feature);

  const Tensor qkv = qkv_proj_.forward(s, u);
  const Tensor k = qkv.columns(q_width, kv_width);
  const Tensor v = qkv.columns(q_width + kv_width, kv_width);
  rotate(s, k.split_last(c.num_key_value_heads, D));
  ops::cache_write(s.ctx, {.cache = s.caches[0], .x = k, .sequences = s.sequences});
  ops::cache_write(s.ctx, {.cache = s.caches[1], .x = v, .sequences = s.sequences});
  return {.residual = c.norm_before_residual ? u.columns(H, H) : feature,
          .queries = qkv.columns(0, q_width)};
}

void Eagle3::rotate(const Step& s, Tensor x) const {
  ops::rope(s.ctx, {.x = x,
                    .positions = s.positions,
                    .inv_freq = inv_freq_.values(),
                    .magnitude = config_.rope.magnitude(),
                    .style = ops::RopeStyle::kHalfSplit});
}

// Attention and MLP of the step's rows, added to their residual; queries [T, heads, D].
void Eagle3::finish(const Step& s, Tensor residual, Tensor queries) const {
  const Eagle3Config& c = config_;
  const int64_t T = s.num_rows(), D = c.head_dim, heads = c.num_attention_heads;
  rotate(s, queries);
  const Tensor o = s.act({T, heads, D});
  ops::gqa_attention(s.ctx, {.out = o,
                             .q = queries,
                             .k_cache = s.caches[0],
                             .v_cache = s.caches[1],
                             .sequences = s.sequences,
                             .num_kv_heads = static_cast<int32_t>(c.num_key_value_heads),
                             .scale = 1.0F / std::sqrt(static_cast<float>(D)),
                             .max_rows = s.max_rows});
  const Tensor attn_out = o_proj_.forward(s, o.reshape({T, heads * D}));
  const Tensor mlp_in = s.act({T, c.hidden_size});
  post_attention_layernorm_.add_and_forward_into(s, mlp_in, residual, attn_out);
  ops::add(s.ctx, {.residual = residual, .x = mlp_.forward(s, mlp_in)});
  s.tap("draft_output", -1, residual);
}

Tensor Eagle3::forward(const Step& s, std::span<const int32_t> next_ids, Tensor feature) const {
  const int64_t T = s.num_rows(), heads = config_.num_attention_heads, D = config_.head_dim;
  const Tensor r = s.f32({T, config_.hidden_size});
  const ArenaScope scratch(*s.ctx.arena);
  const Taken taken = take_in(s, next_ids, feature);
  const Tensor q = s.act({T, heads, D});
  ops::copy_rows(s.ctx, {.out = r, .x = taken.residual});
  ops::copy_rows(s.ctx, {.out = q.reshape({T, heads * D}), .x = taken.queries});
  finish(s, r, q);
  return r;
}

Tensor Eagle3::forward(const Step& s, std::span<const int32_t> next_ids, Tensor feature,
                       const Newest& newest) const {
  const auto R = static_cast<int64_t>(newest.rows.size());
  const int64_t heads = config_.num_attention_heads, D = config_.head_dim;
  const Tensor r = s.f32({R, config_.hidden_size});
  const ArenaScope scratch(*s.ctx.arena);
  const Taken taken = take_in(s, next_ids, feature);
  if (R == 0) return r;
  Step of_newest = s;
  of_newest.positions = newest.positions;
  of_newest.sequences = newest.sequences;
  of_newest.max_rows = 1;
  const Tensor q = s.act({R, heads, D});
  ops::gather_rows(s.ctx, {.out = r, .x = taken.residual, .rows = newest.rows});
  ops::gather_rows(s.ctx,
                   {.out = q.reshape({R, heads * D}), .x = taken.queries, .rows = newest.rows});
  finish(of_newest, r, q);
  return r;
}

Eagle3::Guess Eagle3::guess(const Step& s, Tensor output) const {
  const Tensor z = norm_.forward(s, output);
  const Tensor logits = s.f32({output.dim(0), config_.draft_vocab_size});
  ops::linear(s.ctx, {.out = logits, .x = z, .weight = &lm_head().weight});
  ops::scale_rows(s.ctx, {.x = logits, .factor = static_cast<float>(config_.logit_scale)});
  s.tap("draft_logits", -1, logits);
  return {.logits = logits, .feature = config_.norm_output ? z : output};
}

}  // namespace eyrie::model
