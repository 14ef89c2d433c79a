// Checkpoints as Quark, ModelOpt, compressed-tensors and DeepSeek lay them out: names, dtypes and
// shapes of every tensor, and what is said when one is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/checkpoint.h"
#include "checkpoint/test_files.h"
#include "formats/recipe.h"

namespace eyrie::checkpoint {
namespace {

using formats::WeightFormat;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kOut = 6, kIn = 64;
const std::string kModule = "language_model.model.layers.1.mlp.experts.0.up_proj";

std::vector<float> values_of(int64_t out, int64_t in) {
  std::vector<float> values;
  for (int64_t i = 0; i < out * in; ++i) {
    values.push_back(0.03f * std::sin(static_cast<float>(i * i % 977)));
  }
  return values;
}

std::string raw(const Buffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.data()), buffer.bytes()};
}

// One layer as a producer stores it, and the same weight made in memory.
struct Layer {
  formats::EncodedMatrix matrix;
  std::vector<RawTensor> tensors;

  void add(const std::string& part, const std::string& dtype, const std::vector<int64_t>& shape,
           const std::string& bytes) {
    tensors.push_back({kModule + part, dtype, shape, bytes});
  }
  RawTensor& find(const std::string& part) {
    for (RawTensor& tensor : tensors) {
      if (tensor.name == kModule + part) return tensor;
    }
    CHECK(false, "no {}", part);
  }
  void remove(const std::string& part) {
    std::erase_if(tensors, [&](const RawTensor& tensor) { return tensor.name == kModule + part; });
  }
};

Layer layer(const WeightFormat& format, const std::string& producer, int64_t out = kOut,
            int64_t in = kIn) {
  Layer result;
  result.matrix =
      formats::encode_matrix(*formats::find_recipe(format, producer), values_of(out, in), out, in);
  const std::string data = raw(result.matrix.data), scales = raw(result.matrix.scales);
  const std::vector<int64_t> shape = {out, format.data_columns(in)};
  const std::vector<int64_t> scale_shape = {format.scale_rows(out), format.scale_columns(in)};
  const bool packed = producer == "compressed-tensors" && &format != &formats::kFp8;
  const bool blocks = &format == &formats::kFp8Block;
  result.add(packed ? ".weight_packed" : ".weight", std::string(dtype_name(format.data_dtype)),
             shape, data);
  result.add(blocks ? ".weight_scale_inv" : ".weight_scale",
             std::string(dtype_name(format.scale_dtype)), scale_shape, scales);
  const float global = result.matrix.weight.global_scale;
  if (&format == &formats::kNvfp4) {
    result.add(packed ? ".weight_global_scale" : ".weight_scale_2", "F32",
               packed ? std::vector<int64_t>{1} : std::vector<int64_t>{},
               bytes_of(std::vector<float>{packed ? 1 / global : global}));
  }
  if (&format == &formats::kInt4G32) {
    result.add(".weight_shape", "I32", {2},
               bytes_of(std::vector<int32_t>{static_cast<int32_t>(out), static_cast<int32_t>(in)}));
  }
  return result;
}

std::vector<float> decoded(const formats::Weight& weight) {
  std::vector<float> values(static_cast<size_t>(weight.out * weight.in));
  for (int64_t row = 0; row < weight.out; ++row) {
    weight.format->decode_row(
        weight, row,
        {&values[static_cast<size_t>(row * weight.in)], static_cast<size_t>(weight.in)});
  }
  return values;
}

Checkpoint open(const TempFolder& folder, const std::vector<RawTensor>& tensors,
                const json& config = json::object()) {
  folder.write("config.json", config.dump());
  folder.write("model.safetensors", safetensors_bytes(tensors));
  return Checkpoint::open(folder.path());
}

std::string weight_error(const Layer& stored, int64_t in = kIn) {
  const TempFolder folder;
  Checkpoint files = open(folder, stored.tensors);
  return error_of([&] { files.weight(kModule, kOut, in); });
}

