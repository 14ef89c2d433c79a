#include <algorithm>
#include <array>
#include <bit>

#include "formats/weight.h"

namespace eyrie::formats {
namespace {

constexpr std::array<const WeightFormat*, 8> kFormats = {&kF32,      &kBF16,  &kF16,   &kFp8,
                                                         &kFp8Block, &kMxfp4, &kNvfp4, &kInt4G32};

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
      return {.format = format,
              .out = tensor.dim(0),
              .in = tensor.dim(1),
              .data = tensor,
              .scales = {}};
    }
  }
  CHECK(false, "{} is not a plain weight", tensor.shape_string());
}

Weight weight_rows(const Weight& weight, int64_t begin, int64_t count) {
  Weight part = weight;
  part.out = count;
  part.data = weight.data.rows(begin, count);
  if (weight.format->block_out > 1) {
    part.first_row = weight.first_row + begin;
  } else if (!weight.scales.empty()) {
    part.scales = weight.scales.rows(begin, count);
  }
  return part;
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
