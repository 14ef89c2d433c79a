#include "checkpoint/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/test_files.h"

namespace eyrie::checkpoint {
namespace {

using ::testing::ElementsAre;

Checkpoint open(const TempFolder& folder, const std::vector<RawTensor>& tensors) {
  folder.write("config.json", "{}");
  folder.write("model.safetensors", safetensors_bytes(tensors));
  return Checkpoint::open(folder.path());
}

TEST(CompareTest, NumbersAreThoseOfTheDecodedWeights) {
  const TempFolder first, second;
  std::vector<float> ones(32, 1.0f);
  ones[5] = 2.5f;
  Checkpoint a = open(first, {{"e.up_proj.weight", "BF16", {1, 32}, bf16_bytes(ones)},
                              {"norm.weight", "BF16", {2}, bf16_bytes({1, -1})},
                              {"d2t", "I64", {1}, "12345678"},
                              {"gone.weight", "BF16", {1, 1}, bf16_bytes({1})},
                              {"wide.weight", "BF16", {1, 2}, bf16_bytes({1, 2})}});
  // MXFP4 with scale 1: every code 2 (1.0), but for element 5, code 4 (2.0).
  std::string codes(16, '\x22');
  codes[2] = '\x42';
  Checkpoint b = open(second, {{"e.up_proj.weight", "U8", {1, 16}, codes},
                               {"e.up_proj.weight_scale", "U8", {1, 1}, "\x7f"},
                               {"norm.weight", "F32", {2}, bytes_of(std::vector<float>{1, -1})},
                               {"d2t", "I64", {1}, "12345678"},
                               {"new.weight", "BF16", {1, 1}, bf16_bytes({1})},
                               {"wide.weight", "BF16", {2, 1}, bf16_bytes({1, 2})}});
  const Comparison result = compare(&a, &b);
  EXPECT_THAT(result.only_a, ElementsAre("gone"));
  EXPECT_THAT(result.only_b, ElementsAre("new"));
  EXPECT_THAT(result.other_shape, ElementsAre("wide"));
  ASSERT_EQ(result.tensors.size(), 2u);
  const TensorDifference& up = result.tensors[0];
  EXPECT_EQ(up.name, "e.up_proj");
  EXPECT_EQ(up.format_a, "bf16");
  EXPECT_EQ(up.format_b, "mxfp4");
  EXPECT_EQ(up.elements, 32);
  EXPECT_DOUBLE_EQ(up.max_error, 0.5);
  EXPECT_DOUBLE_EQ(up.rms_error, std::sqrt(0.25 / 32));
  EXPECT_DOUBLE_EQ(up.relative_rms, std::sqrt(0.25 / (31 + 6.25)));
  EXPECT_DOUBLE_EQ(up.cosine, (31 + 5) / std::sqrt((31 + 6.25) * (31 + 4)));
  EXPECT_EQ(result.tensors[1].name, "norm");
  EXPECT_EQ(result.tensors[1].max_error, 0);
  EXPECT_EQ(result.tensors[1].cosine, 1);
}

}  // namespace
}  // namespace eyrie::checkpoint