TEST(ProducersTest, EveryLayoutLoads) {
  for (const formats::Recipe& recipe : formats::all_recipes()) {
    SCOPED_TRACE(fmt::format("{} {}", recipe.format->name, recipe.producer));
    const int64_t out = recipe.format->block_out > 1 ? 200 : kOut;
    const int64_t in = recipe.format->block_out > 1 ? 160 : kIn;
    const Layer stored = layer(*recipe.format, std::string(recipe.producer), out, in);
    const TempFolder folder;
    Checkpoint files = open(folder, stored.tensors);
    EXPECT_EQ(files.format_of(kModule), recipe.format);
    EXPECT_EQ(files.weight_tensors(kModule).size(), stored.tensors.size());
    const formats::Weight weight = files.weight(kModule, out, in);
    ASSERT_EQ(weight.format, recipe.format);
    const std::vector<float> got = decoded(weight), want = decoded(stored.matrix.weight);
    const std::vector<float> original = values_of(out, in);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], std::fabs(want[i]) * 3e-7f) << i;  // 1 / (1 / global)
      ASSERT_NEAR(got[i], original[i], 0.006f) << i;  // the scale the right way round
    }
    EXPECT_EQ(files.stored_weight(kModule).in, in);
  }
}

TEST(ProducersTest, InputScalesOfEveryName) {
  for (const auto& [name, stored] : std::vector<std::pair<std::string, float>>{
           {".input_scale", 0.25f}, {".input_scale_2", 0.25f}, {".input_global_scale", 4.0f}}) {
    Layer nvfp4 = layer(formats::kNvfp4, "modelopt");
    nvfp4.add(name, "F32", {1}, bytes_of(std::vector<float>{stored}));
    const TempFolder folder;
    Checkpoint files = open(folder, nvfp4.tensors);
    EXPECT_EQ(files.weight(kModule, kOut, kIn).input_scale, 0.25f) << name;
  }
}

// Quark keeps DeepSeek's FP8 layers under another name.
TEST(ProducersTest, BlocksUnderQuarksName) {
  Layer blocks = layer(formats::kFp8Block, "deepseek", 200, 160);
  blocks.find(".weight_scale_inv").name = kModule + ".weight_scale";
  const TempFolder folder;
  Checkpoint files = open(folder, blocks.tensors);
  EXPECT_EQ(files.weight(kModule, 200, 160).format, &formats::kFp8Block);
}

