#include "quantize/layout.h"

namespace eyrie::quantize {

std::vector<LayerLayout::Item> LayerLayout::items() const {
  std::vector<Item> all = {data, scales};
  all.insert(all.end(), global.begin(), global.end());
  all.insert(all.end(), input.begin(), input.end());
  all.insert(all.end(), shape.begin(), shape.end());
  return all;
}

LayerLayout layout_of(const formats::Recipe& recipe, const std::string& module, int64_t out,
                      int64_t in, bool is_calibrated) {
  const formats::WeightFormat& format = *recipe.format;
  const bool compressed = recipe.producer == "compressed-tensors";
  const bool packed = compressed && format.bits_per_element < 8;
  const std::string weight = module + ".weight";
  LayerLayout layout;
  layout.data = {
      packed ? weight + "_packed" : weight, format.data_dtype, {out, format.data_columns(in)}};
  layout.scales = {format.block_out > 1 ? weight + "_scale_inv" : weight + "_scale",
                   recipe.scale_dtype,
                   {format.scale_rows(out), format.scale_columns(in)}};
  // One scale a row is a vector in Quark's files.
  if (format.block_in < 0 && !compressed) layout.scales.shape = {out};
  if (format.has_global_scale && recipe.global_divides) {
    layout.global.push_back({weight + "_global_scale", DType::kF32, {1}});
  } else if (format.has_global_scale) {
    layout.global.push_back({weight + "_scale_2", DType::kF32, {}});
  }
  if (is_calibrated && recipe.has_input_scale()) {
    // Quark's two levels are two quantizers: the second's scale is the one that is static. vLLM's
    // Quark loader asks for it by this name.
    if (recipe.global_divides) {
      layout.input.push_back({module + ".input_global_scale", DType::kF32, {1}});
    } else {
      const char* name = recipe.producer == "quark" ? ".input_scale_2" : ".input_scale";
      layout.input.push_back({module + name, DType::kF32, {}});
    }
  }
  if (format.data_dtype == DType::kI32) {
    layout.shape.push_back({weight + "_shape", DType::kI64, {2}});
  }
  return layout;
}

}  // namespace eyrie::quantize
