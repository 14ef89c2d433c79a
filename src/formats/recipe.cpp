#include "formats/recipe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "formats/encoders.h"

namespace eyrie::formats {
namespace {

// Defaults first. FP8's own division is decision 5; everything else follows a producer exactly.
constexpr std::array<Recipe, 11> kRecipes = {{
    {"quark", &kMxfp4, DType::kU8, encode_mxfp4, nullptr},
    {"compressed-tensors", &kMxfp4, DType::kU8, encode_mxfp4_signed, nullptr},
    {"eyrie", &kFp8, DType::kF32, encode_fp8, nullptr},
    {"quark", &kFp8, DType::kF32, encode_fp8_quark, nullptr},
    {"compressed-tensors", &kFp8, DType::kBF16, encode_fp8_compressed_tensors, nullptr},
    {"modelopt", &kNvfp4, DType::kF8E4M3, encode_nvfp4_modelopt, nvfp4_global_multiplier},
    {"quark", &kNvfp4, DType::kF8E4M3, encode_nvfp4_quark, nvfp4_global_quark},
    {"compressed-tensors", &kNvfp4, DType::kF8E4M3, encode_nvfp4_compressed_tensors,
     nvfp4_global_divisor, true},
    {"deepseek", &kFp8Block, DType::kF32, encode_fp8_block, nullptr},
    {"transformers", &kFp8Block, DType::kF32, encode_fp8_block_transformers, nullptr},
    {"compressed-tensors", &kInt4G32, DType::kBF16, encode_int4_compressed_tensors, nullptr},
}};

}  // namespace

std::span<const Recipe> all_recipes() { return kRecipes; }

const Recipe* find_recipe(const WeightFormat& format, std::string_view producer) {
  for (const Recipe& recipe : kRecipes) {
    if (recipe.format == &format && (producer.empty() || recipe.producer == producer)) {
      return &recipe;
    }
  }
  return nullptr;
}

EncodedMatrix encode_matrix(const Recipe& recipe, std::span<const float> values, int64_t out,
                            int64_t in, DType source) {
  const WeightFormat& format = *recipe.format;
  CHECK(format.fits(in) && static_cast<int64_t>(values.size()) == out * in);
  const size_t data_row =
      static_cast<size_t>(format.data_columns(in)) * dtype_bytes(format.data_dtype);
  const size_t scale_row =
      static_cast<size_t>(format.scale_columns(in)) * dtype_bytes(recipe.scale_dtype);
  const int64_t scale_rows = format.scale_rows(out), scale_columns = format.scale_columns(in);

  EncodedMatrix result;
  result.data = Buffer(data_row * static_cast<size_t>(out));
  result.scales = Buffer(scale_row * static_cast<size_t>(scale_rows));
  EncodeArgs args = {.in = in, .source = source};
  if (recipe.stored_global != nullptr) {
    float amax = 0.0f;
    for (const float x : values) amax = std::max(amax, std::fabs(x));
    args.stored_global = recipe.stored_global(amax, source);
  }
  for (int64_t row = 0; row < out; row += format.block_out) {
    const auto begin = static_cast<size_t>(row);
    const auto count = static_cast<size_t>(std::min<int64_t>(format.block_out, out - row));
    const size_t block = begin / static_cast<size_t>(format.block_out);
    args.rows = values.subspan(begin * static_cast<size_t>(in), count * static_cast<size_t>(in));
    args.data = {result.data.data() + begin * data_row, count * data_row};
    args.scales = {result.scales.data() + block * scale_row, scale_row};
    recipe.encode(args);
  }
  if (recipe.scale_dtype != format.scale_dtype) {
    CHECK(recipe.scale_dtype == DType::kBF16 && format.scale_dtype == DType::kF32);
    Buffer converted(static_cast<size_t>(scale_rows * scale_columns) * sizeof(float));
    for (int64_t i = 0; i < scale_rows * scale_columns; ++i) {
      converted.as<float>()[i] = to_float(result.scales.as<bf16>()[i]);
    }
    result.scales = std::move(converted);
  }
  result.weight = {
      .format = &format,
      .out = out,
      .in = in,
      .data = Tensor(result.data.data(), format.data_dtype, {out, format.data_columns(in)}),
      .scales = Tensor(result.scales.data(), format.scale_dtype, {scale_rows, scale_columns}),
      .global_scale = recipe.global_divides ? 1.0f / args.stored_global : args.stored_global};
  return result;
}

}  // namespace eyrie::formats
