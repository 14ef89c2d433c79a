#include "model/testing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/rng.h"
#include "formats/recipe.h"
#include "tensor/tensor.h"

namespace eyrie::model::testing {
namespace {

using nlohmann::json;

constexpr int64_t kVocab = 128, kHidden = 64, kLayers = 4, kHeads = 4;
constexpr int64_t kQLora = 48, kLatent = 32, kNope = 16, kRope = 8, kV = 16;
constexpr int64_t kDense = 96, kExpert = 32, kNumExperts = 8;

// Standard normal numbers, a pure function of (seed, tensor, index).
class Normal {
 public:
  explicit Normal(uint64_t seed) : noise_(seed) {}

  TinyTensor tensor(std::vector<int64_t> shape, float gain, float mean = 0.0F) {
    ++lane_;
    TinyTensor result{"BF16", std::move(shape), {}};
    int64_t count = 1;
    for (const int64_t d : result.shape) count *= d;
    for (int64_t i = 0; i < count; ++i) {
      const PhiloxBlock b = noise_.block(static_cast<uint64_t>(i), lane_);
      const double radius = std::sqrt(-2 * std::log(uniform_open(b[0], b[1])));
      const double normal = radius * std::cos(2 * 3.14159265358979 * uniform_open(b[2], b[3]));
      result.values.push_back(to_float(to_bf16(mean + gain * static_cast<float>(normal))));
    }
    return result;
  }
  // A linear layer [out, in] that roughly keeps the size of its input.
  TinyTensor linear(int64_t out, int64_t in, float gain = 1.0F) {
    return tensor({out, in}, gain / std::sqrt(static_cast<float>(in)));
  }
  TinyTensor norm(int64_t size) { return tensor({size}, 0.1F, 1.0F); }

 private:
  NoiseStream noise_;
  uint64_t lane_ = 0;
};

int64_t successor(int64_t token) { return (token * 37 + 11) % kVocab; }

json target_config() {
  return {{"model_type", "kimi_k2"},
          {"vocab_size", kVocab},
          {"hidden_size", kHidden},
          {"num_hidden_layers", kLayers},
          {"max_position_embeddings", 4096},
          {"rms_norm_eps", 1e-5},
          {"num_attention_heads", kHeads},
          {"q_lora_rank", kQLora},
          {"kv_lora_rank", kLatent},
          {"qk_nope_head_dim", kNope},
          {"qk_rope_head_dim", kRope},
          {"v_head_dim", kV},
          {"rope_theta", 50000.0},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", 64.0},
            {"original_max_position_embeddings", 64},
            {"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"mscale", 1.0},
            {"mscale_all_dim", 1.0}}},
          {"intermediate_size", kDense},
          {"moe_intermediate_size", kExpert},
          {"n_routed_experts", kNumExperts},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 2},
          {"first_k_dense_replace", 1},
          {"n_group", 1},
          {"topk_group", 1},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 2.0},
          {"scoring_func", "sigmoid"},
          {"topk_method", "noaux_tc"},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", false},
          {"bos_token_id", 0},
          {"eos_token_id", 1}};
}

void add_mlp(TinyCheckpoint& c, Normal& normal, const std::string& prefix, int64_t intermediate,
             float gain) {
  c.tensors[prefix + ".gate_proj.weight"] = normal.linear(intermediate, kHidden);
  c.tensors[prefix + ".up_proj.weight"] = normal.linear(intermediate, kHidden);
  c.tensors[prefix + ".down_proj.weight"] = normal.linear(kHidden, intermediate, gain);
}

// rows × columns with `diagonal` on the main diagonal over columns [0, rows), noise elsewhere.
TinyTensor near_identity(Normal& normal, int64_t rows, int64_t columns, float diagonal) {
  TinyTensor t = normal.tensor({rows, columns}, 0.02F);
  for (int64_t i = 0; i < std::min(rows, columns); ++i) {
    t.values[static_cast<size_t>(i * columns + i)] = diagonal;
  }
  return t;
}

std::string bytes_of(const Buffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.data()), buffer.bytes()};
}

}  // namespace

