// A linear layer's tensors → a Weight. The dtypes and the names beside the weight say the format;
// quantization_config has no say.
//
//   tensor         dtype   beside it                                              format
//   weight         float                                                          f32, bf16, f16
//   weight         F8_E4M3 weight_scale [], [1], [out], [out, 1]                  fp8
//   weight         F8_E4M3 weight_scale_inv or weight_scale [out/128, in/128]     fp8-block
//   weight         U8      weight_scale U8                                        mxfp4 (Quark)
//   weight         U8      weight_scale F8_E4M3, weight_scale_2                   nvfp4 (ModelOpt,
//   Quark) weight_packed  U8      weight_scale U8                                        mxfp4
//   weight_packed  U8      weight_scale F8_E4M3, weight_global_scale (divides)    nvfp4
//   weight_packed  I32     weight_scale, weight_shape                             int4-g32
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/math.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/dummy.h"
#include "formats/recipe.h"

namespace eyrie::checkpoint {

using formats::Weight;
using formats::WeightFormat;

struct Checkpoint::Linear {
  std::string name;  // "….weight" or "….weight_packed"
  const WeightFormat* format = nullptr;
  std::string scale_name;   // empty when the format has no scales
  std::string global_name;  // nvfp4
  bool global_divides = false;
};

namespace {

constexpr const char* kReadable =
    "read are F32, BF16, F16, FP8 E4M3 (per row, per tensor, in 128x128 blocks), MXFP4, NVFP4 and "
    "compressed-tensors' INT4 in groups of 32";

const WeightFormat* plain_format(DType dtype) {
  for (const WeightFormat* format : formats::all_formats()) {
    if (format->block_in == 0 && format->data_dtype == dtype) return format;
  }
  return nullptr;
}

// Rank 2 and of blocks, not a scale per row: [out, 1] is one, and so is what a single block of 128
// rows cannot be told from (the same numbers either way).
bool is_scale_of_blocks(const Tensor& weight, const Tensor& scale) {
  constexpr int64_t kBlock = 128;
  if (weight.rank() != 2 || scale.rank() != 2 || scale.num_elements() <= 1) return false;
  if (scale.dim(0) == weight.dim(0) && scale.dim(1) == 1) return false;
  return scale.dim(0) == div_ceil(weight.dim(0), kBlock) &&
         scale.dim(1) == div_ceil(weight.dim(1), kBlock);
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

}  // namespace

// The Linear, or nothing and why not.
std::optional<Checkpoint::Linear> Checkpoint::identify(const std::string& prefix,
                                                       std::string* problem) const {
  Linear linear;
  const std::string packed = prefix + ".weight_packed";
  const bool is_packed = contains(packed);
  linear.name = is_packed ? packed : prefix + ".weight";
  const Tensor* data = find(linear.name);
  if (data == nullptr) {
    *problem = fmt::format("{}: tensor {} is missing ({} tensors in {} files)", path_, linear.name,
                           index_.size(), files_.size());
    return std::nullopt;
  }
  const std::string& file = file_of(linear.name);
  if (!is_packed && (linear.format = plain_format(data->dtype())) != nullptr) return linear;

  const std::string inverse = prefix + ".weight_scale_inv";
  linear.scale_name =
      data->dtype() == DType::kF8E4M3 && contains(inverse) ? inverse : prefix + ".weight_scale";
  const Tensor* scale = find(linear.scale_name);
  if (scale == nullptr) {
    *problem = fmt::format("{}: {} is {} but has no {}; {}", file, linear.name,
                           data->shape_string(), linear.scale_name, kReadable);
    return std::nullopt;
  }
  if (contains(prefix + ".weight_zero_point")) {
    *problem = fmt::format("{}: {} has zero points ({}.weight_zero_point), which are not read; {}",
                           file, linear.name, prefix, kReadable);
    return std::nullopt;
  }
  if (data->dtype() == DType::kF8E4M3 && is_float(scale->dtype())) {
    const bool blocks = linear.scale_name == inverse || is_scale_of_blocks(*data, *scale);
    linear.format = blocks ? &formats::kFp8Block : &formats::kFp8;
  } else if (data->dtype() == DType::kU8 && scale->dtype() == DType::kU8) {
    linear.format = &formats::kMxfp4;
  } else if (data->dtype() == DType::kU8 && scale->dtype() == DType::kF8E4M3) {
    linear.format = &formats::kNvfp4;
    linear.global_divides = contains(prefix + ".weight_global_scale");
    linear.global_name =
        prefix + (linear.global_divides ? ".weight_global_scale" : ".weight_scale_2");
    if (!contains(linear.global_name)) {
      *problem = fmt::format(
          "{}: {} is NVFP4 but has no second-level scale: {} or .weight_global_scale is expected",
          file, linear.name, linear.global_name);
      return std::nullopt;
    }
  } else if (is_packed && data->dtype() == DType::kI32 && is_float(scale->dtype())) {
    linear.format = &formats::kInt4G32;
  }
  if (linear.format == nullptr) {
    *problem = fmt::format("{}: {} is {} with {} scales{}, which this version does not read; {}",
                           file, linear.name, data->shape_string(), dtype_name(scale->dtype()),
                           data->dtype() == DType::kI32 ? " (Quark's INT4, W4A8)" : "", kReadable);
    return std::nullopt;
  }
  return linear;
}

Checkpoint::Linear Checkpoint::inspect_linear(const std::string& prefix) const {
  std::string problem;
  const std::optional<Linear> linear = identify(prefix, &problem);
  if (!linear) fail("{}", problem);
  return *linear;
}

const WeightFormat* Checkpoint::format_of(const std::string& prefix) const {
  std::string ignored;
  const std::optional<Linear> linear = identify(prefix, &ignored);
  return linear ? linear->format : nullptr;
}

std::vector<std::string> Checkpoint::weight_tensors(const std::string& prefix) const {
  std::vector<std::string> names;
  for (const char* part : {".weight", ".weight_packed", ".weight_scale", ".weight_scale_inv",
                           ".weight_scale_2", ".weight_global_scale", ".weight_shape",
                           ".input_scale", ".input_scale_2", ".input_global_scale"}) {
    if (contains(prefix + part)) names.push_back(prefix + part);
  }
  return names;
}

// A finite, positive number stored as [] or [1].
float Checkpoint::positive_scalar(const std::string& name) const {
  const Tensor& tensor = *find(name);
  if (tensor.num_elements() != 1 || tensor.rank() > 1 || tensor.dtype() != DType::kF32) {
    fail("{}: {} is {}, expected one F32", file_of(name), name, tensor.shape_string());
  }
  float value = 0;
  std::memcpy(&value, tensor.raw(), sizeof value);
  if (!(value > 0) || !std::isfinite(value)) {
    fail("{}: {} is {}, expected a positive number", file_of(name), name, value);
  }
  return value;
}

// The second level as what it multiplies by, and the activations' static scale when there is one.
void Checkpoint::read_global_scales(const std::string& prefix, const Linear& linear,
                                    Weight* weight) const {
  const float stored = positive_scalar(linear.global_name);
  weight->global_scale = linear.global_divides ? 1.0f / stored : stored;
  // Weights are small, so the multiplier is far below 1: the other way round it was mistaken for
  // the reciprocal, and the model would speak noise.
  if (weight->global_scale > 1.0f) {
    log::warning("[checkpoint] {}: {} is {}: {} expected for a scale that {}", path_,
                 linear.global_name, stored, linear.global_divides ? "far above 1" : "far below 1",
                 linear.global_divides ? "divides" : "multiplies");
  }
  for (const char* name : {".input_scale", ".input_scale_2"}) {
    if (contains(prefix + name)) weight->input_scale = positive_scalar(prefix + name);
  }
  const std::string reciprocal = prefix + ".input_global_scale";
  if (contains(reciprocal)) weight->input_scale = 1.0f / positive_scalar(reciprocal);
}

void Checkpoint::check_stored_shape(const std::string& prefix, int64_t out, int64_t in) const {
  const std::string name = prefix + ".weight_shape";
  const Tensor* shape = find(name);
  if (shape == nullptr) return;
  int64_t stored[2] = {0, 0};
  for (int64_t i = 0; i < 2 && shape->num_elements() == 2; ++i) {
    if (shape->dtype() == DType::kI64) {
      std::memcpy(&stored[i], static_cast<const std::byte*>(shape->raw()) + 8 * i, 8);
    } else if (shape->dtype() == DType::kI32) {
      int32_t value = 0;
      std::memcpy(&value, static_cast<const std::byte*>(shape->raw()) + 4 * i, 4);
      stored[i] = value;
    }
  }
  if (stored[0] != out || stored[1] != in) {
    fail("{}: {} says [{}, {}] ({}), expected [{}, {}]", file_of(name), name, stored[0], stored[1],
         shape->shape_string(), out, in);
  }
}

// Scales as [scale_rows, scale_columns] of the format's dtype. One scale per row may come as [out]
// or [out, 1]; one for the whole tensor ([] or [1]) is repeated, which changes no value.
Tensor Checkpoint::scales_of(const Linear& linear, int64_t out, int64_t in) {
  const WeightFormat& format = *linear.format;
  if (format.block_in == 0) return {};
  const int64_t rows = format.scale_rows(out), columns = format.scale_columns(in);
  const Tensor scales = require(linear.scale_name);
  const bool matches =
      scales.rank() >= 1 && scales.dim(0) == rows &&
      ((scales.rank() == 2 && scales.dim(1) == columns) || (scales.rank() == 1 && columns == 1));
  const bool whole = format.block_in < 0 && scales.num_elements() == 1 && scales.rank() <= 2;
  const auto reject = [&](const std::string& why) {
    fail("{}: {} {}", file_of(linear.scale_name), linear.scale_name, why);
  };
  if (!matches && !whole) {
    reject(fmt::format("is {}, expected [{}, {}] for a weight [{}, {}] in {}",
                       scales.shape_string(), rows, columns, out, in, format.name));
  }
  const auto* bytes = static_cast<const uint8_t*>(scales.raw());
  if (format.scale_dtype == DType::kU8) {  // E8M0: 255 is NaN and poisons its block
    if (std::memchr(bytes, 255, scales.bytes()) != nullptr) {
      reject("has a scale that is not a number");
    }
    return scales;
  }
  if (format.scale_dtype == DType::kF8E4M3) {
    if (std::any_of(bytes, bytes + scales.bytes(), [](uint8_t b) { return (b & 0x7f) == 0x7f; })) {
      reject("has a scale that is not a number");
    }
    return scales;
  }
  const Tensor values = converted_to_f32(scales);
  if (!formats::all_finite({values.data<float>(), static_cast<size_t>(values.num_elements())})) {
    reject("has a scale that is not finite");
  }
  if (format.scale_dtype == DType::kBF16) return exact_bf16(linear.scale_name, scales, values);
  if (matches) return values.reshape({rows, columns});
  auto* repeated = reinterpret_cast<float*>(allocate(static_cast<size_t>(out) * sizeof(float)));
  std::fill(repeated, repeated + out, *values.data<float>());
  return Tensor::of(repeated, {out, 1});
}

Tensor Checkpoint::exact_bf16(const std::string& name, const Tensor& stored, const Tensor& values) {
  if (stored.dtype() == DType::kBF16) return stored;
  const auto count = static_cast<size_t>(values.num_elements());
  auto* rounded = reinterpret_cast<bf16*>(allocate(count * sizeof(bf16)));
  for (size_t i = 0; i < count; ++i) {
    rounded[i] = to_bf16(values.data<float>()[i]);
    if (to_float(rounded[i]) != values.data<float>()[i]) {
      fail("{}: {} is {} and {} is not a BF16 number; scales of int4-g32 must be", file_of(name),
           name, stored.shape_string(), values.data<float>()[i]);
    }
  }
  return Tensor::of(rounded, {stored.dim(0), stored.dim(1)});
}

Weight Checkpoint::weight(const std::string& prefix, int64_t out, int64_t in) {
  if (dummy_) return dummy_weight(prefix, out, in);
  const Linear linear = inspect_linear(prefix);
  const WeightFormat& format = *linear.format;
  if (!format.fits(in)) {
    fail("{}: {} cannot be {}: its {} inputs are not a multiple of {}", file_of(linear.name),
         linear.name, format.name, in, format.block_in);
  }
  const int64_t columns = format.data_columns(in);
  const Tensor& data = *find(linear.name);
  if (data.rank() != 2 || data.dim(0) != out || data.dim(1) != columns) {
    fail("{}: tensor {} is {}, expected [{}, {}] for a weight [{}, {}] in {}", file_of(linear.name),
         linear.name, data.shape_string(), out, columns, out, in, format.name);
  }
  check_stored_shape(prefix, out, in);
  Weight weight = {.format = &format,
                   .out = out,
                   .in = in,
                   .data = aligned(data),
                   .scales = scales_of(linear, out, in)};
  if (format.has_global_scale) read_global_scales(prefix, linear, &weight);
  return weight;
}

Weight Checkpoint::stored_weight(const std::string& prefix) {
  CHECK(!dummy_, "a dummy checkpoint stores nothing");
  const Linear linear = inspect_linear(prefix);
  const Tensor& data = *find(linear.name);
  if (data.rank() != 2) {
    fail("{}: tensor {} is {}, expected two dimensions", file_of(linear.name), linear.name,
         data.shape_string());
  }
  const int64_t bits = data.dim(1) * 8 * static_cast<int64_t>(dtype_bytes(data.dtype()));
  return weight(prefix, data.dim(0), bits / linear.format->bits_per_element);
}

Weight Checkpoint::dummy_weight(const std::string& prefix, int64_t out, int64_t in) {
  const WeightFormat* format = quant_config_.claimed(prefix);
  const bool linear = is_linear_weight_name(prefix + ".weight") && !prefix.ends_with("mlp.gate");
  if (format == nullptr || !linear) format = &formats::kBF16;
  if (!format->fits(in)) {
    fail("{}: {} cannot be {}: its {} inputs are not a multiple of {}", path_, prefix, format->name,
         in, format->block_in);
  }
  if (!repeats_dummies_) return made_up(*format, prefix, out, in);
  const float stddev = dummy_pattern_stddev(prefix);
  return patterns_.try_emplace({format, stddev}, *format, stddev)
      .first->second.weight(prefix, out, in);
}

Weight Checkpoint::made_up(const WeightFormat& format, const std::string& prefix, int64_t out,
                           int64_t in) {
  const size_t data_row =
      static_cast<size_t>(format.data_columns(in)) * dtype_bytes(format.data_dtype);
  const size_t scale_row =
      static_cast<size_t>(format.scale_columns(in)) * dtype_bytes(format.scale_dtype);
  const auto rows = static_cast<size_t>(out), width = static_cast<size_t>(in);
  std::byte* data = allocate(rows * data_row);
  const auto scale_rows = static_cast<size_t>(format.scale_rows(out));
  std::byte* scales = scale_row == 0 ? nullptr : allocate(scale_rows * scale_row);
  const formats::Recipe* recipe = formats::find_recipe(format);
  const auto step = static_cast<size_t>(format.block_out);
  const auto make_rows = [&](size_t begin, size_t end) {
    std::vector<float> values(step * width);
    for (size_t i = begin; i < end; i += step) {
      const size_t count = std::min(step, rows - i);
      for (size_t r = 0; r < count; ++r) {
        dummy_row(prefix, static_cast<int64_t>(i + r), {values.data() + r * width, width});
      }
      const std::span<std::byte> codes(data + i * data_row, count * data_row);
      if (recipe == nullptr) {
        format.encode_row({values.data(), width}, codes, {});
      } else {  // the global scale of nvfp4 stays 1
        recipe->encode({.rows = {values.data(), count * width},
                        .in = in,
                        .data = codes,
                        .scales = {scales + i / step * scale_row, scale_row}});
      }
    }
  };
  if (pool_ == nullptr) {
    make_rows(0, rows);
  } else {
    constexpr int64_t kFewValues = 1 << 16;  // of a task
    const int64_t rows_of_task = align_up(div_ceil(kFewValues, in), format.block_out);
    pool_->run(div_ceil(out, rows_of_task), [&](int64_t task, int) {
      const int64_t begin = task * rows_of_task;
      make_rows(static_cast<size_t>(begin),
                static_cast<size_t>(std::min(out, begin + rows_of_task)));
    });
  }
  Weight weight = {.format = &format,
                   .out = out,
                   .in = in,
                   .data = Tensor(data, format.data_dtype, {out, format.data_columns(in)}),
                   .scales = {}};
  if (scales != nullptr) {
    weight.scales =
        Tensor(scales, format.scale_dtype, {format.scale_rows(out), format.scale_columns(in)});
  }
  return weight;
}

}  // namespace eyrie::checkpoint
