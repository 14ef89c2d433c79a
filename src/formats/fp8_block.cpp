// FP8 E4M3 in blocks of 128x128 with a float32 scale each, as DeepSeek and Kimi-K2-Instruct store
// it: weight = e4m3 · scale (the file calls the scales weight_scale_inv). Blocks at the right and
// lower edge are what is left: scales are [ceil(out / 128), ceil(in / 128)].
//
// Scale rule: amax / 448, 1 for a block of zeros; codes are divided by it in float32. transformers
// multiplies by 1 / amax · 448 (torch divides a number by a tensor in two steps) and stores the
// reciprocal of that.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/encoders.h"

namespace eyrie::formats {
namespace {

constexpr int kBlock = 128;
constexpr float kLargest = 448.0f;

void decode_row(const Weight& weight, int64_t row, std::span<float> out) {
  const uint8_t* codes = row_of<uint8_t>(weight.data, row);
  const float* scales = row_of<float>(weight.scales, (weight.first_row + row) / kBlock);
  for (size_t i = 0; i < out.size(); ++i) out[i] = decode_fp8_e4m3(codes[i]) * scales[i / kBlock];
}

// code_of(x, amax) → E4M3 byte; scale_of(amax) → what is stored.
template <typename ScaleOf, typename CodeOf>
void encode_blocks(const EncodeArgs& args, ScaleOf&& scale_of, CodeOf&& code_of) {
  const auto in = static_cast<size_t>(args.in);
  const size_t num_rows = in == 0 ? 0 : args.rows.size() / in;
  CHECK_LE(num_rows, static_cast<size_t>(kBlock));
  for (size_t begin = 0; begin < in; begin += kBlock) {
    const size_t count = std::min<size_t>(kBlock, in - begin);
    float amax = 0.0f;
    for (size_t r = 0; r < num_rows; ++r) {
      for (const float x : args.rows.subspan(r * in + begin, count)) {
        amax = std::max(amax, std::fabs(x));
      }
    }
    CHECK(std::isfinite(amax), "a block to encode as fp8-block must be finite");
    if (amax == 0.0f) amax = kLargest;  // a scale of 1
    for (size_t r = 0; r < num_rows; ++r) {
      for (size_t i = r * in + begin; i < r * in + begin + count; ++i) {
        args.data[i] = std::byte{code_of(args.rows[i], amax)};
      }
    }
    const float scale = scale_of(amax);
    std::memcpy(&args.scales[begin / kBlock * sizeof scale], &scale, sizeof scale);
  }
}

}  // namespace

void encode_fp8_block(const EncodeArgs& args) {
  encode_blocks(
      args, [](float amax) { return amax / kLargest; },
      [](float x, float amax) { return encode_fp8_e4m3(x / (amax / kLargest)); });
}

void encode_fp8_block_transformers(const EncodeArgs& args) {
  encode_blocks(
      args, [](float amax) { return 1.0f / (1.0f / amax * kLargest); },
      [](float x, float amax) { return encode_fp8_e4m3(x * (1.0f / amax * kLargest)); });
}

const WeightFormat kFp8Block = {
    .name = "fp8-block",
    .summary = "FP8 E4M3, one float32 scale per 128x128 block, 8 bits a weight",
    .data_dtype = DType::kF8E4M3,
    .scale_dtype = DType::kF32,
    .bits_per_element = 8,
    .block_in = kBlock,
    .activation = ActivationRounding::kFp8Blocks,
    .block_out = kBlock,
    .decode_row = decode_row,
    .encode_row = nullptr,
};

}  // namespace eyrie::formats
