#include "quantize/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <map>
#include <thread>

#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/dummy.h"
#include "checkpoint/test_files.h"

namespace eyrie::quantize {
namespace {

namespace fs = std::filesystem;
using checkpoint::bf16_bytes;
using checkpoint::bytes_of;
using checkpoint::Checkpoint;
using checkpoint::error_of;
using checkpoint::RawTensor;
using checkpoint::safetensors_bytes;
using checkpoint::TempFolder;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

const std::string kLayer = "language_model.model.layers.1.";

std::vector<float> random_matrix(const std::string& name, int64_t out, int64_t in) {
  std::vector<float> values(static_cast<size_t>(out * in));
  for (int64_t row = 0; row < out; ++row) {
    checkpoint::dummy_row(name, row,
                          {&values[static_cast<size_t>(row * in)], static_cast<size_t>(in)});
  }
  return values;
}

RawTensor random_tensor(const std::string& name, int64_t out, int64_t in) {
  return {name, "BF16", {out, in}, bf16_bytes(random_matrix(name, out, in))};
}

// A target in two shards with one tensor of every kind.
struct Target {
  TempFolder folder;
  std::string in = folder.file("in"), out = folder.file("out");
  std::vector<RawTensor> first = {
      random_tensor(kLayer + "mlp.experts.0.up_proj.weight", 5, 64),
      random_tensor(kLayer + "mlp.experts.1.down_proj.weight", 64, 96),
      random_tensor(kLayer + "mlp.shared_experts.up_proj.weight", 6, 64),
      random_tensor(kLayer + "mlp.gate.weight", 2, 64),
      {kLayer + "mlp.gate.e_score_correction_bias",
       "F32",
       {2},
       bytes_of(std::vector<float>{0.5f, -1})}};
  std::vector<RawTensor> second = {
      random_tensor(kLayer + "self_attn.o_proj.weight", 64, 33),
      random_tensor("language_model.model.layers.0.mlp.down_proj.weight", 7, 64),
      random_tensor("language_model.lm_head.weight", 9, 64),
      random_tensor("language_model.model.embed_tokens.weight", 9, 64),
      {"language_model.model.norm.weight", "BF16", {3}, bf16_bytes({1, 1, 1})}};

