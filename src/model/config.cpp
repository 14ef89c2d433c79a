#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/error.h"

namespace eyrie::model {
namespace {

using nlohmann::json;

// Reads keys of one object of config.json; `where` is what messages put before the key.
struct Reader {
  const json& object;
  std::string where;

  bool has(const char* key) const { return object.contains(key) && !object.at(key).is_null(); }

  const json& at(const char* key) const {
    if (!has(key)) fail("config.json: '{}{}' is missing", where, key);
    return object.at(key);
  }

  int64_t integer(const char* key, int64_t least) const {
    const json& value = at(key);
    if (!value.is_number_integer() || value.get<int64_t>() < least) {
      fail("config.json: '{}{}' is {}, expected an integer of at least {}", where, key,
           value.dump(), least);
    }
    return value.get<int64_t>();
  }
  int64_t integer_or(const char* key, int64_t least, int64_t absent) const {
    return has(key) ? integer(key, least) : absent;
  }

  double positive(const char* key) const {
    const json& value = at(key);
    if (!value.is_number() || !(value.get<double>() > 0)) {
      fail("config.json: '{}{}' is {}, expected a number above 0", where, key, value.dump());
    }
    return value.get<double>();
  }
  double number_or(const char* key, double absent) const {
    if (!has(key)) return absent;
    const json& value = at(key);
    if (!value.is_number()) {
      fail("config.json: '{}{}' is {}, expected a number", where, key, value.dump());
    }
    return value.get<double>();
  }

  bool flag(const char* key) const {
    const json& value = at(key);
    if (!value.is_boolean()) {
      fail("config.json: '{}{}' is {}, expected true or false", where, key, value.dump());
    }
    return value.get<bool>();
  }
  bool flag_or(const char* key, bool absent) const { return has(key) ? flag(key) : absent; }

