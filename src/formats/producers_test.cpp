// Every recipe against the bytes of the producer it is named after (tools/formats_golden).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "formats/recipe.h"

namespace eyrie::formats {
namespace {

std::string bytes_of(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoul(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::string hex_of(const std::vector<std::byte>& bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(b));
  return text;
}

// What a recipe writes, before anything is converted for reading.
struct Written {
  std::vector<std::byte> data, scales;
  float global = 1.0f;
};

Written write(const Recipe& recipe, const std::vector<float>& values, int64_t out, int64_t in) {
  const WeightFormat& format = *recipe.format;
  const size_t data_row =
      static_cast<size_t>(format.data_columns(in)) * dtype_bytes(format.data_dtype);
  const size_t scale_row =
      static_cast<size_t>(format.scale_columns(in)) * dtype_bytes(recipe.scale_dtype);
  Written result;
  result.data.resize(data_row * static_cast<size_t>(out));
  result.scales.resize(scale_row * static_cast<size_t>(format.scale_rows(out)));
  if (recipe.stored_global != nullptr) {
    float amax = 0.0f;
    for (const float x : values) amax = std::max(amax, std::fabs(x));
    result.global = recipe.stored_global(amax, DType::kBF16);
  }
  for (int64_t row = 0; row < out; row += format.block_out) {
    const auto begin = static_cast<size_t>(row);
    const auto count = static_cast<size_t>(std::min<int64_t>(format.block_out, out - row));
    const size_t block = begin / static_cast<size_t>(format.block_out);
    recipe.encode({.rows = std::span(values).subspan(begin * static_cast<size_t>(in),
                                                     count * static_cast<size_t>(in)),
                   .in = in,
                   .data = {result.data.data() + begin * data_row, count * data_row},
                   .scales = {result.scales.data() + block * scale_row, scale_row},
                   .source = DType::kBF16,
                   .stored_global = result.global});
  }
  return result;
}

TEST(ProducersTest, EveryRecipeWritesItsProducersBytes) {
  std::istringstream text(read_text_file("src/formats/testdata/producers.txt"));
  std::map<std::pair<std::string, std::string>, int> seen;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("#") || line.starts_with("ramp")) continue;
    std::istringstream fields(line);
    std::string matrix, scheme, producer, weights, data, scales, global;
    int64_t out = 0, in = 0;
    fields >> matrix >> scheme >> producer >> out >> in >> weights >> data >> scales >> global;
    SCOPED_TRACE(matrix + " " + scheme + " " + producer);
    const WeightFormat* format = find_format(scheme);
    ASSERT_NE(format, nullptr);
    const Recipe* recipe = find_recipe(*format, producer);
    ASSERT_NE(recipe, nullptr);
    const std::string raw = bytes_of(weights);
    std::vector<float> values;
    for (size_t i = 0; i < raw.size(); i += 2) {
      uint16_t bits = 0;
      std::memcpy(&bits, &raw[i], 2);
      values.push_back(to_float(bf16{bits}));
    }
    const Written written = write(*recipe, values, out, in);
    EXPECT_EQ(hex_of(written.scales), scales);
    EXPECT_EQ(hex_of(written.data), data);
    if (global != "-") {
      float expected = 0;
      std::memcpy(&expected, bytes_of(global).data(), sizeof expected);
      EXPECT_EQ(written.global, expected);
    }
    ++seen[{scheme, producer}];
  }
  EXPECT_EQ(seen.size(), 8u);
}

TEST(ProducersTest, BlocksOf128EqualTransformers) {
  std::istringstream text(read_text_file("src/formats/testdata/producers.txt"));
  int num_ramps = 0;
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with("ramp")) continue;
    std::istringstream fields(line);
    std::string matrix, scheme, producer, hash_text, scales;
    int64_t out = 0, in = 0;
    double factor = 0;
    fields >> matrix >> scheme >> producer >> out >> in >> factor >> hash_text >> scales;
    ASSERT_EQ(scheme, "fp8-block");
    std::vector<float> values;
    for (int64_t i = 0; i < out * in; ++i) {
      const auto bits = static_cast<double>((i * 2654435761 % (int64_t{1} << 32)) >> 16);
      const double value = (bits - 32768) / 32768 * std::exp2(-static_cast<double>(i / 97 % 7));
      values.push_back(to_float(to_bf16(static_cast<float>(value * factor))));
    }
    const Written written = write(*find_recipe(kFp8Block, producer), values, out, in);
    uint64_t hash = 0xcbf29ce484222325u;
    for (const std::byte b : written.data) {
      hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001b3u;
    }
    EXPECT_EQ(hex_of(written.scales), scales) << factor;
    EXPECT_EQ(fmt::format("{:016x}", hash), hash_text) << factor;
    ++num_ramps;
  }
  EXPECT_EQ(num_ramps, 3);
}

}  // namespace
}  // namespace eyrie::formats