  Target() { write(); }
  void write() const {
    fs::create_directories(in + "/.cache");
    fs::create_directories(in + "/docs");
    json map = json::object();
    for (const RawTensor& tensor : first) map[tensor.name] = "1.safetensors";
    for (const RawTensor& tensor : second) map[tensor.name] = "2.safetensors";
    folder.write("in/1.safetensors", safetensors_bytes(first));
    folder.write("in/2.safetensors", safetensors_bytes(second));
    folder.write("in/model.safetensors.index.json", json{{"weight_map", map}}.dump());
    folder.write("in/config.json",
                 R"({"zebra": 1, "architectures": ["KimiK25ForConditionalGeneration"],
                     "text_config": {"a": 2, "quantization_config": null}})");
    folder.write("in/tiktoken.model", "vocabulary");
    folder.write("in/docs/guide.txt", "guide");
    folder.write("in/README.md", "the BF16 card");
    folder.write("in/.cache/x", "");
    folder.write("in/pytorch_model.bin", "old");
  }
  Options options(const formats::WeightFormat& format) const {
    Options result;
    result.input = in;
    result.output = out;
    result.recipe = formats::find_recipe(format);
    result.num_threads = 2;
    return result;
  }
  std::string error(const Options& options) const {
    return error_of([&] { quantize(options); });
  }
};

// The bytes the format's own encoder makes of a tensor's BF16 values.
void expect_encoded(Checkpoint* files, const RawTensor& original,
                    const formats::WeightFormat& format) {
  const std::string module = original.name.substr(0, original.name.size() - 7);
  const int64_t out = original.shape[0], in = original.shape[1];
  const formats::Weight weight = files->weight(module, out, in);
  ASSERT_EQ(weight.format, &format) << module;
  const auto* source = reinterpret_cast<const bf16*>(original.bytes.data());
  std::vector<float> row(static_cast<size_t>(in));
  std::vector<std::byte> data(static_cast<size_t>(weight.data.dim(1)));
  std::vector<std::byte> scales(static_cast<size_t>(weight.scales.dim(1)) *
                                dtype_bytes(format.scale_dtype));
  for (int64_t r = 0; r < out; ++r) {
    for (int64_t i = 0; i < in; ++i) row[static_cast<size_t>(i)] = to_float(source[r * in + i]);
    format.encode_row(row, data, scales);
    EXPECT_EQ(std::memcmp(formats::row_of<uint8_t>(weight.data, r), data.data(), data.size()), 0);
    EXPECT_EQ(std::memcmp(weight.scales.rows(r, 1).raw(), scales.data(), scales.size()), 0);
  }
}

void expect_same(const Checkpoint& files, const RawTensor& original) {
  const Tensor* tensor = files.find(original.name);
  ASSERT_NE(tensor, nullptr) << original.name;
  EXPECT_EQ(dtype_name(tensor->dtype()), original.dtype);
  ASSERT_EQ(tensor->bytes(), original.bytes.size());
  EXPECT_EQ(std::memcmp(tensor->raw(), original.bytes.data(), tensor->bytes()), 0) << original.name;
}

TEST(QuantizeTest, Mxfp4TakesRoutedExpertsAndKeepsTheRest) {
  const Target target;
  const Report report = quantize(target.options(formats::kMxfp4));
  EXPECT_EQ(report.num_quantized, 2);
  EXPECT_EQ(report.num_kept, 8);
  Checkpoint files = Checkpoint::open(target.out);
  expect_encoded(&files, target.first[0], formats::kMxfp4);
  expect_encoded(&files, target.first[1], formats::kMxfp4);
  for (size_t i = 2; i < target.first.size(); ++i) expect_same(files, target.first[i]);
  for (const RawTensor& tensor : target.second) expect_same(files, tensor);
  EXPECT_EQ(files.total_bytes(), report.bytes_out);
  EXPECT_EQ(files.find(kLayer + "mlp.experts.1.down_proj.weight_scale")->shape_string(),
            "[64, 3] U8");
  EXPECT_EQ(files.files().size(), 2u);
  EXPECT_EQ(files.quant_config().format, &formats::kMxfp4);
}

TEST(QuantizeTest, Fp8TakesEveryMlp) {
  const Target target;
  const Report report = quantize(target.options(formats::kFp8));
  EXPECT_EQ(report.num_quantized, 4);  // two experts, the shared one, the dense layer
  Checkpoint files = Checkpoint::open(target.out);
  expect_encoded(&files, target.second[1], formats::kFp8);
  expect_same(files, target.second[0]);
}

TEST(QuantizeTest, CopiesCompanionsAndLeavesOldWeightsBehind) {
  const Target target;
  quantize(target.options(formats::kMxfp4));
  EXPECT_EQ(read_text_file(target.out + "/tiktoken.model"), "vocabulary");
  EXPECT_EQ(read_text_file(target.out + "/docs/guide.txt"), "guide");
  for (const char* name : {"/README.md", "/.cache", "/pytorch_model.bin"}) {
    EXPECT_FALSE(fs::exists(target.out + name)) << name;
  }
  EXPECT_FALSE(fs::exists(target.out + ".partial"));
}

TEST(QuantizeTest, WritesQuarksConfigAtTopLevel) {
  const Target target;
  quantize(target.options(formats::kMxfp4));
  const std::string text = read_text_file(target.out + "/config.json");
  EXPECT_LT(text.find("zebra"), text.find("architectures"));  // the input's order of keys
  const json config = json::parse(text);
  EXPECT_FALSE(config["text_config"].contains("quantization_config"));
  const json& quant = config["quantization_config"];
  EXPECT_EQ(quant["quant_method"], "quark");
  for (const char* side : {"weight", "input_tensors"}) {
    const json& spec = quant["global_quant_config"][side];
    EXPECT_EQ(spec["dtype"], "fp4");
    EXPECT_EQ(spec["qscheme"], "per_group");
    EXPECT_EQ(spec["group_size"], 32);
    EXPECT_EQ(spec["scale_format"], "e8m0");
    EXPECT_EQ(spec["is_dynamic"], std::string(side) == "input_tensors");
  }
  EXPECT_THAT(quant["exclude"].get<std::vector<std::string>>(),
              IsSupersetOf({kLayer + "self_attn.o_proj", std::string("model.layers.1.mlp.gate"),
                            std::string("language_model.lm_head"), std::string("lm_head")}));
  EXPECT_TRUE(quant["export"]["kv_cache_group"].is_array());
  EXPECT_EQ(quant["export"]["weight_format"], "real_quantized");
  EXPECT_TRUE(quant["layer_quant_config"].is_object());
}

// The published draft's layout: FP8 in the layer, fc and lm_head untouched, a scale per row.
TEST(QuantizeTest, DraftBecomesTheFp8Layout) {
  const TempFolder folder;
  const std::vector<RawTensor> tensors = {
      random_tensor("fc.weight", 8, 24),
      random_tensor("lm_head.weight", 11, 8),
      random_tensor("midlayer.self_attn.q_proj.weight", 6, 16),
      random_tensor("midlayer.mlp.down_proj.weight", 8, 5),
      {"midlayer.hidden_norm.weight", "BF16", {8}, bf16_bytes(std::vector<float>(8, 1))},
      {"d2t", "I64", {11}, bytes_of(std::vector<int64_t>(11, 3))}};
  fs::create_directory(folder.file("in"));
  folder.write("in/config.json", R"({"architectures": ["LlamaForCausalLMEagle3"]})");
  folder.write("in/model.safetensors", safetensors_bytes(tensors));
  Options options;
  options.input = folder.file("in");
  options.output = folder.file("out/");  // a slash at the end changes nothing
  options.recipe = formats::find_recipe(formats::kFp8);
  const Report report = quantize(options);
  EXPECT_EQ(report.num_quantized, 2);

  Checkpoint files = Checkpoint::open(folder.file("out"));
  expect_encoded(&files, tensors[2], formats::kFp8);
  expect_encoded(&files, tensors[3], formats::kFp8);
  for (const size_t i : {0u, 1u, 4u, 5u}) expect_same(files, tensors[i]);
  EXPECT_EQ(files.find("midlayer.self_attn.q_proj.weight")->shape_string(), "[6, 16] F8_E4M3");
  EXPECT_EQ(files.find("midlayer.self_attn.q_proj.weight_scale")->shape_string(), "[6] F32");
  EXPECT_FALSE(fs::exists(folder.file("out/model.safetensors.index.json")));
  const json& quant = files.config()["quantization_config"];
  EXPECT_THAT(quant["exclude"].get<std::vector<std::string>>(),
              ElementsAre("re:.*fc.*", "re:.*lm_head.*"));
  EXPECT_EQ(quant["global_quant_config"]["weight"]["ch_axis"], 0);
  EXPECT_EQ(quant["global_quant_config"]["input_tensors"]["ch_axis"], 1);
}

TEST(QuantizeTest, IncludeWinsOverExclude) {
  const Target target;
  Options options = target.options(formats::kMxfp4);
  options.exclude = {{"*"}};
  options.include = {"*shared_experts*"};
  EXPECT_EQ(quantize(options).num_quantized, 1);
  Checkpoint files = Checkpoint::open(target.out);
  expect_encoded(&files, target.first[2], formats::kMxfp4);
}

TEST(QuantizeTest, SameBytesWithAnyNumberOfThreads) {
  const Target target;
  Options options = target.options(formats::kFp8);
  options.num_threads = 1;
  quantize(options);
  options.num_threads = 4;
  options.output = target.folder.file("other");
  quantize(options);
  for (const char* name : {"/1.safetensors", "/2.safetensors", "/config.json"}) {
    EXPECT_EQ(read_text_file(target.out + name), read_text_file(options.output + name));
  }
}

TEST(QuantizeTest, ReportsProgressUpToTheEnd) {
  const Target target;
  Options options = target.options(formats::kMxfp4);
  std::vector<size_t> done;
  options.on_progress = [&](const Progress& progress) {
    done.push_back(progress.bytes_done);
    EXPECT_EQ(progress.bytes_total, Checkpoint::open(target.in).total_bytes());
  };
  const Report report = quantize(options);
  EXPECT_EQ(done.size(), 10u);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), report.bytes_in);
}

