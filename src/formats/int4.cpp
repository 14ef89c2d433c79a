// INT4 in groups of 32 as compressed-tensors packs it ("pack-quantized", the native Kimi-K2.5
// layout): eight values an int32, first in the lowest bits, each stored as value + 8; one bfloat16
// scale per 32 inputs. Files are little-endian, so the bytes are MXFP4's order: element 2i in the
// low nibble of byte i.
//
// Scale rule (compressed-tensors): amax / 7.5, the middle of the range -8…7, computed like the
// division of the elements in the weight's own dtype; the dtype's epsilon where that is zero.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/encoders.h"

namespace eyrie::formats {
namespace {

constexpr int kBlock = 32;
constexpr int kOffset = 8;

void decode_row(const Weight& weight, int64_t row, std::span<float> out) {
  const auto* packed = reinterpret_cast<const uint8_t*>(row_of<int32_t>(weight.data, row));
  const bf16* scales = row_of<bf16>(weight.scales, row);
  for (size_t i = 0; i < out.size(); i += 2) {
    const float scale = to_float(scales[i / kBlock]);
    out[i] = static_cast<float>((packed[i / 2] & 15) - kOffset) * scale;
    out[i + 1] = static_cast<float>((packed[i / 2] >> 4) - kOffset) * scale;
  }
}

void encode_row(std::span<const float> row, std::span<std::byte> data,
                std::span<std::byte> scales) {
  encode_int4_compressed_tensors(
      {.rows = row, .in = static_cast<int64_t>(row.size()), .data = data, .scales = scales});
}

}  // namespace

void encode_int4_compressed_tensors(const EncodeArgs& args) {
  CHECK_EQ(args.rows.size() % kBlock, 0u);
  for (size_t block = 0; block < args.rows.size() / kBlock; ++block) {
    const auto x = args.rows.subspan(block * kBlock, kBlock);
    float amax = 0.0f;
    for (const float value : x) amax = std::max(amax, std::fabs(value));
    CHECK(std::isfinite(amax), "a block to encode as int4-g32 must be finite");
    bf16 stored = to_bf16(rounded_to(args.source, amax / 7.5f));
    if (to_float(stored) == 0.0f) stored = to_bf16(0x1.0p-7f);
    const float scale = to_float(stored);
    const auto code = [&](float value) {
      const float quotient = rounded_to(args.source, value / scale);
      return static_cast<uint32_t>(
          static_cast<int>(std::nearbyint(std::clamp(quotient, -8.0f, 7.0f))) + kOffset);
    };
    for (size_t i = 0; i < kBlock; i += 2) {
      args.data[(block * kBlock + i) / 2] =
          static_cast<std::byte>(code(x[i]) | (code(x[i + 1]) << 4));
    }
    std::memcpy(&args.scales[block * sizeof stored], &stored, sizeof stored);
  }
}

const WeightFormat kInt4G32 = {
    .name = "int4-g32",
    .summary = "INT4, one bfloat16 scale per 32 inputs, 4.5 bits a weight",
    .data_dtype = DType::kI32,
    .scale_dtype = DType::kBF16,
    .bits_per_element = 4,
    .block_in = kBlock,
    .activation = ActivationRounding::kNone,
    .decode_row = decode_row,
    .encode_row = encode_row,
};

}  // namespace eyrie::formats
