// The tensors a quantized linear layer has in a file, by producer: names, dtypes, shapes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/writer.h"
#include "formats/recipe.h"

namespace eyrie::quantize {

struct LayerLayout {
  using Item = checkpoint::SafetensorsWriter::Item;
  Item data;
  Item scales;
  std::vector<Item> global;  // none or one: F32, one number
  std::vector<Item> input;   // none or one: F32, one number, the activations' global scale
  std::vector<Item> shape;   // none or one: I64 [2]
  std::vector<Item> items() const;
};

// is_calibrated: with the activations' static scale, where the recipe has one.
LayerLayout layout_of(const formats::Recipe& recipe, const std::string& module, int64_t out,
                      int64_t in, bool is_calibrated);

}  // namespace eyrie::quantize