TEST(QuantizeTest, ReplacesAnOldOutputOnlyWhenTold) {
  const Target target;
  quantize(target.options(formats::kMxfp4));
  Options options = target.options(formats::kFp8);
  EXPECT_THAT(target.error(options), HasSubstr("exists; --overwrite replaces it"));
  options.overwrite = true;
  quantize(options);
  EXPECT_EQ(Checkpoint::open(target.out).quant_config().format, &formats::kFp8);
  EXPECT_FALSE(fs::exists(target.out + ".old"));
}

TEST(QuantizeTest, NeverReplacesWhatIsNoCheckpoint) {
  const Target target;
  fs::create_directory(target.out);
  target.folder.write("out/thesis.txt", "years of work");
  Options options = target.options(formats::kMxfp4);
  options.overwrite = true;
  EXPECT_THAT(target.error(options), HasSubstr("is not a checkpoint folder"));
  EXPECT_TRUE(fs::exists(target.out + "/thesis.txt"));
  options.output = target.in;
  EXPECT_THAT(target.error(options), HasSubstr("lies in the input"));
  options.output = target.in + "/quantized";
  EXPECT_THAT(target.error(options), HasSubstr("lies in the input"));
  options.output = target.folder.path();
  EXPECT_THAT(target.error(options), HasSubstr("lies in the output"));
}

