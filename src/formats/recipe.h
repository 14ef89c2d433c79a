// How weights are written: for each scheme the producers whose files users hold, bit by bit as
// their own quantizers choose scales and round (docs/decisions/0005-quantizer-arithmetic.md). A
// recipe says bytes; names of tensors and config fields are the quantizer's business.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "formats/weight.h"

namespace eyrie::formats {

struct EncodeArgs {
  // [num_rows, in], finite; num_rows is the format's block_out, or what is left at the matrix's
  // end.
  std::span<const float> rows = {};
  int64_t in = 0;
  std::span<std::byte> data = {};    // [num_rows, data_columns]
  std::span<std::byte> scales = {};  // [1, scale_columns] of the recipe's scale_dtype
  DType source = DType::kF32;        // what the values were stored in: some producers compute in it
  float stored_global = 1.0f;        // Recipe::stored_global of the whole tensor
};

struct Recipe {
  std::string_view producer;  // "quark", "modelopt", "compressed-tensors" …
  const WeightFormat* format;
  DType scale_dtype;  // as this producer stores it; the format's own once loaded
  void (*encode)(const EncodeArgs& args);
  // The second-level scale this producer stores for a tensor whose largest magnitude is amax;
  // nullptr when the format has none.
  float (*stored_global)(float amax, DType source);
  bool global_divides = false;  // what is stored is the reciprocal
  // The format's activations have a static second level too: stored_global of the largest
  // magnitude that calibration saw. Engines made for the producer's files want it.
  bool has_input_scale() const { return stored_global != nullptr; }
};

// The first recipe of a format is its default.
std::span<const Recipe> all_recipes();
// nullptr when there is none; an empty producer means the default.
const Recipe* find_recipe(const WeightFormat& format, std::string_view producer = {});

// A whole matrix [out, in] with memory of its own, in a recipe's bytes (tests, made-up weights).
struct EncodedMatrix {
  Buffer data, scales;
  Weight weight;  // scales of a dtype that is not the format's are converted
};
EncodedMatrix encode_matrix(const Recipe& recipe, std::span<const float> values, int64_t out,
                            int64_t in, DType source = DType::kF32);

}  // namespace eyrie::formats