TEST(ProducersTest, WrongTensorsAreNamed) {
  Layer nvfp4 = layer(formats::kNvfp4, "modelopt");
  nvfp4.remove(".weight_scale_2");
  EXPECT_THAT(weight_error(nvfp4), AllOf(HasSubstr("model.safetensors"), HasSubstr(kModule),
                                         HasSubstr("no second-level scale")));
  nvfp4.add(".weight_scale_2", "F32", {2}, std::string(8, '\0'));
  EXPECT_THAT(weight_error(nvfp4), HasSubstr("weight_scale_2 is [2] F32, expected one F32"));
  nvfp4.remove(".weight_scale_2");
  nvfp4.add(".weight_scale_2", "F32", {}, bytes_of(std::vector<float>{0}));
  EXPECT_THAT(weight_error(nvfp4), HasSubstr("weight_scale_2 is 0, expected a positive number"));

  nvfp4 = layer(formats::kNvfp4, "modelopt");
  nvfp4.find(".weight_scale").bytes[3] = '\x7f';
  EXPECT_THAT(weight_error(nvfp4), HasSubstr("weight_scale has a scale that is not a number"));
  nvfp4 = layer(formats::kNvfp4, "modelopt");
  nvfp4.find(".weight_scale").shape = {kIn / 16, kOut};
  EXPECT_THAT(weight_error(nvfp4), HasSubstr("weight_scale is [4, 6] F8_E4M3, expected [6, 4]"));
  EXPECT_THAT(weight_error(nvfp4, 72), HasSubstr("its 72 inputs are not a multiple of 16"));
  EXPECT_THAT(weight_error(nvfp4, 65), HasSubstr("its 65 inputs are not a multiple of 16"));

  Layer int4 = layer(formats::kInt4G32, "compressed-tensors");
  int4.find(".weight_shape").bytes = bytes_of(std::vector<int32_t>{kOut, kIn + 32});
  EXPECT_THAT(weight_error(int4), HasSubstr("weight_shape says [6, 96]"));
  int4 = layer(formats::kInt4G32, "compressed-tensors");
  int4.find(".weight_scale").shape = {kOut / 2, 4};  // groups of 16 rows' worth
  EXPECT_THAT(weight_error(int4), HasSubstr("weight_scale is [3, 4] BF16, expected [6, 2]"));
  int4.find(".weight_scale") = {
      kModule + ".weight_scale", "F32", {kOut, 2}, bytes_of(std::vector<float>(2 * kOut, 0.1f))};
  EXPECT_THAT(weight_error(int4), HasSubstr("is not a BF16 number"));
  int4 = layer(formats::kInt4G32, "compressed-tensors");
  int4.add(".weight_zero_point", "I32", {1, 2}, std::string(8, '\0'));
  EXPECT_THAT(weight_error(int4), HasSubstr("has zero points"));

  Layer w4a8 = layer(formats::kInt4G32, "compressed-tensors");
  w4a8.find(".weight_packed").name = kModule + ".weight";
  EXPECT_THAT(weight_error(w4a8), HasSubstr("(Quark's INT4, W4A8)"));

  Layer blocks = layer(formats::kFp8Block, "deepseek", kOut, kIn);
  blocks.find(".weight_scale_inv").shape = {1};
  EXPECT_THAT(weight_error(blocks), IsEmpty());  // one block: [1] is as good as [1, 1]
  blocks.find(".weight_scale_inv") = {
      kModule + ".weight_scale_inv", "F32", {2, 1}, bytes_of(std::vector<float>{1, 1})};
  EXPECT_THAT(weight_error(blocks), HasSubstr("weight_scale_inv is [2, 1] F32, expected [1, 1]"));
}

TEST(ProducersTest, AScaleTheWrongWayRoundIsHeard) {
  Layer nvfp4 = layer(formats::kNvfp4, "modelopt");
  nvfp4.find(".weight_scale_2").bytes = bytes_of(std::vector<float>{3584});
  const TempFolder folder;
  Checkpoint files = open(folder, nvfp4.tensors);
  testing::internal::CaptureStderr();
  files.weight(kModule, kOut, kIn);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("weight_scale_2 is 3584: far below 1 expected"));
}

// ---- configs ------------------------------------------------------------------------------------

const json kNativeKimi = json::parse(R"({"quant_method": "compressed-tensors",
  "format": "pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights":
  {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32}}},
  "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
             "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]})");
const json kNvidiaKimi = json::parse(R"({"quant_method": "modelopt", "quant_algo": "NVFP4",
  "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"},
  "ignore": ["language_model.lm_head", "language_model.model.layers.0.self_attn*",
             "mm_projector*", "vision_tower*"]})");

TEST(ConfigsTest, NativeKimiClaimsOnlyRoutedExperts) {
  const QuantConfig quant =
      QuantConfig::from_config({{"text_config", {{"quantization_config", kNativeKimi}}}});
  EXPECT_EQ(quant.format, &formats::kInt4G32);
  EXPECT_EQ(quant.claimed(kModule), &formats::kInt4G32);
  for (const char* kept :
       {"language_model.lm_head", "language_model.model.layers.3.self_attn.o_proj",
        "language_model.model.layers.0.mlp.gate_proj", "vision_tower.encoder.blocks.0.wo",
        "language_model.model.layers.2.mlp.shared_experts.up_proj", "mm_projector.proj.0"}) {
    EXPECT_EQ(quant.claimed(kept), nullptr) << kept;
  }
  EXPECT_FALSE(quant.kv_cache_fp8);
}

