#include "checkpoint/dummy_pattern.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "checkpoint/checkpoint.h"
#include "checkpoint/test_files.h"

namespace eyrie::checkpoint {
namespace {

TEST(RepeatedBlock, IsTheSameContentAgainAndAgain) {
  std::vector<std::byte> content(8192);
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i * 31 >> 3);
  RepeatedBlock block(content);
  const std::byte* once = block.at_least(1);
  const std::byte* often = block.at_least(5 * content.size() + 1);
  EXPECT_EQ(std::memcmp(once, content.data(), content.size()), 0);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(std::memcmp(often + i * content.size(), content.data(), content.size()), 0) << i;
  }
  EXPECT_EQ(block.at_least(3 * content.size()), often);
}

// Every format decodes to finite values that look like N(0, 0.02), in any shape.
TEST(DummyPattern, LooksLikeANormalDistributionInEveryFormat) {
  for (const formats::WeightFormat* format : formats::all_formats()) {
    DummyPattern pattern(*format);
    const int64_t out = 300, in = 7168;
    const formats::Weight weight = pattern.weight("model.layers.3.mlp.experts.7.up_proj", out, in);
    EXPECT_EQ(weight.out, out);
    EXPECT_EQ(weight.in, in);
    std::vector<float> row(static_cast<size_t>(in));
    double sum = 0, squares = 0;
    for (int64_t o = 0; o < out; ++o) {
      format->decode_row(weight, o, row);
      ASSERT_TRUE(formats::all_finite(row)) << format->name;
      for (const float value : row) {
        sum += value;
        squares += double{value} * value;
      }
    }
    const double count = static_cast<double>(out) * in;
    EXPECT_NEAR(sum / count, 0, 1e-3) << format->name;
    EXPECT_NEAR(std::sqrt(squares / count), 0.02, 0.004) << format->name;
  }
}

TEST(DummyPattern, TheEmbeddingIsAsLoudAsAnyRow) {
  EXPECT_EQ(dummy_pattern_stddev("language_model.model.embed_tokens"), 1.0f);
  EXPECT_EQ(dummy_pattern_stddev("language_model.lm_head"), kDummyStddev);
  DummyPattern pattern(formats::kBF16, 1.0f);
  std::vector<float> row(7168);
  formats::kBF16.decode_row(pattern.weight("embed_tokens", 8, 7168), 7, row);
  double squares = 0;
  for (const float value : row) squares += double{value} * value;
  EXPECT_NEAR(std::sqrt(squares / 7168), 1, 0.05);
}

TEST(DummyPattern, NamesBeginAtDifferentPlacesAndAlwaysTheSame) {
  DummyPattern pattern(formats::kMxfp4);
  const auto bytes_of = [&](const char* name) {
    const formats::Weight weight = pattern.weight(name, 4, 64);
    return std::vector<uint8_t>(static_cast<const uint8_t*>(weight.data.raw()),
                                static_cast<const uint8_t*>(weight.data.raw()) + 128);
  };
  EXPECT_NE(bytes_of("a.up_proj"), bytes_of("a.down_proj"));
  EXPECT_EQ(bytes_of("a.up_proj"), bytes_of("a.up_proj"));
}

// A hundred gigabytes are a matter of address space.
TEST(DummyPattern, ABigWeightCostsNothing) {
  DummyPattern pattern(formats::kMxfp4);
  const formats::Weight weight = pattern.weight("lm_head", int64_t{1} << 24, 1 << 13);
  EXPECT_EQ(formats::weight_bytes(weight), (size_t{1} << 37) * 17 / 32);
  std::vector<float> row(1 << 13);
  formats::kMxfp4.decode_row(weight, (int64_t{1} << 24) - 1, row);
  EXPECT_TRUE(formats::all_finite(row));
}

}  // namespace
}  // namespace eyrie::checkpoint
