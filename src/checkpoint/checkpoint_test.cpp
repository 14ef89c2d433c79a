#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "checkpoint/test_files.h"

namespace eyrie::checkpoint {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kOne = "model.safetensors";
const std::string kIndex = "model.safetensors.index.json";

RawTensor bf16_tensor(const std::string& name, const std::vector<int64_t>& shape, float first = 0) {
  size_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<size_t>(dim);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
  return {name, "BF16", shape, bf16_bytes(values)};
}

void write_checkpoint(const TempFolder& folder, const std::vector<RawTensor>& tensors,
                      const json& config = json::object()) {
  folder.write("config.json", config.dump());
  folder.write(kOne, safetensors_bytes(tensors));
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

TEST(CheckpointTest, GivesTensorsWithTheExpectedShape) {
  const TempFolder folder;
  write_checkpoint(folder, {bf16_tensor("norm.weight", {4}), bf16_tensor("w", {2, 3})},
                   {{"model_type", "x"}});
  Checkpoint files = Checkpoint::open(folder.path());
  EXPECT_EQ(files.config()["model_type"], "x");
  EXPECT_THAT(files.names(), ElementsAre("norm.weight", "w"));
  EXPECT_EQ(files.total_bytes(), 20u);
  EXPECT_EQ(to_float(files.tensor("w", {2, 3}).data<bf16>()[5]), 5);
  const Tensor norm = files.tensor_f32("norm.weight", {4});
  EXPECT_EQ(norm.data<float>()[3], 3);
  EXPECT_THAT(error_of([&] {
                files.tensor("w", {3, 2});
              }),
              AllOf(HasSubstr(kOne), HasSubstr("tensor w is [2, 3] BF16, expected [3, 2]")));
  EXPECT_THAT(error_of([&] { files.tensor("absent", {1}); }), HasSubstr("absent is missing"));
}

TEST(CheckpointTest, StaysValidWhenMoved) {
  const TempFolder folder;
  write_checkpoint(folder, {bf16_tensor("norm.weight", {4})});
  Checkpoint files = Checkpoint::open(folder.path());
  const Tensor norm = files.tensor_f32("norm.weight", {4});
  const Checkpoint moved = std::move(files);
  EXPECT_EQ(norm.data<float>()[2], 2);
  EXPECT_TRUE(moved.contains("norm.weight"));
}

TEST(CheckpointTest, ConvertsFloatsOnRequestOnly) {
  const TempFolder folder;
  write_checkpoint(folder, {{"h", "F16", {2}, bytes_of(std::vector<uint16_t>{0x3c00, 0xc000})},
                            {"i", "I32", {1}, bytes_of(std::vector<int32_t>{1})}});
  Checkpoint files = Checkpoint::open(folder.path());
  EXPECT_EQ(files.tensor_f32("h", {2}).data<float>()[1], -2);
  EXPECT_THAT(error_of([&] { files.tensor_f32("i", {1}); }),
              HasSubstr("i is [1] I32, expected F32"));
}

// The format does not align tensors: one odd byte in front of a float must not matter.
TEST(CheckpointTest, AlignsWhatTheFileDoesNot) {
  const TempFolder folder;
  folder.write("config.json", "{}");
  std::vector<RawTensor> tensors = {
      {"a", "U8", {1}, "x"}, {"b.weight", "F32", {1, 2}, bytes_of(std::vector<float>{3, 4})}};
  folder.write(kOne, safetensors_bytes(tensors));
  Checkpoint files = Checkpoint::open(folder.path());
  EXPECT_EQ(files.tensor("b.weight", {1, 2}).data<float>()[1], 4);
  EXPECT_THAT(decoded(files.weight("b", 1, 2)), ElementsAre(3, 4));
}

TEST(CheckpointTest, MergesOverrides) {
  const TempFolder folder;
  write_checkpoint(folder, {}, {{"a", 1}, {"text_config", {{"b", 2}, {"c", 3}}}});
  const Checkpoint files = Checkpoint::open(
      folder.path(), json::parse(R"({"text_config": {"b": 5, "c": null}, "d": [1]})"));
  EXPECT_EQ(files.config(), json::parse(R"({"a": 1, "text_config": {"b": 5}, "d": [1]})"));
  EXPECT_THAT(error_of([&] { Checkpoint::open(folder.path(), json::array({1})); }),
              HasSubstr("must be a JSON object"));
}

TEST(CheckpointTest, NamesWhatTheFolderLacks) {
  const TempFolder folder;
  EXPECT_THAT(error_of([&] { Checkpoint::open(folder.file("none")); }), HasSubstr("not a folder"));
  EXPECT_THAT(error_of([&] { Checkpoint::open(folder.path()); }),
              HasSubstr("config.json is missing"));
  folder.write("config.json", "{,}");
  EXPECT_THAT(error_of([&] { Checkpoint::open(folder.path()); }),
              HasSubstr("config.json is not valid JSON (at byte 2"));
  folder.write("config.json", "[]");
  EXPECT_THAT(error_of([&] { Checkpoint::open(folder.path()); }), HasSubstr("JSON object"));
  folder.write("config.json", "{}");
  folder.write("pytorch_model.bin", "");
  EXPECT_THAT(error_of([&] { Checkpoint::open(folder.path()); }),
              HasSubstr("neither model.safetensors nor"));
}

// ---- shards -------------------------------------------------------------------------------------

struct Shards {
  TempFolder folder;
  json index = {{"weight_map", {{"a", "1.safetensors"}, {"b", "2.safetensors"}}}};

  Shards() {
    folder.write("config.json", "{}");
    folder.write("1.safetensors", safetensors_bytes({bf16_tensor("a", {2}, 10)}));
    folder.write("2.safetensors", safetensors_bytes({bf16_tensor("b", {2}, 20)}));
  }
  Checkpoint open() const {
    folder.write(kIndex, index.dump());
    return Checkpoint::open(folder.path());
  }
  std::string error() const {
    return error_of([&] { open(); });
  }
};

TEST(ShardsTest, OpensAllOfThem) {
  Checkpoint files = Shards().open();
  EXPECT_EQ(files.files().size(), 2u);
  EXPECT_EQ(to_float(files.tensor("b", {2}).data<bf16>()[1]), 21);
}

TEST(ShardsTest, NamesAnAbsentShard) {
  Shards shards;
  shards.index["weight_map"]["c"] = "3.safetensors";
  EXPECT_THAT(shards.error(), AllOf(HasSubstr(kIndex), HasSubstr("shard 3.safetensors")));
}

TEST(ShardsTest, NamesATensorThatIsNotInItsShard) {
  Shards shards;
  shards.index["weight_map"]["c"] = "2.safetensors";
  EXPECT_THAT(shards.error(), HasSubstr("places tensor c in 2.safetensors"));
  shards.index["weight_map"] = {{"a", "2.safetensors"}, {"b", "1.safetensors"}};
  EXPECT_THAT(shards.error(), HasSubstr("places tensor a in 2.safetensors"));
}

TEST(ShardsTest, NamesATensorThatComesTwice) {
  Shards shards;
  shards.folder.write("2.safetensors",
                      safetensors_bytes({bf16_tensor("a", {2}), bf16_tensor("b", {2})}));
  EXPECT_THAT(shards.error(), AllOf(HasSubstr("tensor a is in both"), HasSubstr("1.safetensors"),
                                    HasSubstr("2.safetensors")));
}

TEST(ShardsTest, RejectsPathsAndWrongIndexes) {
  Shards shards;
  for (const std::string name : {"../1.safetensors", "/etc/passwd", "", ".."}) {
    shards.index["weight_map"]["a"] = name;
    EXPECT_THAT(shards.error(), HasSubstr("a file name in the same folder is expected")) << name;
  }
  shards.index["weight_map"]["a"] = 1;
  EXPECT_THAT(shards.error(), HasSubstr("tensor a must be a string"));
  shards.index = json::array();
  EXPECT_THAT(shards.error(), HasSubstr("needs \"weight_map\""));
  shards.folder.write(kIndex, R"({"weight_map": {"a": "1.safetensors", "a": "2.safetensors"}})");
  EXPECT_THAT(error_of([&] { Checkpoint::open(shards.folder.path()); }),
              HasSubstr("lists \"a\" twice"));
}

// ---- weights ------------------------------------------------------------------------------------

// Two rows of 32 with E2M1 codes 0..15 twice, scales 2^0 and 2^1.
const std::string kCodes = "\x10\x32\x54\x76\x98\xba\xdc\xfe";
const RawTensor kMxData = {"e.up_proj.weight", "U8", {2, 16}, kCodes + kCodes + kCodes + kCodes};
const RawTensor kMxScale = {"e.up_proj.weight_scale", "U8", {2, 1}, "\x7f\x80"};

TEST(WeightsTest, ReadsMxfp4) {
  const TempFolder folder;
  write_checkpoint(folder, {kMxData, kMxScale});
  Checkpoint files = Checkpoint::open(folder.path());
  const formats::Weight weight = files.weight("e.up_proj", 2, 32);
  EXPECT_EQ(weight.format, &formats::kMxfp4);
  const std::vector<float> values = decoded(weight);
  EXPECT_EQ(values[1], 0.5f);
  EXPECT_EQ(values[7], 6);
  EXPECT_EQ(values[15], -6);
  EXPECT_EQ(values[32 + 7], 12);
  EXPECT_EQ(files.stored_weight("e.up_proj").in, 32);
}

// What lies in a file is read again when it is touched; what was made up is gone from memory.
TEST(WeightsTest, DoneWithAWeight) {
  const TempFolder folder;
  const std::string codes(64 * 4096, '\x21');
  write_checkpoint(folder,
                   {{"e.up_proj.weight", "U8", {64, 4096}, codes},
                    {"e.up_proj.weight_scale", "U8", {64, 256}, std::string(64 * 256, 127)}});
  Checkpoint files = Checkpoint::open(folder.path());
  const formats::Weight weight = files.weight("e.up_proj", 64, 8192);
  const std::vector<float> before = decoded(weight);
  files.done_with(weight);
  EXPECT_EQ(decoded(weight), before);
  files.done_with({});

  Checkpoint dummy = Checkpoint::open(folder.path(), {}, true);
  const formats::Weight a = dummy.weight("a", 64, 33), b = dummy.weight("b", 64, 33);
  const std::vector<float> values = decoded(b);
  const size_t bytes = dummy.total_bytes();
  dummy.done_with(a);
  EXPECT_EQ(dummy.total_bytes(), bytes);
  EXPECT_EQ(decoded(b), values);
  EXPECT_EQ(decoded(dummy.weight("b", 64, 33)), values);
}

TEST(WeightsTest, ReadsFp8WithScalesInEveryShape) {
  const std::vector<float> scales = {0.5f, 2};
  const std::vector<std::pair<RawTensor, std::vector<float>>> cases = {
      {{"q.weight_scale", "F32", {2}, bytes_of(scales)}, {0.5f, 2}},
      {{"q.weight_scale", "F32", {2, 1}, bytes_of(scales)}, {0.5f, 2}},
      {{"q.weight_scale", "BF16", {2, 1}, bf16_bytes(scales)}, {0.5f, 2}},
      {{"q.weight_scale", "F16", {2}, bytes_of(std::vector<uint16_t>{0x3800, 0x4000})}, {0.5f, 2}},
      {{"q.weight_scale", "F32", {}, bytes_of(std::vector<float>{4})}, {4, 4}},
      {{"q.weight_scale", "F32", {1}, bytes_of(std::vector<float>{4})}, {4, 4}}};
  for (const auto& [scale, expected] : cases) {
    const TempFolder folder;
    write_checkpoint(folder, {{"q.weight", "F8_E4M3", {2, 3}, "\x38\x40\xb8\x38\x40\xb8"}, scale});
    Checkpoint files = Checkpoint::open(folder.path());
    const formats::Weight weight = files.weight("q", 2, 3);
    EXPECT_EQ(weight.format, &formats::kFp8);
    EXPECT_EQ(weight.scales.shape_string(), "[2, 1] F32");
    EXPECT_THAT(decoded(weight), ElementsAre(expected[0], 2 * expected[0], -expected[0],
                                             expected[1], 2 * expected[1], -expected[1]));
  }
}

std::string weight_error(const std::vector<RawTensor>& tensors, int64_t out, int64_t in) {
  const TempFolder folder;
  write_checkpoint(folder, tensors);
  Checkpoint files = Checkpoint::open(folder.path());
  return error_of([&] { files.weight("e.up_proj", out, in); });
}

TEST(WeightsTest, NamesWhatIsWrong) {
  const RawTensor fp8 = {"e.up_proj.weight", "F8_E4M3", {2, 2}, "abcd"};
  EXPECT_THAT(weight_error({}, 2, 32), HasSubstr("tensor e.up_proj.weight is missing"));
  EXPECT_THAT(weight_error({kMxData}, 2, 32), HasSubstr("has no e.up_proj.weight_scale"));
  EXPECT_THAT(weight_error({kMxData, kMxScale}, 2, 64),
              HasSubstr("is [2, 16] U8, expected [2, 32] for a weight [2, 64] in mxfp4"));
  EXPECT_THAT(weight_error({kMxData, kMxScale}, 2, 33), HasSubstr("not a multiple of 32"));
  EXPECT_THAT(weight_error({kMxData, {"e.up_proj.weight_scale", "U8", {2}, "ab"}}, 2, 32),
              testing::IsEmpty());  // one block a row: [out] is as good as [out, 1]
  EXPECT_THAT(weight_error({kMxData, {"e.up_proj.weight_scale", "U8", {1, 2}, "ab"}}, 2, 32),
              HasSubstr("weight_scale is [1, 2] U8, expected [2, 1]"));
  EXPECT_THAT(weight_error({kMxData, {"e.up_proj.weight_scale", "U8", {2, 1}, "a\xff"}}, 2, 32),
              HasSubstr("e.up_proj.weight_scale has a scale that is not a number"));
  EXPECT_THAT(weight_error({kMxData, {"e.up_proj.weight_scale", "F8_E4M3", {2, 2}, "abcd"}}, 2, 32),
              HasSubstr("is NVFP4 but has no second-level scale"));
  EXPECT_THAT(weight_error({fp8, {"e.up_proj.weight_scale_inv", "F32", {1, 2}, "abcdabcd"}}, 2, 2),
              HasSubstr("weight_scale_inv is [1, 2] F32, expected [1, 1]"));
  EXPECT_THAT(
      weight_error({fp8, {"e.up_proj.weight_scale", "F32", {3}, std::string(12, 'a')}}, 2, 2),
      HasSubstr("weight_scale is [3] F32, expected [2, 1]"));
  EXPECT_THAT(
      weight_error(
          {fp8, {"e.up_proj.weight_scale", "F32", {2}, bytes_of(std::vector<float>{1, INFINITY})}},
          2, 2),
      HasSubstr("not finite"));
  EXPECT_THAT(
      weight_error({{"e.up_proj.weight_packed", "I32", {2, 4}, std::string(32, 'a')}}, 2, 32),
      HasSubstr("weight_packed is [2, 4] I32 but has no e.up_proj.weight_scale"));
  EXPECT_THAT(weight_error({bf16_tensor("e.up_proj.weight", {2, 32})}, 3, 32),
              HasSubstr("is [2, 32] BF16, expected [3, 32] for a weight [3, 32] in bf16"));
  EXPECT_THAT(weight_error({bf16_tensor("e.up_proj.weight", {64})}, 2, 32),
              HasSubstr("is [64] BF16, expected [2, 32]"));
}

std::string warning_of(const std::vector<RawTensor>& tensors, const json& config) {
  const TempFolder folder;
  write_checkpoint(folder, tensors, config);
  testing::internal::CaptureStderr();
  Checkpoint::open(folder.path());
  return testing::internal::GetCapturedStderr();
}

TEST(WeightsTest, ContradictionsAreOneWarning) {
  const json quark = json::parse(R"({"quantization_config": {"quant_method": "quark",
    "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32,
    "scale_format": "e8m0"}}, "exclude": ["*lm_head"]}})");
  EXPECT_EQ(warning_of({kMxData, kMxScale, bf16_tensor("lm_head.weight", {2, 2}),
                        bf16_tensor("l.mlp.gate.weight", {2, 2}),
                        bf16_tensor("embed_tokens.weight", {2, 2})},
                       quark),
            "");
  EXPECT_THAT(warning_of({kMxData, kMxScale}, json::object()),
              HasSubstr("e.up_proj is mxfp4 but config.json has no quantization_config"));
  const std::string twice =
      warning_of({bf16_tensor("a.weight", {2, 2}), bf16_tensor("b.weight", {2, 2})}, quark);
  EXPECT_THAT(twice, AllOf(HasSubstr("a is BF16 but quantization_config (quark fp4 per_group) does "
                                     "not exclude it"),
                           HasSubstr("(2 layers like it)")));
  json excluding = quark;
  excluding["quantization_config"]["exclude"] = {"up_proj"};
  EXPECT_THAT(warning_of({kMxData, kMxScale}, excluding),
              HasSubstr("e.up_proj is mxfp4 but quantization_config excludes it"));
}

