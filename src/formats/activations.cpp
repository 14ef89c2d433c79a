// Emulated activation quantization of the formats with a scale per block (formats/weight.h).
#include <algorithm>
#include <cmath>

#include "formats/weight.h"

namespace eyrie::formats {
namespace {

float largest_of(std::span<const float> values) {
  float amax = 0.0f;
  for (const float x : values) amax = std::max(amax, std::fabs(x));
  return amax;
}

}  // namespace

void round_activation_nvfp4(std::span<float> row, float input_scale) {
  constexpr size_t kBlock = 16;
  const float global = input_scale > 0.0f ? input_scale : largest_of(row) / 2688.0f;
  if (global == 0.0f) return;  // a row of zeros
  const float inverse = 1.0f / global;
  for (size_t begin = 0; begin < row.size(); begin += kBlock) {
    const auto block = row.subspan(begin, std::min(kBlock, row.size() - begin));
    const float wanted = std::min(448.0f, inverse * (largest_of(block) / 6.0f));
    const float scale = decode_fp8_e4m3(encode_fp8_e4m3(wanted));
    const float multiplier = scale == 0.0f ? 0.0f : inverse / scale;
    for (float& x : block) {
      x = decode_fp4_e2m1(encode_fp4_e2m1(x * multiplier)) * (scale * global);
    }
  }
}

void round_activation_fp8_blocks(std::span<float> row) {
  constexpr size_t kBlock = 128;
  for (size_t begin = 0; begin < row.size(); begin += kBlock) {
    const auto block = row.subspan(begin, std::min(kBlock, row.size() - begin));
    const float scale = std::max(largest_of(block), 1e-4f) / 448.0f;
    for (float& x : block) x = decode_fp8_e4m3(encode_fp8_e4m3(x / scale)) * scale;
  }
}

}  // namespace eyrie::formats