TEST(QuantizeTest, AFailureLeavesNoOutput) {
  Target target;
  std::vector<float> values(64 * 3, 0.5f);
  values[64 + 5] = INFINITY;
  target.first[0] = {kLayer + "mlp.experts.0.up_proj.weight", "BF16", {3, 64}, bf16_bytes(values)};
  target.write();
  EXPECT_THAT(target.error(target.options(formats::kMxfp4)),
              AllOf(HasSubstr("mlp.experts.0.up_proj.weight"), HasSubstr("row 1")));
  EXPECT_FALSE(fs::exists(target.out));
  EXPECT_FALSE(fs::exists(target.out + ".partial"));
}

// What a killed run leaves is not called OUT, and the next run starts over from nothing.
// Rows are written by the threads that encode them: what stops one is told by the caller.
TEST(QuantizeTest, AFileThatCannotGrowIsOneError) {
  Target target;
  target.first.push_back(random_tensor(kLayer + "mlp.experts.7.up_proj.weight", 4096, 256));
  target.write();
  Options options = target.options(formats::kMxfp4);
  options.num_threads = 4;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // the write fails instead
  const rlimit small{.rlim_cur = 100'000, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = target.error(options);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, testing::HasSubstr("cannot write"));
  EXPECT_FALSE(fs::exists(target.out));
  EXPECT_FALSE(fs::exists(target.out + ".partial"));
  quantize(options);
}

TEST(QuantizeTest, LeftoversOfAKilledRunAreCleared) {
  const Target target;
  fs::create_directory(target.out + ".partial");
  target.folder.write("out.partial/1.safetensors", "half a shard");
  target.folder.write("out.partial/.eyrie-quantize.json",
                      R"({"work": "another", "shards": {"1.safetensors": 12}})");
  target.folder.write("out.partial/stray.txt", "x");
  quantize(target.options(formats::kMxfp4));
  EXPECT_EQ(Checkpoint::open(target.out).files().size(), 2u);
  EXPECT_FALSE(fs::exists(target.out + "/stray.txt"));
  EXPECT_FALSE(fs::exists(target.out + ".partial"));
}

// ---- every recipe -------------------------------------------------------------------------------

// What a recipe makes of a tensor in memory is what quantize() puts in the file.
TEST(QuantizeTest, EveryRecipeEncodesAndLoads) {
  for (const formats::Recipe& recipe : formats::all_recipes()) {
    SCOPED_TRACE(fmt::format("{} {}", recipe.format->name, recipe.producer));
    const Target target;
    Options options = target.options(*recipe.format);
    options.recipe = &recipe;
    options.exclude = {{"*self_attn*", "*mlp.gate", "*lm_head"}};
    EXPECT_EQ(quantize(options).num_quantized, 4);
    testing::internal::CaptureStderr();
    Checkpoint files = Checkpoint::open(target.out);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");  // config and tensors agree
    EXPECT_EQ(files.quant_config().format, recipe.format);
    for (const RawTensor& original : {target.first[1], target.second[1]}) {
      const int64_t out = original.shape[0], in = original.shape[1];
      std::vector<float> values(static_cast<size_t>(out * in));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = to_float(reinterpret_cast<const bf16*>(original.bytes.data())[i]);
      }
      const formats::EncodedMatrix want =
          formats::encode_matrix(recipe, values, out, in, DType::kBF16);
      const std::string module = original.name.substr(0, original.name.size() - 7);
      const formats::Weight got = files.weight(module, out, in);
      EXPECT_EQ(std::memcmp(got.data.raw(), want.data.data(), got.data.bytes()), 0);
      EXPECT_EQ(std::memcmp(got.scales.raw(), want.scales.data(), got.scales.bytes()), 0);
      EXPECT_FLOAT_EQ(got.global_scale, want.weight.global_scale);
    }
    for (const RawTensor& tensor : {target.first[3], target.first[4], target.second[0]}) {
      expect_same(files, tensor);
    }
  }
}