// ---- dummy --------------------------------------------------------------------------------------

TEST(DummyTest, MakesTheSameNumbersEveryTime) {
  const TempFolder folder;
  folder.write("config.json", "{}");
  Checkpoint one = Checkpoint::open(folder.path(), {}, true);
  Checkpoint two = Checkpoint::open(folder.path(), {}, true);
  EXPECT_TRUE(one.is_dummy());
  EXPECT_FALSE(one.contains("a.weight"));
  const std::vector<float> a = decoded(one.weight("a", 64, 33));
  EXPECT_EQ(a, decoded(two.weight("a", 64, 33)));
  EXPECT_NE(a, decoded(two.weight("b", 64, 33)));
  double sum = 0, squares = 0;
  for (const float x : a) {
    sum += x;
    squares += x * x;
  }
  const auto count = static_cast<double>(a.size());
  EXPECT_NEAR(sum / count, 0, 0.002);
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 0.002);
  EXPECT_EQ(one.tensor_f32("norm.weight", {3}).data<float>()[2], 1);
  EXPECT_EQ(one.tensor_f32("gate.e_score_correction_bias", {3}).data<float>()[2], 0);
  EXPECT_GT(one.total_bytes(), 64u * 33 * 2);
}

TEST(DummyTest, FollowsTheClaimedQuantization) {
  const TempFolder folder;
  folder.write("config.json", R"({"quantization_config": {"quant_method": "quark",
    "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32,
    "scale_format": "e8m0"}}, "exclude": ["*self_attn*"]}})");
  Checkpoint files = Checkpoint::open(folder.path(), {}, true);
  EXPECT_EQ(files.weight("l.mlp.experts.0.up_proj", 2, 64).format, &formats::kMxfp4);
  EXPECT_EQ(files.weight("l.self_attn.o_proj", 2, 64).format, &formats::kBF16);
  EXPECT_EQ(files.weight("embed_tokens", 2, 64).format, &formats::kBF16);
  EXPECT_EQ(files.weight("l.mlp.gate", 2, 64).format, &formats::kBF16);
  EXPECT_THAT(error_of([&] { files.weight("l.mlp.up_proj", 2, 33); }),
              HasSubstr("not a multiple of 32"));
}