TEST(ConfigsTest, ModelOptInEitherFile) {
  const QuantConfig inside = QuantConfig::from_config({{"quantization_config", kNvidiaKimi}});
  EXPECT_EQ(inside.format, &formats::kNvfp4);
  EXPECT_TRUE(inside.kv_cache_fp8);
  EXPECT_TRUE(inside.exclude.matches("language_model.model.layers.0.self_attn.q_a_proj"));
  const TempFolder folder;
  folder.write("hf_quant_config.json", R"({"producer": {"name": "modelopt"}, "quantization":
    {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}})");
  const QuantConfig beside = QuantConfig::from_config(json::object(), folder.path());
  EXPECT_EQ(beside.method, "modelopt");
  EXPECT_EQ(beside.format, &formats::kNvfp4);
  EXPECT_TRUE(beside.kv_cache_fp8);
  EXPECT_EQ(beside.claimed("language_model.lm_head"), nullptr);
}

TEST(ConfigsTest, OthersByTheirFields) {
  const auto format = [](const char* text) {
    return QuantConfig::from_config({{"quantization_config", json::parse(text)}}).format;
  };
  EXPECT_EQ(format(R"({"quant_method": "fp8", "weight_block_size": [128, 128]})"),
            &formats::kFp8Block);
  EXPECT_EQ(format(R"({"quant_method": "fp8", "activation_scheme": "dynamic"})"), &formats::kFp8);
  EXPECT_EQ(format(R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
    "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float",
    "strategy": "tensor_group", "group_size": 16}}}})"),
            &formats::kNvfp4);
  EXPECT_EQ(format(R"({"quant_method": "compressed-tensors", "format": "float-quantized",
    "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float",
    "strategy": "channel"}}}})"),
            &formats::kFp8);
  EXPECT_EQ(format(R"({"quant_method": "quark", "global_quant_config": {"weight": [
    {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, {"dtype": "int4"}]}})"),
            nullptr);
}

TEST(ConfigsTest, WhatCannotBeReadNamesTheFile) {
  const auto error = [](const char* text) {
    const TempFolder folder;
    folder.write("config.json", json{{"quantization_config", json::parse(text)}}.dump());
    folder.write("model.safetensors", safetensors_bytes({}));
    return error_of([&] { Checkpoint::open(folder.path()); });
  };
  EXPECT_THAT(error(R"({"quant_method": "gptq", "bits": 4})"),
              AllOf(HasSubstr("/config.json: quant_method is \"gptq\""), HasSubstr("modelopt")));
  EXPECT_THAT(error(R"({"quant_method": "fp8", "weight_block_size": [64, 64]})"),
              HasSubstr("weight_block_size is [64,64]; read are blocks of [128, 128]"));
}