TEST(QuantizeTest, LayersThatRunAsOneShareAGlobalScale) {
  Target target;
  const std::string expert = kLayer + "mlp.experts.7.";
  target.first.push_back(random_tensor(expert + "up_proj.weight", 3, 32));
  std::vector<float> gate(3 * 32, 0.5f);
  target.second.push_back({expert + "gate_proj.weight", "BF16", {3, 32}, bf16_bytes(gate)});
  target.write();
  quantize(target.options(formats::kNvfp4));
  Checkpoint files = Checkpoint::open(target.out);
  EXPECT_EQ(files.weight(expert + "up_proj", 3, 32).global_scale, 0.5f / 2688);
  EXPECT_EQ(files.weight(expert + "gate_proj", 3, 32).global_scale, 0.5f / 2688);
  EXPECT_NE(files.weight(kLayer + "mlp.experts.1.down_proj", 64, 96).global_scale, 0.5f / 2688);
}

// Native Kimi: experts INT4, the rest BF16. Experts become BF16 first, then what is asked.
TEST(QuantizeTest, TakesNativeInt4) {
  const Target target;
  quantize(target.options(formats::kInt4G32));
  const TempFolder folder;
  Options options = target.options(formats::kMxfp4);
  options.input = target.out;
  options.output = folder.file("mx");
  const Report report = quantize(options);
  EXPECT_EQ(report.num_quantized, 2);
  EXPECT_EQ(report.num_kept, 8);
  Checkpoint int4 = Checkpoint::open(target.out), mx = Checkpoint::open(options.output);
  const std::string module = kLayer + "mlp.experts.1.down_proj";
  const formats::Weight source = int4.weight(module, 64, 96), got = mx.weight(module, 64, 96);
  ASSERT_EQ(source.format, &formats::kInt4G32);
  std::vector<float> values(64 * 96);
  for (int64_t row = 0; row < 64; ++row) {
    source.format->decode_row(source, row, {&values[static_cast<size_t>(row) * 96], 96});
  }
  for (float& x : values) x = to_float(to_bf16(x));
  const formats::EncodedMatrix want =
      formats::encode_matrix(*formats::find_recipe(formats::kMxfp4), values, 64, 96, DType::kBF16);
  EXPECT_EQ(std::memcmp(got.data.raw(), want.data.data(), got.data.bytes()), 0);
  EXPECT_EQ(std::memcmp(got.scales.raw(), want.scales.data(), got.scales.bytes()), 0);
  EXPECT_FALSE(mx.contains(module + ".weight_packed"));
  EXPECT_FALSE(mx.contains(module + ".weight_shape"));
  options.recipe = formats::find_recipe(formats::kInt4G32);
  options.output = folder.file("again");
  EXPECT_THAT(target.error(options), HasSubstr("is int4-g32 already"));
}

