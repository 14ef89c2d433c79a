#include <algorithm>
#include <array>
#include <bit>

#include "formats/weight.h"

namespace eyrie::formats {
namespace {

constexpr std::array<const WeightFormat*, 5> kFormats = {&kF32, &kBF16, &kF16, &kFp8, &kMxfp4};

}  // namespace

std::span<const WeightFormat* const> all_formats() { return kFormats; }

const WeightFormat* find_format(std::string_view name) {
  for (const WeightFormat* format : kFormats) {
    if (format->name == name) return format;
  }
  return nullptr;
}

Weight plain_weight(const Tensor& tensor) {
  CHECK_EQ(tensor.rank(), 2);
  for (const WeightFormat* format : kFormats) {
    if (format->block_in == 0 && format->data_dtype == tensor.dtype()) {
      return {format, tensor.dim(0), tensor.dim(1), tensor, {}};
    }
  }
  CHECK(false, "{} is not a plain weight", tensor.shape_string());
}

size_t weight_bytes(const Weight& weight) {
  return weight.data.bytes() + (weight.scales.empty() ? 0 : weight.scales.bytes());
}

bool all_finite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7f800000u;  // all ones in Inf and NaN only
  uint32_t largest = 0;
  for (const float x : values) {  // no early exit: finite is the rule, and this loop vectorises
    largest = std::max(largest, std::bit_cast<uint32_t>(x) & kExponent);
  }
  return largest != kExponent;
}

}  // namespace eyrie::formats