TempFolder::TempFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "eyrie-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) fail("cannot make a temporary folder {}", pattern);
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TinyCheckpoint::write(const std::string& folder) const {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << config.dump(2);
  json header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data += tensor.bytes;
    for (const float value : tensor.bytes.empty() ? tensor.values : std::vector<float>{}) {
      const auto append = [&](auto x) {
        data.append(reinterpret_cast<const char*>(&x), sizeof(x));
      };
      if (tensor.dtype == "BF16") {
        append(to_bf16(value).bits);
      } else if (tensor.dtype == "I64") {
        append(static_cast<int64_t>(value));
      } else {
        append(value);
      }
    }
    // What int32 packs has a name of its own in compressed-tensors' files.
    const bool packed = tensor.dtype == "I32" && name.ends_with(".weight");
    header[packed ? name + "_packed" : name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::ofstream file(folder + "/model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << text << data;
}

TinyCheckpoint TinyCheckpoint::encoded(const formats::WeightFormat& format,
                                       const std::vector<std::string>& parts) const {
  TinyCheckpoint result = *this;
  std::map<std::string, TinyTensor> companions;
  for (auto& [name, tensor] : result.tensors) {
    const std::string& key = name;  // clang 14 captures no structured binding
    const bool chosen = std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
      return key.find(part) != std::string::npos;
    });
    if (!chosen || !name.ends_with(".weight") || tensor.shape.size() != 2) continue;
    const int64_t out = tensor.shape[0], in = tensor.shape[1];
    const formats::EncodedMatrix matrix =
        formats::encode_matrix(*formats::find_recipe(format), tensor.values, out, in, DType::kBF16);
    for (int64_t o = 0; o < out; ++o) {
      format.decode_row(matrix.weight, o, {tensor.values.data() + o * in, static_cast<size_t>(in)});
    }
    const std::string scale_name = name + (format.block_out > 1 ? "_scale_inv" : "_scale");
    companions[scale_name] = {std::string(dtype_name(format.scale_dtype)),
                              {format.scale_rows(out), format.scale_columns(in)},
                              {},
                              bytes_of(matrix.scales)};
    if (format.has_global_scale) {
      companions[name + "_scale_2"] = {"F32", {}, {matrix.weight.global_scale}};
    }
    tensor.dtype = dtype_name(format.data_dtype);
    tensor.shape = {out, format.data_columns(in)};
    tensor.bytes = bytes_of(matrix.data);
  }
  result.tensors.merge(companions);
  return result;
}

TinyCheckpoint tiny_target(const TinyOptions& options) {
  TinyCheckpoint c;
  Normal normal(options.seed);
  const float gain = options.layer_gain;
  const std::string root = options.wrapped ? "language_model.model." : "model.";
  const TinyTensor embed = normal.tensor({kVocab, kHidden}, 1.0F);
  TinyTensor head = normal.tensor({kVocab, kHidden}, 0.02F);
  for (int64_t token = 0; token < kVocab; ++token) {
    for (int64_t i = 0; i < kHidden; ++i) {
      float& value = head.values[static_cast<size_t>(successor(token) * kHidden + i)];
      value =
          to_float(to_bf16(value + 0.12F * embed.values[static_cast<size_t>(token * kHidden + i)]));
    }
  }
  c.tensors[root + "embed_tokens.weight"] = embed;
  c.tensors[options.wrapped ? "language_model.lm_head.weight" : "lm_head.weight"] = head;
  c.tensors[root + "norm.weight"] = normal.norm(kHidden);
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = root + "layers." + std::to_string(i) + ".";
    const std::string attn = layer + "self_attn.";
    c.tensors[layer + "input_layernorm.weight"] = normal.norm(kHidden);
    c.tensors[layer + "post_attention_layernorm.weight"] = normal.norm(kHidden);
    c.tensors[attn + "q_a_proj.weight"] = normal.linear(kQLora, kHidden);
    c.tensors[attn + "q_a_layernorm.weight"] = normal.norm(kQLora);
    c.tensors[attn + "q_b_proj.weight"] = normal.linear(kHeads * (kNope + kRope), kQLora);
    c.tensors[attn + "kv_a_proj_with_mqa.weight"] = normal.linear(kLatent + kRope, kHidden);
    c.tensors[attn + "kv_a_layernorm.weight"] = normal.norm(kLatent);
    c.tensors[attn + "kv_b_proj.weight"] = normal.linear(kHeads * (kNope + kV), kLatent);
    c.tensors[attn + "o_proj.weight"] = normal.linear(kHidden, kHeads * kV, gain);
    if (i == 0) {
      add_mlp(c, normal, layer + "mlp", kDense, gain);
      continue;
    }
    c.tensors[layer + "mlp.gate.weight"] = normal.linear(kNumExperts, kHidden);
    TinyTensor bias = normal.tensor({kNumExperts}, 0.1F);
    bias.dtype = "F32";
    c.tensors[layer + "mlp.gate.e_score_correction_bias"] = bias;
    for (int64_t e = 0; e < kNumExperts; ++e) {
      add_mlp(c, normal, layer + "mlp.experts." + std::to_string(e), kExpert, gain);
    }
    add_mlp(c, normal, layer + "mlp.shared_experts", kExpert, gain);
  }
  c.config = target_config();
  if (options.wrapped) {
    c.config = {{"architectures", {"KimiK25ForConditionalGeneration"}},
                {"model_type", "kimi_k25"},
                {"bos_token_id", 0},
                {"eos_token_id", 1},
                {"text_config", target_config()}};
  } else {
    c.config["model_type"] = "deepseek_v3";
  }
  return c;
}

