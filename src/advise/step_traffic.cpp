#include "advise/step_traffic.h"

#include <algorithm>
#include <cmath>

namespace eyrie::advise {
namespace {

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Which part of the model a weight belongs to, by the name of its module.
Part ModelTraffic::*part_named(const std::string& module) {
  if (contains(module, ".mlp.experts.")) return &ModelTraffic::routed;
  if (contains(module, ".shared_experts.")) return &ModelTraffic::shared;
  if (module.ends_with(".mlp.gate")) return &ModelTraffic::router;
  if (contains(module, ".mlp.")) return &ModelTraffic::dense;
  if (contains(module, ".self_attn.")) return &ModelTraffic::attention;
  return &ModelTraffic::head;
}

}  // namespace

Part part_of(const ops::PreparedWeight& weight) {
  const auto parameters = static_cast<double>(weight.out) * static_cast<double>(weight.in);
  if (weight.format == nullptr) {
    return {.parameters = parameters, .bytes = static_cast<double>(weight.bytes())};
  }
  const formats::WeightFormat& format = *weight.format;
  const auto scales =
      static_cast<double>(format.scale_rows(weight.out) * format.scale_columns(weight.in));
  return {.parameters = parameters,
          .bytes = parameters * format.bits_per_element / 8 +
                   scales * static_cast<double>(dtype_bytes(format.scale_dtype))};
}

ModelTraffic traffic_of(const model::KimiK25& target, const model::Eagle3* draft) {
  const model::ModelConfig& c = target.config();
  const auto layers = static_cast<double>(c.num_hidden_layers);
  const auto heads = static_cast<double>(c.num_attention_heads);
  ModelTraffic t;
  t.num_layers = c.num_hidden_layers;
  t.num_experts = c.first_k_dense_replace < c.num_hidden_layers ? c.n_routed_experts : 0;
  t.experts_per_token = c.num_experts_per_tok;
  for (const model::NamedWeight& named : target.named_weights()) {
    t.*part_named(named.modules.front()) += part_of(*named.weight);
  }
  // Both halves of kv_b_proj, which the attention keeps head by head in bfloat16.
  const double kv_b = layers * heads * static_cast<double>(c.kv_lora_rank) *
                      static_cast<double>(c.qk_nope_head_dim + c.v_head_dim);
  t.attention += {.parameters = kv_b, .bytes = 2 * kv_b};
  t.score_ops_per_position =
      layers * heads * static_cast<double>(2 * c.kv_lora_rank + c.qk_rope_head_dim);
  if (draft == nullptr) return t;

  for (const model::NamedWeight& named : draft->named_weights()) {
    const std::string& module = named.modules.front();
    const bool is_fc = module == "fc" || module.ends_with(".fc");
    const bool is_head = module.ends_with("lm_head") || module.ends_with("embed_tokens");
    (is_fc ? t.draft_fc : is_head ? t.draft_head : t.draft_layer) += part_of(*named.weight);
  }
  t.draft_score_ops_per_position =
      2.0 * static_cast<double>(draft->config().num_attention_heads * draft->config().head_dim);
  return t;
}

double expected_distinct(int64_t num_experts, int64_t experts_per_token, double num_rows) {
  if (num_experts == 0) return 0;
  const auto all = static_cast<double>(num_experts);
  return all * (1 - std::pow(1 - static_cast<double>(experts_per_token) / all, num_rows));
}

StepRead step_read(const ModelTraffic& m, const StepShape& shape) {
  const auto sequences = static_cast<double>(shape.num_sequences);
  const double drafts = shape.num_drafts;
  const double rows = sequences * (1 + drafts);
  const double cached = sequences * shape.context;
  const bool has_experts = m.num_experts > 0;
  StepRead read;
  read.distinct = expected_distinct(m.num_experts, m.experts_per_token, rows);
  const double share_read = has_experts ? read.distinct / static_cast<double>(m.num_experts) : 0.0;
  const double share_used =
      has_experts ? static_cast<double>(m.experts_per_token) / static_cast<double>(m.num_experts)
                  : 0.0;
  read.parts = {{"attention", m.attention.bytes},
                {"router", m.router.bytes},
                {"dense", m.dense.bytes},
                {"shared", m.shared.bytes},
                {"routed", m.routed.bytes * share_read},
                {"head", m.head.bytes},
                {"KV", cached * m.kv_bytes_per_position}};
  const double of_a_row = m.attention.parameters + m.router.parameters + m.dense.parameters +
                          m.shared.parameters + m.routed.parameters * share_used +
                          m.head.parameters + m.score_ops_per_position * shape.context;
  read.flops = 2 * rows * of_a_row;
  if (drafts <= 0 || m.draft_layer.bytes == 0) return read;

  // The first pass takes in every verified row, the others one row a sequence.
  const double draft_rows = rows + sequences * std::max(0.0, drafts - 1);
  read.parts.emplace_back("draft", m.draft_fc.bytes + drafts * m.draft_layer.bytes);
  read.parts.emplace_back("draft head", drafts * m.draft_head.bytes);
  read.parts.emplace_back("draft KV", drafts * cached * m.draft_kv_bytes_per_position);
  read.flops +=
      2 *
      (rows * m.draft_fc.parameters +
       draft_rows * (m.draft_layer.parameters + m.draft_score_ops_per_position * shape.context) +
       sequences * drafts * m.draft_head.parameters);
  return read;
}

double StepRead::bytes() const {
  double sum = 0;
  for (const auto& [name, bytes] : parts) sum += bytes;
  return sum;
}

double StepRead::seconds(double bytes_per_second, double flops_per_second) const {
  const double computing = flops_per_second > 0 ? flops / flops_per_second : 0.0;
  return std::max(bytes() / bytes_per_second, computing);
}

}  // namespace eyrie::advise
