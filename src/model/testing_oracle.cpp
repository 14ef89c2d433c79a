#include "model/testing_oracle.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tensor/dtype.h"

namespace eyrie::model::testing {
namespace {

using Row = std::vector<double>;

Row linear(const TinyCheckpoint& files, const std::string& name, const Row& x) {
  const TinyTensor& w = files.tensors.at(name + ".weight");
  Row out(static_cast<size_t>(w.shape[0]));
  for (size_t o = 0; o < out.size(); ++o) {
    for (size_t i = 0; i < x.size(); ++i) out[o] += w.values[o * x.size() + i] * x[i];
  }
  return out;
}

Row norm(const TinyCheckpoint& files, const std::string& name, const Row& x, double eps) {
  const double mean =
      std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / static_cast<double>(x.size());
  Row out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    out[i] = x[i] / std::sqrt(mean + eps) * files[name + ".weight"][i];
  }
  return out;
}

void add_to(Row& a, const Row& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
}

Row slice(const Row& x, int64_t begin, int64_t count) {
  return {x.begin() + begin, x.begin() + begin + count};
}

Row as_cached(Row x) {
  for (double& value : x) value = to_float(to_bf16(static_cast<float>(value)));
  return x;
}

Row embedding(const TinyCheckpoint& files, const std::string& name, int32_t id, int64_t hidden) {
  const std::vector<float>& table = files[name + ".weight"];
  return {table.begin() + id * hidden, table.begin() + (id + 1) * hidden};
}

Row mlp(const TinyCheckpoint& files, const std::string& prefix, const Row& x) {
  Row gate = linear(files, prefix + ".gate_proj", x);
  const Row up = linear(files, prefix + ".up_proj", x);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  return linear(files, prefix + ".down_proj", gate);
}

Row rotate(Row x, const RopeConfig& rope, size_t position, bool interleaved) {
  const std::vector<double> inv_freq = rope.inv_freq(static_cast<int64_t>(x.size()));
  const size_t half = x.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    const size_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
    const double angle = static_cast<double>(position) * inv_freq[i];
    const double xa = x[a], xb = x[b];
    x[a] = rope.magnitude() * (xa * std::cos(angle) - xb * std::sin(angle));
    x[b] = rope.magnitude() * (xb * std::cos(angle) + xa * std::sin(angle));
  }
  return x;
}

double dot(const Row& a, const Row& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

Row attend(const Row& q, const Rows& keys, const Rows& values, double scale) {
  Row scores;
  for (const Row& key : keys) scores.push_back(scale * dot(q, key));
  const double largest = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (double& score : scores) total += score = std::exp(score - largest);
  Row out(values[0].size());
  for (size_t j = 0; j < values.size(); ++j) {
    for (size_t i = 0; i < out.size(); ++i) out[i] += scores[j] / total * values[j][i];
  }
  return out;
}

Row concat(Row a, const Row& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Rows mla(const TinyCheckpoint& files, const ModelConfig& c, const std::string& prefix,
         const Rows& x) {
  const int64_t nope = c.qk_nope_head_dim, rope = c.qk_rope_head_dim, v = c.v_head_dim;
  const auto heads = static_cast<size_t>(c.num_attention_heads);
  std::vector<Rows> keys(heads), values(heads);
  Rows out;
  for (size_t t = 0; t < x.size(); ++t) {
    const Row a = linear(files, prefix + "kv_a_proj_with_mqa", x[t]);
    const Row c_kv = as_cached(
        norm(files, prefix + "kv_a_layernorm", slice(a, 0, c.kv_lora_rank), c.rms_norm_eps));
    const Row k_pe = as_cached(rotate(slice(a, c.kv_lora_rank, rope), c.rope, t, true));
    const Row kv = linear(files, prefix + "kv_b_proj", c_kv);
    const Row q = linear(files, prefix + "q_b_proj",
                         norm(files, prefix + "q_a_layernorm",
                              linear(files, prefix + "q_a_proj", x[t]), c.rms_norm_eps));
    Row all_heads;
    for (size_t h = 0; h < heads; ++h) {
      const auto kv_begin = static_cast<int64_t>(h) * (nope + v);
      keys[h].push_back(concat(slice(kv, kv_begin, nope), k_pe));
      values[h].push_back(slice(kv, kv_begin + nope, v));
      const auto q_begin = static_cast<int64_t>(h) * (nope + rope);
      const Row q_pe = rotate(slice(q, q_begin + nope, rope), c.rope, t, true);
      all_heads = concat(all_heads, attend(concat(slice(q, q_begin, nope), q_pe), keys[h],
                                           values[h], c.softmax_scale()));
    }
    out.push_back(linear(files, prefix + "o_proj", all_heads));
  }
  return out;
}

Row moe(const TinyCheckpoint& files, const ModelConfig& c, const std::string& prefix,
        const Row& x) {
  Row scores = linear(files, prefix + ".gate", x);
  for (double& score : scores) score = 1 / (1 + std::exp(-score));
  const std::vector<float>& bias = files[prefix + ".gate.e_score_correction_bias"];
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] + bias[a] > scores[b] + bias[b]; });
  order.resize(static_cast<size_t>(c.num_experts_per_tok));
  double total = 1e-20;
  for (const size_t e : order) total += scores[e];
  Row out = mlp(files, prefix + ".shared_experts", x);
  for (const size_t e : order) {
    Row y = mlp(files, prefix + ".experts." + std::to_string(e), x);
    for (double& value : y) value *= scores[e] / total * c.routed_scaling_factor;
    add_to(out, y);
  }
  return out;
}

}  // namespace