// ---- model path ---------------------------------------------------------------------------------

// Points the hub cache at a folder for the life of a test.
struct HubCache {
  TempFolder folder;
  HubCache() { ::setenv("HF_HUB_CACHE", folder.path().c_str(), 1); }
  ~HubCache() { ::unsetenv("HF_HUB_CACHE"); }
  void add(const std::string& commit) const {
    std::filesystem::create_directories(folder.file("models--org--name/snapshots/" + commit));
  }
};

TEST(ModelPathTest, AFolderIsItself) {
  const TempFolder folder;
  EXPECT_EQ(resolve_model_path(folder.path()), folder.path());
  folder.write("x", "");
  EXPECT_THAT(error_of([&] { resolve_model_path(folder.file("x")); }), HasSubstr("is a file"));
  EXPECT_THAT(error_of([&] { resolve_model_path(folder.file("y")); }), HasSubstr("does not exist"));
  EXPECT_THAT(error_of([&] { resolve_model_path(""); }), HasSubstr("does not exist"));
}

TEST(ModelPathTest, AnIdIsFoundInTheHubCache) {
  const HubCache cache;
  EXPECT_THAT(error_of([] { resolve_model_path("org/name"); }),
              AllOf(HasSubstr(cache.folder.path()), HasSubstr("download org/name")));
  cache.add("abc");
  EXPECT_EQ(resolve_model_path("org/name"), cache.folder.file("models--org--name/snapshots/abc"));
  cache.add("def");  // two snapshots: only refs/main can say which
  EXPECT_THAT(error_of([] { resolve_model_path("org/name"); }), HasSubstr("neither a folder nor"));
  std::filesystem::create_directories(cache.folder.file("models--org--name/refs"));
  cache.folder.write("models--org--name/refs/main", "def\n");
  EXPECT_EQ(resolve_model_path("org/name"), cache.folder.file("models--org--name/snapshots/def"));
}

}  // namespace
}  // namespace eyrie::checkpoint