TEST(ConfigsTest, FusedNamesCoverTheirParts) {
  const ModuleList list({"model.layers.0.mlp.gate_up_proj", "*layers.1.self_attn.fused_qkv_a_proj",
                         "re:.*qkv_proj$"});
  EXPECT_TRUE(list.matches("language_model.model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(list.matches("language_model.model.layers.0.mlp.down_proj"));
  EXPECT_TRUE(list.matches("language_model.model.layers.1.self_attn.kv_a_proj_with_mqa"));
  EXPECT_TRUE(list.matches("midlayer.self_attn.k_proj"));
}

// `gate_up_proj` ends in `up_proj`, but who writes the part means the part.
TEST(ConfigsTest, APartIsNotItsFusedLayer) {
  for (const auto& [pattern, part, other] : std::vector<std::array<const char*, 3>>{
           {"*up_proj", "mlp.up_proj", "mlp.gate_proj"},
           {"*kv_a_proj_with_mqa", "self_attn.kv_a_proj_with_mqa", "self_attn.q_a_proj"},
           {"re:.*v_proj$", "self_attn.v_proj", "self_attn.q_proj"},
           {"*q_a_proj", "self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"}}) {
    const ModuleList list({pattern});
    EXPECT_TRUE(list.matches(std::string("model.layers.0.") + part)) << pattern;
    EXPECT_FALSE(list.matches(std::string("model.layers.0.") + other)) << pattern;
  }
}

TEST(ConfigsTest, ExclusionsThatMatchNothingAreOneWarning) {
  const TempFolder folder;
  json config = kNvidiaKimi;
  config["ignore"] = {
      "*mlp.experts.0.up_proj", "*self_atn*",    "layers.77",
      "vision_tower*",          "re:.*up_proj$", "language_model.model.layers.1.mlp.experts"};
  testing::internal::CaptureStderr();
  open(folder, layer(formats::kNvfp4, "modelopt").tensors, {{"quantization_config", config}});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("excludes *self_atn* (and 1 others), which matches no tensor"));
  const ModuleList list(config["ignore"].get<std::vector<std::string>>());
  EXPECT_EQ(list.count_matches({kModule, kModule, "a.lm_head"}),
            (std::vector<int64_t>{2, 0, 0, 0, 2, 2}));
  EXPECT_EQ(list.count_matches({kModule, kModule}, 1), (std::vector<int64_t>{1, 0, 0, 0, 1, 1}));
}

// One sentence each, with file and tensor, whatever the format.
TEST(ProducersTest, WrongInputsNameFileAndTensor) {
  for (const formats::Recipe& recipe : formats::all_recipes()) {
    SCOPED_TRACE(fmt::format("{} {}", recipe.format->name, recipe.producer));
    const std::string producer(recipe.producer);
    const std::string part =
        recipe.format == &formats::kFp8Block ? ".weight_scale_inv" : ".weight_scale";
    const auto names_all = [&](const std::string& what) {
      return AllOf(HasSubstr("/model.safetensors"), HasSubstr(kModule), HasSubstr(what));
    };
    Layer wrong = layer(*recipe.format, producer);
    wrong.remove(part);
    EXPECT_THAT(weight_error(wrong), names_all("has no " + kModule + ".weight_scale"));

    wrong = layer(*recipe.format, producer);
    wrong.find(part).dtype = "I8";
    wrong.find(part).shape = {static_cast<int64_t>(wrong.find(part).bytes.size())};
    EXPECT_THAT(weight_error(wrong), names_all("I8"));

    wrong = layer(*recipe.format, producer);
    RawTensor& scale = wrong.find(part);
    scale.bytes += scale.bytes;
    scale.shape[0] *= 2;
    EXPECT_THAT(weight_error(wrong), names_all("expected ["));

    // An inner size that is odd, or that groups do not divide, cannot be this format's.
    wrong = layer(*recipe.format, producer);
    if (recipe.format->bits_per_element < 8) {
      EXPECT_THAT(weight_error(wrong, kIn + 1), names_all("not a multiple of"));
      EXPECT_THAT(weight_error(wrong, kIn + 8), names_all("not a multiple of"));
    }
    EXPECT_THAT(weight_error(wrong, 2 * kIn), names_all("expected ["));
  }
}

// Tensors in one format, a config that names another.
TEST(ConfigsTest, AnotherFormatThanClaimedIsOneWarning) {
  const TempFolder folder;
  testing::internal::CaptureStderr();
  Checkpoint files =
      open(folder, layer(formats::kMxfp4, "quark").tensors, {{"quantization_config", kNvidiaKimi}});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("up_proj is mxfp4"), HasSubstr("says nvfp4 (modelopt NVFP4)")));
  EXPECT_EQ(files.weight(kModule, kOut, kIn).format, &formats::kMxfp4);
}

}  // namespace
}  // namespace eyrie::checkpoint