  // A setting of which only one value is implemented; absent means that value.
  void only(const char* key, const json& accepted) const {
    if (has(key) && at(key) != accepted) {
      fail("config.json: '{}{}' is {}, only {} is supported", where, key, at(key).dump(),
           accepted.dump());
    }
  }
};

std::string type_of(const Reader& scaling) {
  for (const char* key : {"rope_type", "type"}) {
    if (!scaling.has(key)) continue;
    if (!scaling.at(key).is_string()) {
      fail("config.json: '{}{}' is {}, expected a string", scaling.where, key,
           scaling.at(key).dump());
    }
    return scaling.at(key).get<std::string>();
  }
  return "default";
}

// rope_theta + rope_scaling, or the merged rope_parameters that transformers 5 writes.
RopeConfig parse_rope(const Reader& text) {
  const bool merged = text.has("rope_parameters");
  const char* key = merged ? "rope_parameters" : "rope_scaling";
  RopeConfig rope;
  if (!merged || text.has("rope_theta")) rope.theta = text.positive("rope_theta");
  if (!text.has(key)) return rope;

  if (!text.at(key).is_object()) {
    fail("config.json: '{}{}' is {}, expected an object", text.where, key, text.at(key).dump());
  }
  const Reader scaling{text.at(key), text.where + key + "."};
  if (merged && scaling.has("rope_theta")) {
    rope.theta = scaling.positive("rope_theta");
  } else if (merged && !text.has("rope_theta")) {
    fail("config.json: '{}rope_theta' is missing", scaling.where);
  }
  const std::string type = type_of(scaling);
  if (type == "default") return rope;
  if (type != "yarn") {
    fail("config.json: '{}type' is \"{}\", only \"yarn\" and \"default\" are supported",
         scaling.where, type);
  }
  rope.yarn = Yarn{
      .factor = scaling.positive("factor"),
      .original_max_position_embeddings = scaling.positive("original_max_position_embeddings"),
      .beta_fast = scaling.positive("beta_fast"),
      .beta_slow = scaling.positive("beta_slow"),
      .mscale = scaling.number_or("mscale", 1.0),
      .mscale_all_dim = scaling.number_or("mscale_all_dim", 0.0),
  };
  return rope;
}

// YaRN's attention temperature for a context stretched by `factor`.
double yarn_g(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

std::vector<int32_t> parse_ids(const Reader& reader, const char* key) {
  std::vector<int32_t> ids;
  if (!reader.has(key)) return ids;
  const json& value = reader.at(key);
  for (const json& id : value.is_array() ? value : json::array({value})) {
    if (!id.is_number_integer()) {
      fail("config.json: '{}{}' is {}, expected token ids", reader.where, key, value.dump());
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::string model_type_of(const Reader& reader) {
  constexpr const char* kKnown = "kimi_k25, kimi_k2, deepseek_v3";
  const json& value = reader.at("model_type");
  const std::string type = value.is_string() ? value.get<std::string>() : value.dump();
  if (type != "kimi_k25" && type != "kimi_k2" && type != "deepseek_v3") {
    fail("config.json: '{}model_type' is \"{}\", known types are {}", reader.where, type, kKnown);
  }
  return type;
}

}  // namespace

std::vector<double> RopeConfig::inv_freq(int64_t dim) const {
  std::vector<double> result(static_cast<size_t>(dim / 2));
  const auto width = static_cast<double>(dim);
  double low = 0, high = 0;
  if (yarn.has_value()) {
    // The (fractional) index of the frequency that turns `rotations` times in the original context.
    const auto index_of = [&](double rotations) {
      const double length = yarn->original_max_position_embeddings;
      return width * std::log(length / (2 * std::numbers::pi * rotations)) / (2 * std::log(theta));
    };
    low = std::max(std::floor(index_of(yarn->beta_fast)), 0.0);
    high = std::min(std::ceil(index_of(yarn->beta_slow)), width - 1);
    if (low == high) high += 0.001;
  }
  for (size_t i = 0; i < result.size(); ++i) {
    const auto idx = static_cast<double>(i);
    const double plain = std::pow(theta, -2 * idx / width);
    const double ramp = yarn.has_value() ? std::clamp((idx - low) / (high - low), 0.0, 1.0) : 0.0;
    result[i] = plain * (1 - ramp) + (yarn.has_value() ? plain / yarn->factor * ramp : 0.0);
  }
  return result;
}

float RopeConfig::magnitude() const {
  if (!yarn.has_value()) return 1.0F;
  return static_cast<float>(yarn_g(yarn->factor, yarn->mscale) /
                            yarn_g(yarn->factor, yarn->mscale_all_dim));
}

float RopeConfig::softmax_factor() const {
  if (!yarn.has_value()) return 1.0F;
  const double g = yarn_g(yarn->factor, yarn->mscale_all_dim);
  return static_cast<float>(g * g);
}

float ModelConfig::softmax_scale() const {
  return static_cast<float>(rope.softmax_factor() / std::sqrt(static_cast<double>(qk_head_dim())));
}

double ModelConfig::num_parameters() const {
  const auto product = [](int64_t a, int64_t b) {
    return static_cast<double>(a) * static_cast<double>(b);
  };
  const int64_t heads = num_attention_heads;
  const double attention = product(hidden_size, q_lora_rank + latent_width() + heads * v_head_dim) +
                           product(q_lora_rank, heads * qk_head_dim()) +
                           product(kv_lora_rank, heads * (qk_nope_head_dim + v_head_dim));
  const double dense = 3 * product(hidden_size, intermediate_size);
  const double experts = 3 * product(hidden_size, moe_intermediate_size) *
                             static_cast<double>(n_routed_experts + n_shared_experts) +
                         product(hidden_size, n_routed_experts);
  const auto num_dense = static_cast<double>(std::min(first_k_dense_replace, num_hidden_layers));
  const auto layers = static_cast<double>(num_hidden_layers);
  return layers * attention + num_dense * dense + (layers - num_dense) * experts +
         (tie_word_embeddings ? 1 : 2) * product(vocab_size, hidden_size);
}

ModelConfig ModelConfig::parse(const json& config) {
  const Reader top{config, ""};
  ModelConfig m;
  m.model_type = model_type_of(top);
  const bool nested = m.model_type == "kimi_k25";
  if (nested && !top.at("text_config").is_object()) {
    fail("config.json: 'text_config' is {}, expected an object", top.at("text_config").dump());
  }
  const Reader text{nested ? config.at("text_config") : config, nested ? "text_config." : ""};
  if (nested) (void)model_type_of(text);

  text.only("hidden_act", "silu");
  text.only("attention_bias", false);
  text.only("scoring_func", "sigmoid");
  text.only("topk_method", "noaux_tc");
  text.only("moe_layer_freq", 1);

  m.vocab_size = text.integer("vocab_size", 1);
  m.hidden_size = text.integer("hidden_size", 1);
  m.num_hidden_layers = text.integer("num_hidden_layers", 1);
  m.max_position_embeddings = text.integer("max_position_embeddings", 1);
  m.rms_norm_eps = text.positive("rms_norm_eps");
  m.tie_word_embeddings = text.flag_or("tie_word_embeddings", false);
  m.logit_scale = top.number_or("logit_scale", 1.0);

  m.num_attention_heads = text.integer("num_attention_heads", 1);
  m.q_lora_rank = text.integer("q_lora_rank", 1);
  m.kv_lora_rank = text.integer("kv_lora_rank", 1);
  m.qk_nope_head_dim = text.integer("qk_nope_head_dim", 1);
  m.qk_rope_head_dim = text.integer("qk_rope_head_dim", 2);
  m.v_head_dim = text.integer("v_head_dim", 1);
  m.rope = parse_rope(text);
  if (m.qk_rope_head_dim % 2 != 0) {
    fail("config.json: '{}qk_rope_head_dim' is {}, expected an even number", text.where,
         m.qk_rope_head_dim);
  }

  m.first_k_dense_replace = text.integer("first_k_dense_replace", 0);
  m.intermediate_size = text.integer("intermediate_size", 1);
  m.moe_intermediate_size = text.integer("moe_intermediate_size", 1);
  m.n_routed_experts = text.integer("n_routed_experts", 1);
  m.n_shared_experts = text.integer("n_shared_experts", 0);
  m.num_experts_per_tok = text.integer("num_experts_per_tok", 1);
  m.n_group = text.integer_or("n_group", 1, 1);
  m.topk_group = text.integer_or("topk_group", 1, 1);
  m.norm_topk_prob = text.flag("norm_topk_prob");
  m.routed_scaling_factor = text.positive("routed_scaling_factor");
  if (m.n_routed_experts % m.n_group != 0 || m.topk_group > m.n_group ||
      m.num_experts_per_tok > m.n_routed_experts / m.n_group * m.topk_group) {
    fail(
        "config.json: {}num_experts_per_tok {} of n_routed_experts {} in n_group {}, topk_group {} "
        "cannot be chosen",
        text.where, m.num_experts_per_tok, m.n_routed_experts, m.n_group, m.topk_group);
  }

  const auto ids_of = [&](const char* key) { return parse_ids(top.has(key) ? top : text, key); };
  if (const auto ids = ids_of("bos_token_id"); !ids.empty()) m.bos_token_id = ids.front();
  if (const auto ids = ids_of("pad_token_id"); !ids.empty()) m.pad_token_id = ids.front();
  m.eos_token_ids = ids_of("eos_token_id");
  return m;
}

namespace {

void check_draft_architecture(const Reader& top) {
  constexpr const char* kLlama = "LlamaForCausalLMEagle3";
  std::string architecture;
  if (top.has("architectures") && top.at("architectures").is_array() &&
      !top.at("architectures").empty() && top.at("architectures")[0].is_string()) {
    architecture = top.at("architectures")[0].get<std::string>();
  } else {
    fail("config.json: 'architectures' is missing, expected [\"{}\"]", kLlama);
  }
  if (architecture == "Eagle3DeepseekV2ForCausalLM") {
    fail("config.json: drafts of type {} (MLA) are not supported yet, only {}", architecture,
         kLlama);
  }
  if (architecture != kLlama) {
    fail("config.json: 'architectures' is \"{}\", known drafts are {}", architecture, kLlama);
  }
}

}  // namespace

Eagle3Config Eagle3Config::parse(const json& config) {
  const Reader top{config, ""};
  check_draft_architecture(top);
  static const json kNoObject = json::object();
  const bool has_eagle = top.has("eagle_config") && top.at("eagle_config").is_object();
  const Reader eagle{has_eagle ? config.at("eagle_config") : kNoObject, "eagle_config."};

  top.only("hidden_act", "silu");
  top.only("attention_bias", false);
  top.only("mlp_bias", false);
  top.only("num_hidden_layers", 1);
  eagle.only("use_aux_hidden_state", true);

  Eagle3Config d;
  d.vocab_size = top.integer("vocab_size", 1);
  d.draft_vocab_size = top.integer_or("draft_vocab_size", 1, d.vocab_size);
  d.hidden_size = top.integer("hidden_size", 1);
  d.target_hidden_size = top.integer_or("target_hidden_size", 1, d.hidden_size);
  d.intermediate_size = top.integer("intermediate_size", 1);
  d.num_attention_heads = top.integer("num_attention_heads", 1);
  d.num_key_value_heads = top.integer_or("num_key_value_heads", 1, d.num_attention_heads);
  d.head_dim = top.integer_or("head_dim", 2, d.hidden_size / d.num_attention_heads);
  if (d.num_attention_heads % d.num_key_value_heads != 0) {
    fail("config.json: 'num_key_value_heads' is {}, expected a divisor of num_attention_heads {}",
         d.num_key_value_heads, d.num_attention_heads);
  }
  if (d.head_dim % 2 != 0 || d.head_dim == 0) {
    fail("config.json: 'head_dim' is {}, expected an even number above 0", d.head_dim);
  }
  d.rms_norm_eps = top.positive("rms_norm_eps");
  d.logit_scale = top.number_or("logit_scale", 1.0);
  d.rope = parse_rope(top);

  const Reader& ids_in = eagle.has("eagle_aux_hidden_state_layer_ids") ? eagle : top;
  for (const int32_t id : parse_ids(ids_in, "eagle_aux_hidden_state_layer_ids")) {
    d.aux_layer_ids.push_back(id);
  }
  const auto num_ids = static_cast<int64_t>(d.aux_layer_ids.size());
  d.num_aux_hidden_states =
      top.integer_or("num_aux_hidden_states", 1, num_ids > 0 ? num_ids : int64_t{3});
  if (num_ids > 0 && num_ids != d.num_aux_hidden_states) {
    fail("config.json: 'num_aux_hidden_states' is {} but eagle_aux_hidden_state_layer_ids lists {}",
         d.num_aux_hidden_states, num_ids);
  }
  const auto either = [&](const char* key) { return eagle.flag_or(key, top.flag_or(key, false)); };
  d.norm_before_residual = either("norm_before_residual");
  d.norm_before_fc = either("norm_before_fc");
  d.fc_norm = either("fc_norm");
  d.norm_output = either("norm_output");
  return d;
}

double Eagle3Config::num_parameters() const {
  const auto hidden = static_cast<double>(hidden_size);
  const auto width = static_cast<double>(head_dim);
  const double q_width = width * static_cast<double>(num_attention_heads);
  const double kv_width = width * static_cast<double>(num_key_value_heads);
  return hidden * static_cast<double>(num_aux_hidden_states * target_hidden_size) +
         2 * hidden * (q_width + 2 * kv_width) + q_width * hidden +
         3 * hidden * static_cast<double>(intermediate_size) +
         hidden * static_cast<double>(vocab_size + draft_vocab_size);
}

void Eagle3Config::check_fits(const ModelConfig& target) const {
  if (target_hidden_size != target.hidden_size) {
    fail("the draft reads hidden states of width {}, but the target's hidden_size is {}",
         target_hidden_size, target.hidden_size);
  }
  if (vocab_size != target.vocab_size) {
    fail("the draft's vocab_size is {}, but the target's is {}", vocab_size, target.vocab_size);
  }
  if (draft_vocab_size > vocab_size) {
    fail("the draft's draft_vocab_size {} is larger than its vocab_size {}", draft_vocab_size,
         vocab_size);
  }
}

std::vector<int64_t> Eagle3Config::aux_layer_inputs(const ModelConfig& target,
                                                    bool has_midlayer_names,
                                                    AuxLayerIds convention) const {
  const int64_t n = target.num_hidden_layers;
  const std::vector<int64_t> customary = {2, n / 2, n - 3};
  std::vector<int64_t> inputs = aux_layer_ids;
  if (inputs.empty()) {
    inputs = customary;
    convention = AuxLayerIds::kInputs;
  }
  if (convention == AuxLayerIds::kGuess) {
    const bool as_inputs = inputs == customary;
    const bool as_outputs = inputs == std::vector<int64_t>{1, n / 2 - 1, n - 4};
    convention = as_outputs || (!as_inputs && has_midlayer_names) ? AuxLayerIds::kOutputs
                                                                  : AuxLayerIds::kInputs;
  }
  if (convention == AuxLayerIds::kOutputs) {
    for (int64_t& layer : inputs) ++layer;
  }
  const bool ascending = std::is_sorted(inputs.begin(), inputs.end()) &&
                         std::adjacent_find(inputs.begin(), inputs.end()) == inputs.end();
  if (!ascending || inputs.front() < 0 || inputs.back() > n) {
    fail(
        "the draft listens to target layers {} (eagle_aux_hidden_state_layer_ids), expected "
        "ascending layers of the target's {}",
        json(aux_layer_ids.empty() ? inputs : aux_layer_ids).dump(), n);
  }
  return inputs;
}

}  // namespace eyrie::model