TinyCheckpoint tiny_draft(const TinyCheckpoint& target, const TinyDraftOptions& options) {
  constexpr int64_t kDraftHeads = 4, kHeadDim = 16;
  const int64_t kv_heads = options.num_kv_heads;
  TinyCheckpoint c;
  Normal normal(options.seed);
  c.config = {{"architectures", {"LlamaForCausalLMEagle3"}},
              {"model_type", "llama"},
              {"vocab_size", kVocab},
              {"draft_vocab_size", options.draft_vocab_size},
              {"hidden_size", kHidden},
              {"intermediate_size", kDense},
              {"num_hidden_layers", 1},
              {"num_attention_heads", kDraftHeads},
              {"num_key_value_heads", kv_heads},
              {"head_dim", kHeadDim},
              {"hidden_act", "silu"},
              {"attention_bias", false},
              {"rms_norm_eps", 1e-6},
              {"rope_theta", 10000.0},
              {"rope_scaling", nullptr},
              {"tie_word_embeddings", false},
              {"eagle_config", {{"eagle_aux_hidden_state_layer_ids", {0, 1, 2}}}}};
  if (!options.midlayer_names) {
    c.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = {1, 2, 3};
  }
  c.config.merge_patch(options.extra.is_null() ? json::object() : options.extra);

  // Attention that looks at its own entry (equal query and key) and passes the embedding on.
  const std::string layer = options.midlayer_names ? "midlayer." : "layers.0.";
  const std::string attn = layer + "self_attn.";
  c.tensors["fc.weight"] = normal.linear(kHidden, 3 * kHidden, 0.5F);
  c.tensors[layer + "input_layernorm.weight"] = normal.norm(kHidden);
  c.tensors[layer + "hidden_norm.weight"] = normal.norm(kHidden);
  c.tensors[layer + "post_attention_layernorm.weight"] = normal.norm(kHidden);
  c.tensors[attn + "q_proj.weight"] =
      near_identity(normal, kDraftHeads * kHeadDim, 2 * kHidden, 2.0F);
  c.tensors[attn + "k_proj.weight"] = near_identity(normal, kv_heads * kHeadDim, 2 * kHidden, 2.0F);
  c.tensors[attn + "v_proj.weight"] = near_identity(normal, kv_heads * kHeadDim, 2 * kHidden, 1.0F);
  c.tensors[attn + "o_proj.weight"] = near_identity(normal, kHidden, kDraftHeads * kHeadDim, 3.0F);
  add_mlp(c, normal, layer + "mlp", kDense, 0.3F);
  c.tensors["norm.weight"] = normal.norm(kHidden);
  if (c.config.value("norm_before_fc", false)) {
    c.tensors["input_norm.weight"] = normal.norm(3 * kHidden);
  }
  for (int i = 0; c.config.value("fc_norm", false) && i < 3; ++i) {
    c.tensors["fc_norm." + std::to_string(i) + ".weight"] = normal.norm(kHidden);
  }

  if (options.draft_vocab_size < kVocab) {
    const std::vector<float>& head = target["language_model.lm_head.weight"];
    TinyTensor own{"BF16", {options.draft_vocab_size, kHidden}, {}};
    TinyTensor d2t{"I64", {options.draft_vocab_size}, {}};
    for (int64_t i = 0; i < options.draft_vocab_size; ++i) {
      const int64_t id = 2 * i;
      d2t.values.push_back(static_cast<float>(id - i));
      own.values.insert(own.values.end(), head.begin() + id * kHidden,
                        head.begin() + (id + 1) * kHidden);
    }
    c.tensors["lm_head.weight"] = own;
    c.tensors["d2t"] = d2t;
  }
  return c;
}

}  // namespace eyrie::model::testing
