// Scales of the FP8 KV cache under every producer's names.
#include "checkpoint/kv_scales.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/test_files.h"

namespace eyrie::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kAttention = "model.layers.0.self_attn";

RawTensor scale(const std::string& name, float value, const std::vector<int64_t>& shape = {}) {
  return {kAttention + name, "F32", shape, bytes_of(std::vector<float>{value})};
}

std::optional<KvScales> scales_in(const std::vector<RawTensor>& tensors) {
  const TempFolder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors", safetensors_bytes(tensors));
  return find_kv_scales(Checkpoint::open(folder.path()), kAttention);
}

void expect_scales(const std::vector<RawTensor>& tensors, float k, float v) {
  const std::optional<KvScales> found = scales_in(tensors);
  ASSERT_TRUE(found.has_value()) << tensors[0].name;
  EXPECT_EQ(found->k, k) << tensors[0].name;
  EXPECT_EQ(found->v, v) << tensors[0].name;
}

TEST(KvScalesTest, EveryProducersNames) {
  expect_scales({scale(".k_scale", 0.5f), scale(".v_scale", 0.25f, {1})}, 0.5f, 0.25f);
  expect_scales({scale(".k_proj.k_scale", 0.5f), scale(".v_proj.v_scale", 2)}, 0.5f, 2);
  expect_scales({scale(".k_proj.output_scale", 3), scale(".v_proj.output_scale", 4)}, 3, 4);
  expect_scales({scale(".kv_a_proj_with_mqa.output_scale", 5), scale(".kv_b_proj.output_scale", 6)},
                5, 6);
  expect_scales({scale(".kv_scale", 7)}, 7, 7);
  expect_scales({{kAttention + ".k_scale", "BF16", {}, bf16_bytes({0.125f})}}, 0.125f, 0.125f);
}

TEST(KvScalesTest, OneStandsForBothAndNoneIsNone) {
  expect_scales({scale(".v_proj.v_scale", 2)}, 2, 2);
  expect_scales({scale(".k_proj.output_scale", 3)}, 3, 3);
  EXPECT_FALSE(scales_in({scale(".q_proj.output_scale", 3), scale(".o_proj.input_scale", 3)}));
}

TEST(KvScalesTest, WhatIsNoScaleIsNamed) {
  for (const float wrong : {0.0f, -1.0f, INFINITY, std::nanf("")}) {
    EXPECT_THAT(error_of([&] { scales_in({scale(".k_scale", wrong)}); }),
                AllOf(HasSubstr("layers.0.self_attn.k_scale"), HasSubstr("a positive number")));
  }
  const RawTensor row = {kAttention + ".k_scale", "F32", {2}, bytes_of(std::vector<float>{1, 1})};
  EXPECT_THAT(error_of([&] { scales_in({row}); }),
              AllOf(HasSubstr("k_scale is [2] F32"), HasSubstr("one number")));
}

}  // namespace
}  // namespace eyrie::checkpoint
