#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "model/testing.h"

namespace eyrie::model {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json target_json() { return testing::tiny_target().config; }
json draft_json() { return testing::tiny_draft(testing::tiny_target()).config; }

template <typename Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string target_error(const json& patch) {
  json config = target_json();
  config.merge_patch(patch);
  return error_of([&] { (void)ModelConfig::parse(config); });
}

// The published numbers of Kimi-K2.5: theta 50000, factor 64, 4096, beta 32 and 1, 64 rope dims.
RopeConfig kimi_rope() {
  return {.theta = 50000.0, .yarn = Yarn{64.0, 4096.0, 32.0, 1.0, 1.0, 1.0}};
}

TEST(YarnTest, MatchesKimiK25) {
  const std::vector<double> expected = {1,
                                        0.71311108,
                                        0.50852742,
                                        0.36263654,
                                        0.25860014,
                                        0.18441062,
                                        0.13150526,
                                        0.093777859,
                                        0.06687403,
                                        0.043776656,
                                        0.028427959,
                                        0.018282956,
                                        0.01161916,
                                        0.0072741193,
                                        0.0044658487,
                                        0.0026702034,
                                        0.0015372967,
                                        8.3465503e-4,
                                        4.0864599e-4,
                                        1.5837499e-4,
                                        1.8070234e-5,
                                        1.2886084e-5,
                                        9.1892094e-6,
                                        6.5529271e-6,
                                        4.6729649e-6,
                                        3.3323431e-6,
                                        2.3763308e-6,
                                        1.6945878e-6,
                                        1.2084294e-6,
                                        8.6174438e-7,
                                        6.1451947e-7,
                                        4.3822065e-7};
  const std::vector<double> inv_freq = kimi_rope().inv_freq(64);
  ASSERT_EQ(inv_freq.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(inv_freq[i] / expected[i], 1.0, 1e-7) << i;
  }
  EXPECT_FLOAT_EQ(kimi_rope().magnitude(), 1.0F);
  ModelConfig config;
  config.qk_nope_head_dim = 128;
  config.qk_rope_head_dim = 64;
  config.rope = kimi_rope();
  EXPECT_NEAR(config.softmax_scale(), 0.1446796258, 1e-8);
}

TEST(YarnTest, MscaleWithoutAllDimScalesCosAndSinInstead) {
  RopeConfig rope = kimi_rope();
  rope.yarn->mscale_all_dim = 0;
  EXPECT_NEAR(rope.magnitude(), 1.4158883, 1e-6);
  EXPECT_FLOAT_EQ(rope.softmax_factor(), 1.0F);
}

TEST(YarnTest, PlainRopeIsPowersOfTheta) {
  const std::vector<double> inv_freq = RopeConfig{.theta = 10000.0}.inv_freq(4);
  EXPECT_THAT(inv_freq, ElementsAre(1.0, ::testing::DoubleNear(0.01, 1e-15)));
}

TEST(ModelConfigTest, ReadsWrappedAndFlat) {
  const ModelConfig wrapped = ModelConfig::parse(target_json());
  EXPECT_EQ(wrapped.model_type, "kimi_k25");
  EXPECT_EQ(wrapped.hidden_size, 64);
  EXPECT_EQ(wrapped.latent_width(), 40);
  EXPECT_EQ(wrapped.rope.yarn->beta_fast, 32.0);
  EXPECT_THAT(wrapped.eos_token_ids, ElementsAre(1));
  EXPECT_FALSE(wrapped.is_moe(0));
  EXPECT_TRUE(wrapped.is_moe(1));

  const ModelConfig flat = ModelConfig::parse(testing::tiny_target({.wrapped = false}).config);
  EXPECT_EQ(flat.model_type, "deepseek_v3");
  EXPECT_EQ(flat.n_routed_experts, wrapped.n_routed_experts);
}

TEST(ModelConfigTest, ReadsRopeParametersOfNewerWriters) {
  json config = target_json();
  json& text = config["text_config"];
  json merged = text["rope_scaling"];
  merged["rope_theta"] = 1234.0;
  merged["rope_type"] = "yarn";
  text.erase("rope_scaling");
  text.erase("rope_theta");
  text["rope_parameters"] = merged;
  const ModelConfig parsed = ModelConfig::parse(config);
  EXPECT_EQ(parsed.rope.theta, 1234.0);
  EXPECT_TRUE(parsed.rope.yarn.has_value());

  text["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 9.0}};
  EXPECT_FALSE(ModelConfig::parse(config).rope.yarn.has_value());
}

// null in a merge patch removes the key.
TEST(ModelConfigTest, MissingKeysAreNamed) {
  for (const char* key : {"vocab_size",          "hidden_size",
                          "num_hidden_layers",   "max_position_embeddings",
                          "rms_norm_eps",        "num_attention_heads",
                          "q_lora_rank",         "kv_lora_rank",
                          "qk_nope_head_dim",    "qk_rope_head_dim",
                          "v_head_dim",          "rope_theta",
                          "intermediate_size",   "moe_intermediate_size",
                          "n_routed_experts",    "n_shared_experts",
                          "num_experts_per_tok", "first_k_dense_replace",
                          "norm_topk_prob",      "routed_scaling_factor"}) {
    EXPECT_EQ(target_error({{"text_config", {{key, nullptr}}}}),
              fmt::format("config.json: 'text_config.{}' is missing", key));
  }
  EXPECT_EQ(target_error({{"text_config", nullptr}}), "config.json: 'text_config' is missing");
  EXPECT_EQ(target_error({{"model_type", nullptr}}), "config.json: 'model_type' is missing");
}

TEST(ModelConfigTest, SenselessValuesAreNamed) {
  EXPECT_EQ(target_error({{"model_type", "llama"}}),
            "config.json: 'model_type' is \"llama\", known types are kimi_k25, kimi_k2, "
            "deepseek_v3");
  EXPECT_EQ(target_error({{"text_config", {{"hidden_size", 0}}}}),
            "config.json: 'text_config.hidden_size' is 0, expected an integer of at least 1");
  EXPECT_THAT(target_error({{"text_config", {{"hidden_size", "big"}}}}), HasSubstr("\"big\""));
  EXPECT_THAT(target_error({{"text_config", {{"hidden_act", "gelu"}}}}),
              HasSubstr("'text_config.hidden_act' is \"gelu\", only \"silu\" is supported"));
  EXPECT_THAT(target_error({{"text_config", {{"scoring_func", "softmax"}}}}),
              HasSubstr("only \"sigmoid\""));
  EXPECT_THAT(target_error({{"text_config", {{"rope_scaling", {{"type", "linear"}}}}}}),
              HasSubstr("'text_config.rope_scaling.type' is \"linear\""));
  EXPECT_THAT(target_error({{"text_config", {{"rope_scaling", {{"beta_fast", nullptr}}}}}}),
              HasSubstr("'text_config.rope_scaling.beta_fast' is missing"));
  EXPECT_THAT(target_error({{"text_config", {{"num_experts_per_tok", 9}}}}),
              HasSubstr("cannot be chosen"));
  EXPECT_THAT(target_error({{"text_config", {{"norm_topk_prob", 1}}}}),
              HasSubstr("expected true or false"));
  EXPECT_THAT(target_error({{"text_config", {{"qk_rope_head_dim", 7}}}}),
              HasSubstr("expected an even number"));
}

// ---- drafts -------------------------------------------------------------------------------------

TEST(Eagle3ConfigTest, AbsentKeysHaveTheirDocumentedMeaning) {
  json config = draft_json();
  for (const char* key :
       {"draft_vocab_size", "num_key_value_heads", "head_dim", "eagle_config", "rope_scaling"}) {
    config.erase(key);
  }
  const Eagle3Config draft = Eagle3Config::parse(config);
  EXPECT_EQ(draft.draft_vocab_size, draft.vocab_size);
  EXPECT_EQ(draft.num_key_value_heads, draft.num_attention_heads);
  EXPECT_EQ(draft.head_dim, 16);
  EXPECT_EQ(draft.target_hidden_size, draft.hidden_size);
  EXPECT_EQ(draft.num_aux_hidden_states, 3);
  EXPECT_FALSE(draft.norm_before_residual || draft.norm_before_fc || draft.fc_norm ||
               draft.norm_output);
}

std::vector<int64_t> inputs_of(std::vector<int64_t> ids, int64_t num_layers, bool midlayer,
                               AuxLayerIds convention = AuxLayerIds::kGuess) {
  Eagle3Config draft;
  draft.aux_layer_ids = std::move(ids);
  ModelConfig target;
  target.num_hidden_layers = num_layers;
  return draft.aux_layer_inputs(target, midlayer, convention);
}

TEST(Eagle3ConfigTest, BothLayerNumberingsMeanTheSameStates) {
  EXPECT_THAT(inputs_of({1, 29, 57}, 61, true), ElementsAre(2, 30, 58));
  EXPECT_THAT(inputs_of({2, 30, 58}, 61, false), ElementsAre(2, 30, 58));
  // The customary choice is recognised whatever the names; other ids follow the names.
  EXPECT_THAT(inputs_of({2, 30, 58}, 61, true), ElementsAre(2, 30, 58));
  EXPECT_THAT(inputs_of({3, 9, 20}, 61, true), ElementsAre(4, 10, 21));
  EXPECT_THAT(inputs_of({3, 9, 20}, 61, false), ElementsAre(3, 9, 20));
  EXPECT_THAT(inputs_of({2, 30, 58}, 61, true, AuxLayerIds::kOutputs), ElementsAre(3, 31, 59));
  EXPECT_THAT(inputs_of({}, 8, true), ElementsAre(2, 4, 5));
  EXPECT_THAT(inputs_of({0, 4, 7}, 8, true), ElementsAre(1, 5, 8));
}

TEST(Eagle3ConfigTest, LayerIdsOutsideTheTargetAreRefused) {
  for (const std::vector<int64_t>& ids :
       {std::vector<int64_t>{1, 2, 8}, {3, 2, 5}, {2, 2, 5}, {-2, 1, 3}}) {
    EXPECT_THAT(error_of([&] { (void)inputs_of(ids, 8, true); }),
                HasSubstr("eagle_aux_hidden_state_layer_ids"));
  }
}

TEST(Eagle3ConfigTest, ADraftThatDoesNotFitIsRefused) {
  const ModelConfig target = ModelConfig::parse(target_json());
  const auto fit_error = [&](const json& patch) {
    json config = draft_json();
    config.merge_patch(patch);
    return error_of([&] { Eagle3Config::parse(config).check_fits(target); });
  };
  EXPECT_EQ(fit_error(json::object()), "no error");
  EXPECT_EQ(fit_error({{"target_hidden_size", 7168}}),
            "the draft reads hidden states of width 7168, but the target's hidden_size is 64");
  EXPECT_EQ(fit_error({{"vocab_size", 1000}}),
            "the draft's vocab_size is 1000, but the target's is 128");
  EXPECT_THAT(fit_error({{"draft_vocab_size", 129}}), HasSubstr("larger than its vocab_size"));
  EXPECT_THAT(fit_error({{"architectures", {"Eagle3DeepseekV2ForCausalLM"}}}),
              HasSubstr("not supported yet"));
  EXPECT_THAT(fit_error({{"architectures", {"GPT2"}}}), HasSubstr("known drafts are"));
  EXPECT_THAT(fit_error({{"architectures", nullptr}}), HasSubstr("'architectures' is missing"));
  EXPECT_THAT(fit_error({{"num_hidden_layers", 4}}), HasSubstr("only 1 is supported"));
  EXPECT_THAT(fit_error({{"attention_bias", true}}), HasSubstr("'attention_bias'"));
  EXPECT_THAT(fit_error({{"num_key_value_heads", 3}}), HasSubstr("'num_key_value_heads'"));
  EXPECT_THAT(fit_error({{"num_aux_hidden_states", 2}}), HasSubstr("'num_aux_hidden_states'"));
  EXPECT_THAT(fit_error({{"rope_theta", nullptr}}), HasSubstr("'rope_theta' is missing"));
}

// The shapes that come without weights: 1026.4 G parameters, and 3.18 G in the draft, as published.
TEST(ShapesTest, AreKimiK25s) {
  const auto config_of = [](const std::string& name) {
    std::ifstream file("models/" + name + "/config.json");
    return json::parse(file);
  };
  const ModelConfig target = ModelConfig::parse(config_of("kimi-k2.5"));
  EXPECT_NEAR(target.num_parameters() / 1e9, 1026.4, 0.1);
  EXPECT_NEAR(target.softmax_scale(), 0.1446796258, 1e-7);
  for (const char* name : {"kimi-k2.5-eagle3", "kimi-k2.5-eagle3-fp8"}) {
    const Eagle3Config draft = Eagle3Config::parse(config_of(name));
    draft.check_fits(target);
    EXPECT_NEAR(draft.num_parameters() / 1e9, 3.18, 0.01);
    EXPECT_THAT(draft.aux_layer_inputs(target, true), ElementsAre(2, 30, 58));
  }
}

}  // namespace
}  // namespace eyrie::model
