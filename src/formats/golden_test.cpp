// Bytes of every format against files made by numpy and ml_dtypes (tools/formats_golden).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "formats/weight.h"

namespace eyrie::formats {
namespace {

std::vector<std::string> golden_lines(const std::string& name) {
  std::istringstream text(read_text_file("src/formats/testdata/" + name));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  }
  return lines;
}

uint32_t hex(const std::string& text) {
  return static_cast<uint32_t>(std::stoul(text, nullptr, 16));
}

std::vector<float> floats_of(const std::string& text) {
  std::vector<float> values;
  for (size_t i = 0; i < text.size(); i += 8) {
    values.push_back(std::bit_cast<float>(hex(text.substr(i, 8))));
  }
  return values;
}

std::string hex_of(const std::vector<std::byte>& bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(b));
  return text;
}

TEST(GoldenTest, E4m3DecodesEveryByte) {
  const auto lines = golden_lines("e4m3_decode.txt");
  ASSERT_EQ(lines.size(), 256u);
  for (size_t bits = 0; bits < lines.size(); ++bits) {
    const float value = decode_fp8_e4m3(static_cast<uint8_t>(bits));
    if (lines[bits] == "nan") {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(value), hex(lines[bits])) << bits;
    }
  }
}

TEST(GoldenTest, F16DecodesEveryValue) {
  const auto lines = golden_lines("f16_decode_hash.txt");
  ASSERT_EQ(lines.size(), 1u);
  uint64_t hash = 0xcbf29ce484222325u;
  int count = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = decode_f16(static_cast<uint16_t>(bits));
    if ((bits & 0x7fffu) > 0x7c00u) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      continue;
    }
    ++count;
    const auto word = std::bit_cast<uint32_t>(value);
    for (int byte = 0; byte < 4; ++byte) {
      hash = (hash ^ ((word >> (8 * byte)) & 0xffu)) * 0x100000001b3u;
    }
  }
  EXPECT_EQ(fmt::format("{} {:016x}", count, hash), lines[0]);
}

TEST(GoldenTest, ScalarsEncodeLikeMlDtypes) {
  const auto lines = golden_lines("encode.txt");
  ASSERT_GT(lines.size(), 1000u);
  for (const std::string& line : lines) {
    std::istringstream fields(line);
    std::string x_text, e4m3, f16, bf16_text;
    fields >> x_text >> e4m3 >> f16 >> bf16_text;
    const auto x = std::bit_cast<float>(hex(x_text));
    EXPECT_EQ(encode_fp8_e4m3(x), hex(e4m3)) << x;
    EXPECT_EQ(encode_f16(x), hex(f16)) << x;
    EXPECT_EQ(to_bf16(x).bits, hex(bf16_text)) << x;
  }
}

void expect_rows_match(const WeightFormat& format, const std::string& file) {
  const auto lines = golden_lines(file);
  ASSERT_GT(lines.size(), 30u);
  for (size_t row = 0; row < lines.size(); ++row) {
    std::istringstream fields(lines[row]);
    std::string x_text, data_text, scale_text;
    fields >> x_text >> data_text >> scale_text;
    const std::vector<float> x = floats_of(x_text);
    const auto in = static_cast<int64_t>(x.size());
    std::vector<std::byte> data(static_cast<size_t>(format.data_columns(in)) *
                                dtype_bytes(format.data_dtype));
    std::vector<std::byte> scales(static_cast<size_t>(format.scale_columns(in)) *
                                  dtype_bytes(format.scale_dtype));
    format.encode_row(x, data, scales);
    EXPECT_EQ(hex_of(data), data_text) << file << " row " << row;
    EXPECT_EQ(hex_of(scales), scale_text) << file << " row " << row;
  }
}

TEST(GoldenTest, Mxfp4RowsMatchTheRule) { expect_rows_match(kMxfp4, "mxfp4_rows.txt"); }
TEST(GoldenTest, Fp8RowsMatchTheRule) { expect_rows_match(kFp8, "fp8_rows.txt"); }

}  // namespace
}  // namespace eyrie::formats
