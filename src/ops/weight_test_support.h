// What the tests of weight kernels share: a weight of any format with bytes that may be spoilt, and
// a linear layer in one call.
#pragma once

#include <span>
#include <vector>

#include "formats/recipe.h"
#include "ops/test_support.h"

namespace eyrie::ops {

// Owns a weight's bytes; they may be changed before it is prepared.
struct Owned {
  std::vector<std::byte> data, scales;
  formats::Weight weight;

  Owned(const formats::WeightFormat& format, int64_t out, int64_t in) {
    const auto bytes = [](int64_t count, DType dtype) {
      return static_cast<size_t>(count) * dtype_bytes(dtype);
    };
    data.resize(bytes(out * format.data_columns(in), format.data_dtype));
    weight = {.format = &format,
              .out = out,
              .in = in,
              .data = Tensor(data.data(), format.data_dtype, {out, format.data_columns(in)}),
              .scales = {}};
    if (format.block_in == 0) return;
    const int64_t rows = format.scale_rows(out), columns = format.scale_columns(in);
    scales.resize(bytes(rows * columns, format.scale_dtype));
    weight.scales = Tensor(scales.data(), format.scale_dtype, {rows, columns});
  }
  template <typename T>
  T* scales_as() {
    return reinterpret_cast<T*>(scales.data());
  }
  void fill_data(uint8_t byte) { std::fill(data.begin(), data.end(), std::byte{byte}); }
};

// As the format's first producer writes it: normal weights of a layer's size.
inline Owned encoded(const formats::WeightFormat& format, int64_t out, int64_t in, uint32_t seed) {
  Owned result(format, out, in);
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  std::vector<float> values(static_cast<size_t>(out * in));
  for (float& x : values) x = normal(generator);
  const formats::Recipe* recipe = formats::find_recipe(format);
  if (recipe == nullptr) {
    const size_t row_bytes = result.data.size() / static_cast<size_t>(out);
    for (size_t o = 0; o < static_cast<size_t>(out); ++o) {
      format.encode_row({values.data() + o * static_cast<size_t>(in), static_cast<size_t>(in)},
                        {result.data.data() + o * row_bytes, row_bytes}, {});
    }
    return result;
  }
  const formats::EncodedMatrix matrix = formats::encode_matrix(*recipe, values, out, in);
  std::copy_n(matrix.data.data(), result.data.size(), result.data.begin());
  std::memcpy(result.scales.data(), matrix.weight.scales.raw(), result.scales.size());
  result.weight.global_scale = matrix.weight.global_scale;
  return result;
}

inline Matrix multiply(const Backend& backend, std::span<const formats::Weight> weights,
                       const Matrix& x,
                       ActivationQuantization activation = ActivationQuantization::kOff) {
  const PreparedWeight w = prepare(backend.ctx(), weights, activation);
  Matrix out(x.rows(), w.out, w.out + 3);
  linear(backend.ctx(), {.out = out.tensor(), .x = x.tensor(), .weight = &w});
  return out;
}

inline Matrix multiply(const Backend& backend, const Owned& weight, const Matrix& x,
                       ActivationQuantization activation = ActivationQuantization::kOff) {
  return multiply(backend, {&weight.weight, 1}, x, activation);
}

}  // namespace eyrie::ops