TargetOutput oracle_target(const TinyCheckpoint& files, const ModelConfig& c,
                           const std::vector<int32_t>& ids) {
  const bool wrapped = files.tensors.contains("language_model.lm_head.weight");
  const std::string root = wrapped ? "language_model.model." : "model.";
  const std::string head = wrapped ? "language_model.lm_head" : "lm_head";
  Rows h;
  for (const int32_t id : ids) {
    h.push_back(embedding(files, root + "embed_tokens", id, c.hidden_size));
  }
  TargetOutput result;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    result.layer_inputs.push_back(h);
    const std::string layer = root + "layers." + std::to_string(i) + ".";
    Rows x;
    for (const Row& row : h) {
      x.push_back(norm(files, layer + "input_layernorm", row, c.rms_norm_eps));
    }
    const Rows attention = mla(files, c, layer + "self_attn.", x);
    for (size_t t = 0; t < h.size(); ++t) {
      add_to(h[t], attention[t]);
      const Row y = norm(files, layer + "post_attention_layernorm", h[t], c.rms_norm_eps);
      add_to(h[t], c.is_moe(i) ? moe(files, c, layer + "mlp", y) : mlp(files, layer + "mlp", y));
    }
  }
  result.layer_inputs.push_back(h);
  for (const Row& row : h) {
    result.logits.push_back(linear(files, head, norm(files, root + "norm", row, c.rms_norm_eps)));
  }
  return result;
}

DraftOutput oracle_draft(const TinyCheckpoint& files, const TinyCheckpoint& target,
                         const Eagle3Config& c, const Rows& aux,
                         const std::vector<int32_t>& next_ids) {
  const std::string layer =
      files.tensors.contains("midlayer.hidden_norm.weight") ? "midlayer." : "layers.0.";
  const int64_t D = c.head_dim;
  const auto heads = static_cast<size_t>(c.num_attention_heads);
  const size_t group = heads / static_cast<size_t>(c.num_key_value_heads);
  std::vector<Rows> keys(heads), values(heads);
  DraftOutput result;
  Row feature;
  for (size_t t = 0; t < next_ids.size(); ++t) {
    if (t < aux.size()) {
      Row fused = aux[t];
      if (c.norm_before_fc) fused = norm(files, "input_norm", fused, c.rms_norm_eps);
      for (int64_t i = 0; c.fc_norm && i < c.num_aux_hidden_states; ++i) {
        const int64_t width = c.target_hidden_size;
        const Row part = norm(files, "fc_norm." + std::to_string(i), slice(fused, i * width, width),
                              c.rms_norm_eps);
        std::copy(part.begin(), part.end(), fused.begin() + i * width);
      }
      feature = linear(files, "fc", fused);
    }
    const Row e =
        embedding(target, "language_model.model.embed_tokens", next_ids[t], c.hidden_size);
    const Row g = norm(files, layer + "hidden_norm", feature, c.rms_norm_eps);
    Row y = c.norm_before_residual ? g : feature;
    const Row u = concat(norm(files, layer + "input_layernorm", e, c.rms_norm_eps), g);
    const Row q = linear(files, layer + "self_attn.q_proj", u);
    const Row k = linear(files, layer + "self_attn.k_proj", u);
    const Row v = linear(files, layer + "self_attn.v_proj", u);
    Row all_heads;
    for (size_t h = 0; h < heads; ++h) {
      const auto kv_begin = static_cast<int64_t>(h / group) * D;
      keys[h].push_back(as_cached(rotate(slice(k, kv_begin, D), c.rope, t, false)));
      values[h].push_back(as_cached(slice(v, kv_begin, D)));
      const Row rotated = rotate(slice(q, static_cast<int64_t>(h) * D, D), c.rope, t, false);
      all_heads = concat(
          all_heads, attend(rotated, keys[h], values[h], 1 / std::sqrt(static_cast<double>(D))));
    }
    add_to(y, linear(files, layer + "self_attn.o_proj", all_heads));
    add_to(y, mlp(files, layer + "mlp",
                  norm(files, layer + "post_attention_layernorm", y, c.rms_norm_eps)));
    const Row z = norm(files, "norm", y, c.rms_norm_eps);
    const bool own_head = files.tensors.contains("lm_head.weight");
    result.logits.push_back(own_head ? linear(files, "lm_head", z)
                                     : linear(target, "language_model.lm_head", z));
    result.outputs.push_back(y);
    feature = c.norm_output ? z : y;
  }
  return result;
}

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double error = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(error / size);
}

}  // namespace eyrie::model::testing
