#include "checkpoint/quant_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/test_files.h"

namespace eyrie::checkpoint {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kOProj = "language_model.model.layers.12.self_attn.o_proj";

TEST(ModuleListTest, MatchesEverySpelling) {
  for (const std::string& spelling :
       {kOProj, std::string("model.layers.12.self_attn.o_proj"),
        std::string("layers.12.self_attn.o_proj"), std::string("o_proj"),
        std::string("language_model.model.layers.12"), std::string("model.layers.12"),
        std::string("*self_attn*"), std::string("*layers.12.self_attn"), std::string("*o_proj"),
        std::string("model.*.self_attn.[opq]_proj"), std::string("re:.*self_attn.*"),
        std::string("re:self_attn"), std::string("re:^model\\.layers\\.12\\.")}) {
    EXPECT_TRUE(ModuleList({spelling}).matches(kOProj)) << spelling;
  }
}

TEST(ModuleListTest, LeavesOthersAlone) {
  for (const std::string pattern : {"*mlp.gate", "fc", "re:.*lm_head.*", "layers.1", "o_pro",
                                    "self_attn", "model.layers.12.self_attn.o_proj2"}) {
    EXPECT_FALSE(ModuleList({pattern}).matches(kOProj)) << pattern;
  }
  EXPECT_FALSE(ModuleList().matches(kOProj));
}

TEST(ModuleListTest, GlobsMatchWholeNamesAsFnmatchDoes) {
  EXPECT_TRUE(glob_matches("*mlp.gate", "model.layers.1.mlp.gate"));
  EXPECT_FALSE(glob_matches("*mlp.gate", "model.layers.1.mlp.gate_proj"));
  EXPECT_FALSE(glob_matches("*mlp.down_proj", "model.layers.1.mlp.experts.7.down_proj"));
  EXPECT_TRUE(glob_matches("*lm_head", "lm_head"));
  EXPECT_TRUE(glob_matches("layers.[0-3].x", "layers.2.x"));
  EXPECT_FALSE(glob_matches("layers.[!0-3].x", "layers.2.x"));
}

// The published draft lists plain names, its card asks for regular expressions: both must do.
TEST(ModuleListTest, DraftSpellingsMeanTheSame) {
  const ModuleList plain({"fc", "lm_head"});
  const ModuleList regex({"re:.*fc.*", "re:.*lm_head.*"});
  for (const ModuleList& list : {plain, regex}) {
    EXPECT_TRUE(list.matches("fc"));
    EXPECT_TRUE(list.matches("model.fc"));
    EXPECT_TRUE(list.matches("lm_head"));
    EXPECT_FALSE(list.matches("midlayer.mlp.gate_proj"));
  }
}

TEST(ModuleListTest, RejectsABrokenRegex) {
  EXPECT_THAT(error_of([] { ModuleList({"re:("}); }), HasSubstr("\"re:(\""));
}

json quark(const json& weight, const json& exclude) {
  return {{"quant_method", "quark"},
          {"global_quant_config", {{"weight", weight}}},
          {"layer_quant_config", {{"*kv_b_proj", json::object()}}},
          {"exclude", exclude}};
}

const json kMxfp4Weight = {
    {"dtype", "fp4"}, {"qscheme", "per_group"}, {"group_size", 32}, {"scale_format", "e8m0"}};

TEST(QuantConfigTest, ReadsQuarkAtTopLevelAndInsideTextConfig) {
  const json fields = quark(kMxfp4Weight, {"*lm_head"});
  for (const json& config : {json{{"quantization_config", fields}},
                             json{{"text_config", {{"quantization_config", fields}}}}}) {
    const QuantConfig quant = QuantConfig::from_config(config);
    EXPECT_EQ(quant.method, "quark");
    EXPECT_EQ(quant.format, &formats::kMxfp4);
    EXPECT_EQ(quant.claimed("language_model.model.layers.1.mlp.experts.0.up_proj"),
              &formats::kMxfp4);
    EXPECT_EQ(quant.claimed("language_model.lm_head"), nullptr);
    EXPECT_EQ(quant.claimed("model.layers.1.self_attn.kv_b_proj"), nullptr);
  }
}

TEST(QuantConfigTest, ReadsQuarkFp8) {
  const QuantConfig quant = QuantConfig::from_config(
      {{"quantization_config",
        quark({{"dtype", "fp8_e4m3"}, {"qscheme", "per_channel"}, {"ch_axis", 0}}, {"fc"})}});
  EXPECT_EQ(quant.format, &formats::kFp8);
}

TEST(QuantConfigTest, UnknownSchemesClaimNothing) {
  const json nvfp4 = json::array({{{"dtype", "fp4"}, {"group_size", 16}}, {{"dtype", "fp8_e4m3"}}});
  EXPECT_EQ(QuantConfig::from_config({{"quantization_config", quark(nvfp4, json::array())}}).format,
            &formats::kNvfp4);
  const QuantConfig other = QuantConfig::from_config(
      {{"quantization_config",
        {{"quant_method", "modelopt"}, {"quant_algo", "INT4_AWQ"}, {"ignore", {"lm_head*"}}}}});
  EXPECT_EQ(other.method, "modelopt");
  EXPECT_EQ(other.format, nullptr);
  EXPECT_TRUE(other.exclude.matches("lm_head"));
}

TEST(QuantConfigTest, AbsentNullAndWrong) {
  EXPECT_EQ(QuantConfig::from_config(json::object()).method, "");
  EXPECT_EQ(QuantConfig::from_config({{"quantization_config", nullptr}}).method, "");
  EXPECT_THAT(error_of([] {
                QuantConfig::from_config({{"quantization_config", 3}});
              }),
              HasSubstr("must be an object"));
  EXPECT_EQ(QuantConfig::from_config({{"quantization_config", {{"quant_method", 3}}}}).method,
            "unnamed");
}

TEST(QuantConfigTest, LinearWeightsByName) {
  EXPECT_TRUE(is_linear_weight_name("model.layers.0.mlp.up_proj.weight"));
  EXPECT_TRUE(is_linear_weight_name("lm_head.weight"));
  EXPECT_FALSE(is_linear_weight_name("model.layers.0.input_layernorm.weight"));
  EXPECT_FALSE(is_linear_weight_name("model.embed_tokens.weight"));
  EXPECT_FALSE(is_linear_weight_name("model.layers.0.mlp.up_proj.bias"));
  EXPECT_FALSE(is_linear_weight_name("weight"));
}

}  // namespace
}  // namespace eyrie::checkpoint