TEST(QuantizeTest, KvCacheSchemeIsWrittenWhereItHasAPlace) {
  for (const auto& [format, producer] :
       std::vector<std::pair<const formats::WeightFormat*, const char*>>{
           {&formats::kMxfp4, "quark"},
           {&formats::kNvfp4, "modelopt"},
           {&formats::kInt4G32, "compressed-tensors"}}) {
    const Target target;
    Options options = target.options(*format);
    options.recipe = formats::find_recipe(*format, producer);
    EXPECT_FALSE(quantize(options).num_quantized == 0);
    EXPECT_FALSE(Checkpoint::open(target.out).quant_config().kv_cache_fp8) << producer;
    options.kv_cache_fp8 = true;
    options.overwrite = true;
    quantize(options);
    EXPECT_TRUE(Checkpoint::open(target.out).quant_config().kv_cache_fp8) << producer;
  }
  const Target target;
  Options options = target.options(formats::kFp8Block);
  options.kv_cache_fp8 = true;
  EXPECT_THAT(target.error(options), HasSubstr("has no place in the config of fp8-block"));
  EXPECT_FALSE(fs::exists(target.out + ".partial"));
}

TEST(QuantizeTest, ModelOptsSecondFile) {
  const Target target;
  quantize(target.options(formats::kNvfp4));
  const json beside = json::parse(read_text_file(target.out + "/hf_quant_config.json"));
  EXPECT_EQ(beside["quantization"]["quant_algo"], "NVFP4");
  EXPECT_EQ(beside["quantization"]["group_size"], 16);
  EXPECT_THAT(beside["quantization"]["exclude_modules"].get<std::vector<std::string>>(),
              IsSupersetOf({std::string("language_model.lm_head"), std::string("lm_head")}));
}

// ---- calibration --------------------------------------------------------------------------------

// The first shard's layers, and what entered them.
const std::map<std::string, float> kAmax = {{kLayer + "mlp.experts.0.up_proj", 5.0f},
                                            {kLayer + "mlp.experts.0.gate_proj", 8.0f},
                                            {kLayer + "mlp.experts.1.down_proj", 0.75f}};

TEST(QuantizeTest, CalibratedInputScalesByProducer) {
  const struct {
    const char* producer;
    const char* name;
    std::vector<int64_t> shape;
    bool reciprocal;
  } kCases[] = {{"modelopt", ".input_scale", {}, false},
                {"quark", ".input_scale_2", {}, false},
                {"compressed-tensors", ".input_global_scale", {1}, true}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.producer);
    Target target;
    target.first.push_back(random_tensor(kLayer + "mlp.experts.0.gate_proj.weight", 5, 64));
    target.write();
    Options options = target.options(formats::kNvfp4);
    options.recipe = formats::find_recipe(formats::kNvfp4, c.producer);
    options.input_amax = kAmax;
    EXPECT_EQ(quantize(options).num_quantized, 3);
    testing::internal::CaptureStderr();
    Checkpoint files = Checkpoint::open(target.out);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    // Up runs beside gate, whose 8 is the larger of one and the same input.
    const std::map<std::string, float> want = {{kLayer + "mlp.experts.0.up_proj", 8.0f},
                                               {kLayer + "mlp.experts.0.gate_proj", 8.0f},
                                               {kLayer + "mlp.experts.1.down_proj", 0.75f}};
    int num_scales = 0;
    for (const std::string& name : files.names()) num_scales += name.find(".input_") != name.npos;
    EXPECT_EQ(num_scales, 3);
    for (const auto& [module, amax] : want) {
      const Tensor* scale = files.find(module + c.name);
      ASSERT_NE(scale, nullptr) << module;
      ASSERT_EQ(scale->dtype(), DType::kF32);
      EXPECT_EQ(scale->rank(), static_cast<int>(c.shape.size()));
      float stored = 0;
      std::memcpy(&stored, scale->raw(), sizeof stored);
      EXPECT_FLOAT_EQ(stored, c.reciprocal ? 2688 / amax : amax / 2688);
      EXPECT_FLOAT_EQ(files.stored_weight(module).input_scale, amax / 2688);
    }
    // The weights are what they are without calibration.
    options.input_amax.clear();
    options.output = target.folder.file("plain");
    quantize(options);
    Checkpoint plain = Checkpoint::open(options.output);
    EXPECT_EQ(files.names().size(), plain.names().size() + 3);
    for (const std::string& name : plain.names()) {
      const Tensor &a = *files.find(name), &b = *plain.find(name);
      ASSERT_EQ(a.bytes(), b.bytes());
      EXPECT_EQ(std::memcmp(a.raw(), b.raw(), a.bytes()), 0) << name;
    }
  }
}

