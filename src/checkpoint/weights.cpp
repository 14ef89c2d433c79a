// A linear layer's tensors → a Weight. The weight's dtype and the scales beside it name the format;
// quantization_config has no say.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/dummy.h"

namespace eyrie::checkpoint {

using formats::Weight;
using formats::WeightFormat;

struct Checkpoint::Linear {
  std::string name;  // "….weight"
  Tensor data;
  const WeightFormat* format = nullptr;
  std::string scale_name;  // empty when the format has no scales
  Tensor scales;           // as they lie in the file
};

namespace {

constexpr const char* kReadable =
    "read are F32, BF16, F16, FP8 E4M3 with one scale per row or tensor, and MXFP4";

bool is_scale_of(const WeightFormat& format, DType dtype) {
  if (dtype == format.scale_dtype) return true;
  // Producers disagree on the precision of float scales; any float is converted.
  return format.scale_dtype == DType::kF32 && (dtype == DType::kBF16 || dtype == DType::kF16);
}

const WeightFormat* plain_format(DType dtype) {
  for (const WeightFormat* format : formats::all_formats()) {
    if (format->block_in == 0 && format->data_dtype == dtype) return format;
  }
  return nullptr;
}

const WeightFormat* scaled_format(DType data, DType scale) {
  for (const WeightFormat* format : formats::all_formats()) {
    if (format->block_in != 0 && format->data_dtype == data && is_scale_of(*format, scale)) {
      return format;
    }
  }
  return nullptr;
}

}  // namespace

Checkpoint::Linear Checkpoint::inspect_linear(const std::string& prefix) {
  Linear linear;
  linear.name = prefix + ".weight";
  if (!contains(linear.name) && contains(prefix + ".weight_packed")) {
    fail("{}: {} is packed by compressed-tensors ({}), which this version does not read; {}",
         file_of(prefix + ".weight_packed"), prefix,
         find(prefix + ".weight_packed")->shape_string(), kReadable);
  }
  linear.data = require(linear.name);
  linear.format = plain_format(linear.data.dtype());
  if (linear.format != nullptr) return linear;

  linear.scale_name = prefix + ".weight_scale";
  if (!contains(linear.scale_name)) {
    if (contains(prefix + ".weight_scale_inv")) {
      fail("{}: {} is FP8 in 128x128 blocks, which this version does not read; {}",
           file_of(linear.name), prefix, kReadable);
    }
    fail("{}: {} is {} but has no {}; {}", file_of(linear.name), linear.name,
         linear.data.shape_string(), linear.scale_name, kReadable);
  }
  linear.scales = require(linear.scale_name);
  linear.format = scaled_format(linear.data.dtype(), linear.scales.dtype());
  if (linear.format == nullptr) {
    fail("{}: {} is {} with {} scales, which this version does not read; {}", file_of(linear.name),
         linear.name, linear.data.shape_string(), dtype_name(linear.scales.dtype()), kReadable);
  }
  return linear;
}

// Scales as [out, scale_columns]. One scale per row may come as [out] or [out, 1]; one for the
// whole tensor ([] or [1]) is repeated, which changes no value.
Tensor Checkpoint::scales_of(const Linear& linear, int64_t out, int64_t in) {
  const WeightFormat& format = *linear.format;
  if (format.block_in == 0) return {};
  const int64_t columns = format.scale_columns(in);
  const Tensor& scales = linear.scales;
  const bool by_row =
      scales.rank() >= 1 && scales.dim(0) == out &&
      ((scales.rank() == 2 && scales.dim(1) == columns) || (scales.rank() == 1 && columns == 1));
  const bool whole = format.block_in < 0 && scales.num_elements() == 1 && scales.rank() <= 1;
  if (!by_row && !whole) {
    fail("{}: {} is {}, expected [{}, {}] for a weight [{}, {}] in {}", file_of(linear.scale_name),
         linear.scale_name, scales.shape_string(), out, columns, out, in, format.name);
  }
  if (format.scale_dtype == DType::kU8) {  // E8M0: 255 is NaN and poisons its block
    if (std::memchr(scales.raw(), 255, scales.bytes()) != nullptr) {
      fail("{}: {} has a scale that is not a number", file_of(linear.scale_name),
           linear.scale_name);
    }
    return scales;
  }
  const Tensor values = converted_to_f32(scales);
  if (!formats::all_finite({values.data<float>(), static_cast<size_t>(values.num_elements())})) {
    fail("{}: {} has a scale that is not finite", file_of(linear.scale_name), linear.scale_name);
  }
  if (by_row) return values.reshape({out, columns});
  auto* repeated = reinterpret_cast<float*>(allocate(static_cast<size_t>(out) * sizeof(float)));
  std::fill(repeated, repeated + out, *values.data<float>());
  return Tensor::of(repeated, {out, 1});
}

Weight Checkpoint::weight(const std::string& prefix, int64_t out, int64_t in) {
  if (dummy_) return dummy_weight(prefix, out, in);
  const Linear linear = inspect_linear(prefix);
  const WeightFormat& format = *linear.format;
  if (format.block_in > 0 && in % format.block_in != 0) {
    fail("{}: {} cannot be {}: its {} inputs are not a multiple of {}", file_of(linear.name),
         linear.name, format.name, in, format.block_in);
  }
  const int64_t columns = format.data_columns(in);
  if (linear.data.rank() != 2 || linear.data.dim(0) != out || linear.data.dim(1) != columns) {
    fail("{}: tensor {} is {}, expected [{}, {}] for a weight [{}, {}] in {}", file_of(linear.name),
         linear.name, linear.data.shape_string(), out, columns, out, in, format.name);
  }
  return {&format, out, in, linear.data, scales_of(linear, out, in)};
}

Weight Checkpoint::stored_weight(const std::string& prefix) {
  CHECK(!dummy_, "a dummy checkpoint stores nothing");
  const Linear linear = inspect_linear(prefix);
  if (linear.data.rank() != 2) {
    fail("{}: tensor {} is {}, expected two dimensions", file_of(linear.name), linear.name,
         linear.data.shape_string());
  }
  const int64_t bits =
      linear.data.dim(1) * 8 * static_cast<int64_t>(dtype_bytes(linear.data.dtype()));
  return weight(prefix, linear.data.dim(0), bits / linear.format->bits_per_element);
}

Weight Checkpoint::dummy_weight(const std::string& prefix, int64_t out, int64_t in) {
  const WeightFormat* format = quant_config_.claimed(prefix);
  const bool linear = is_linear_weight_name(prefix + ".weight") && !prefix.ends_with("mlp.gate");
  if (format == nullptr || !linear) format = &formats::kBF16;
  if (format->block_in > 0 && in % format->block_in != 0) {
    fail("{}: {} cannot be {}: its {} inputs are not a multiple of {}", path_, prefix, format->name,
         in, format->block_in);
  }
  const size_t data_row =
      static_cast<size_t>(format->data_columns(in)) * dtype_bytes(format->data_dtype);
  const size_t scale_row =
      static_cast<size_t>(format->scale_columns(in)) * dtype_bytes(format->scale_dtype);
  const auto rows = static_cast<size_t>(out);
  std::byte* data = allocate(rows * data_row);
  std::byte* scales = scale_row == 0 ? nullptr : allocate(rows * scale_row);
  std::vector<float> row(static_cast<size_t>(in));
  for (size_t i = 0; i < rows; ++i) {
    dummy_row(prefix, static_cast<int64_t>(i), row);
    format->encode_row(row, {data + i * data_row, data_row}, {scales + i * scale_row, scale_row});
  }
  Weight weight{
      format, out, in, Tensor(data, format->data_dtype, {out, format->data_columns(in)}), {}};
  if (scales != nullptr) {
    weight.scales = Tensor(scales, format->scale_dtype, {out, format->scale_columns(in)});
  }
  return weight;
}

}  // namespace eyrie::checkpoint