// The words of llm-compressor's NVFP4 (W4A4); without calibration its NVFP4A16.
TEST(QuantizeTest, CompressedTensorsSaysWhatTheActivationsAre) {
  const Target target;
  Options options = target.options(formats::kNvfp4);
  options.recipe = formats::find_recipe(formats::kNvfp4, "compressed-tensors");
  options.input_amax = kAmax;
  quantize(options);
  const auto group = [&](const std::string& folder) {
    return json::parse(
        read_text_file(folder + "/config.json"))["quantization_config"]["config_groups"]["group_0"];
  };
  const json activations = group(target.out)["input_activations"];
  EXPECT_EQ(activations["dynamic"], "local");
  EXPECT_EQ(activations["strategy"], "tensor_group");
  EXPECT_EQ(activations["num_bits"], 4);
  EXPECT_EQ(activations["group_size"], 16);
  EXPECT_EQ(group(target.out)["weights"]["dynamic"], false);
  options.input_amax.clear();
  options.output = target.folder.file("plain");
  quantize(options);
  EXPECT_TRUE(group(options.output)["input_activations"].is_null());
}

TEST(QuantizeTest, CalibrationMustSpeakAboutEveryLayer) {
  const Target target;
  Options options = target.options(formats::kNvfp4);
  options.input_amax = {{kLayer + "mlp.experts.0.up_proj", 5.0f}};
  EXPECT_THAT(target.error(options),
              HasSubstr("saw no input of " + kLayer + "mlp.experts.1.down_proj"));
  options.input_amax = kAmax;
  options.input_amax[kLayer + "mlp.experts.0.up_proj"] = NAN;
  EXPECT_THAT(target.error(options), AllOf(HasSubstr("experts.0.up_proj"), HasSubstr("finite")));
  EXPECT_FALSE(fs::exists(target.out));
  EXPECT_EQ(selected_modules(options),
            (std::vector<std::string>{kLayer + "mlp.experts.0.up_proj",
                                      kLayer + "mlp.experts.1.down_proj"}));
}

// ---- interruption -------------------------------------------------------------------------------

size_t bytes_of_all(const std::vector<RawTensor>& tensors) {
  size_t bytes = 0;
  for (const RawTensor& tensor : tensors) bytes += tensor.bytes.size();
  return bytes;
}

bool is_in_journal(const std::string& partial, const std::string& shard) {
  const std::string journal = partial + "/.eyrie-quantize.json";
  return fs::exists(journal) && read_text_file(journal).find(shard) != std::string::npos;
}

// Runs quantize() in a child that is killed once its first shard is finished and a second has
// begun.
void run_and_kill(const Target& target, const Options& options) {
  const size_t bytes_of_first_shard = bytes_of_all(target.first);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Options dying = options;
    dying.on_progress = [&](const Progress& progress) {
      if (progress.bytes_done <= bytes_of_first_shard) return;
      while (!is_in_journal(options.output + ".partial", "1.safetensors")) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ::raise(SIGKILL);
    };
    quantize(dying);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "the child came to its end";
}

TEST(QuantizeTest, AKilledRunIsTakenUpAndGivesTheSameBytes) {
  for (const formats::WeightFormat* format : {&formats::kMxfp4, &formats::kNvfp4}) {
    const Target target;
    Options options = target.options(*format);
    if (format == &formats::kNvfp4) options.input_amax = kAmax;
    run_and_kill(target, options);
    EXPECT_FALSE(fs::exists(target.out));
    const std::string first = target.out + ".partial/1.safetensors";
    ASSERT_TRUE(fs::exists(first));
    const auto written = fs::last_write_time(first);
    const Report report = quantize(options);
    EXPECT_EQ(report.num_resumed_shards, 1);
    EXPECT_EQ(report.num_quantized, 2);
    EXPECT_EQ(report.num_kept, 8);
    EXPECT_EQ(fs::last_write_time(target.out + "/1.safetensors"), written);

    options.output = target.folder.file("whole");
    const Report whole = quantize(options);
    EXPECT_EQ(whole.num_resumed_shards, 0);
    EXPECT_EQ(whole.bytes_out, report.bytes_out);
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(options.output)) {
      names.push_back("/" + entry.path().filename().string());
    }
    for (const std::string& name : names) {
      if (fs::is_directory(options.output + name)) continue;
      EXPECT_EQ(read_text_file(target.out + name), read_text_file(options.output + name)) << name;
    }
    EXPECT_FALSE(fs::exists(target.out + "/.eyrie-quantize.json"));
    EXPECT_FALSE(fs::exists(target.out + ".partial"));
  }
}

TEST(QuantizeTest, OtherWorkStartsOver) {
  const Target target;
  const Options options = target.options(formats::kMxfp4);
  run_and_kill(target, options);
  Options other = options;
  other.recipe = formats::find_recipe(formats::kMxfp4, "compressed-tensors");
  EXPECT_EQ(quantize(other).num_resumed_shards, 0);
  fs::remove_all(target.out);

  run_and_kill(target, options);
  other = options;
  other.include = {"*shared_experts*"};
  EXPECT_EQ(quantize(other).num_resumed_shards, 0);
  fs::remove_all(target.out);

  Options calibrated = target.options(formats::kNvfp4);
  calibrated.input_amax = kAmax;
  run_and_kill(target, calibrated);
  calibrated.input_amax[kLayer + "mlp.experts.1.down_proj"] = 0.76f;
  EXPECT_EQ(quantize(calibrated).num_resumed_shards, 0);
  fs::remove_all(target.out);

  run_and_kill(target, options);
  fs::last_write_time(target.in + "/1.safetensors",
                      fs::last_write_time(target.in + "/1.safetensors") + std::chrono::seconds(1));
  EXPECT_EQ(quantize(options).num_resumed_shards, 0);
}

// A failure after a finished shard keeps it: the disk may have been full.
TEST(QuantizeTest, AFailureKeepsFinishedShards) {
  Target target;
  std::vector<float> values(64 * 7, 0.5f);
  values[3] = NAN;
  target.second[1] = {
      kLayer + "mlp.experts.9.down_proj.weight", "BF16", {7, 64}, bf16_bytes(values)};
  target.write();
  EXPECT_THAT(target.error(target.options(formats::kMxfp4)), HasSubstr("row 0"));
  EXPECT_FALSE(fs::exists(target.out));
  EXPECT_TRUE(fs::exists(target.out + ".partial/1.safetensors"));
}

TEST(QuantizeTest, NamesWhatIsWrong) {
  const Target target;
  Options options = target.options(formats::kMxfp4);
  options.include = {"*self_attn*"};
  EXPECT_THAT(target.error(options),
              AllOf(HasSubstr("self_attn.o_proj has 33 inputs"), HasSubstr("blocks of 32")));
  options.include = {"*experst*"};
  EXPECT_THAT(target.error(options), HasSubstr("--include *experst* matches no linear layer"));
  options = target.options(formats::kMxfp4);
  options.exclude = {{"lm_haed"}};
  EXPECT_THAT(target.error(options), HasSubstr("--exclude lm_haed matches no linear layer"));
  options.exclude = {{"*"}};
  EXPECT_THAT(target.error(options), HasSubstr("nothing to quantize"));
  options = target.options(formats::kMxfp4);
  quantize(options);
  options.input = target.out;
  options.output = target.folder.file("again");
  EXPECT_THAT(target.error(options), HasSubstr("is quantized already"));
  options.input = target.folder.file("none");
  EXPECT_THAT(target.error(options), HasSubstr("not a folder"));
}

}  // namespace
}  // namespace eyrie::quantize
