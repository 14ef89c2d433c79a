// A weight matrix in its file's encoding, and the table of encodings. One file and one table row
// per format; everything else (loader, sizes, quantizer, inspect, reference GEMM, tests, docs)
// walks the table. This room is the only one that knows bits.
//
// A weight is [out_features, in_features]; a format cuts it into blocks of block_out rows (1 but
// for FP8 in 128x128 blocks) and block_in columns that share a scale. Formats are per tensor, never
// per model. What the bytes mean is here; how producers choose them is formats/recipe.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tensor/tensor.h"

namespace eyrie::formats {

struct WeightFormat;

// Views into a mapped file or a Buffer; who holds the Weight keeps the memory alive.
struct Weight {
  const WeightFormat* format = nullptr;
  int64_t out = 0;
  int64_t in = 0;
  Tensor data;    // the format's packed elements
  Tensor scales;  // empty when the format has none
  // NVFP4's second level: multiplies every scale. Files that store its reciprocal have been turned.
  float global_scale = 1.0f;
  // NVFP4: static global scale of the activations that meet the weight; 0: found at run time.
  float input_scale = 0.0f;
  // First row of `data` in the matrix the scales belong to (formats with block_out > 1 only).
  int64_t first_row = 0;
  bool empty() const { return format == nullptr; }
};

// How activations meet the weight on hardware that has the format's arithmetic; `emulate` applies
// it. No format asks for kInt8 or kBf16: they are how a CPU multiplies four-bit and bfloat16
// weights (ops/ops.h).
enum class ActivationRounding { kNone, kFp8PerToken, kMxfp4, kNvfp4, kFp8Blocks, kInt8, kBf16 };

struct WeightFormat {
  std::string_view name;     // "bf16", "fp8", "mxfp4": the quantizer's scheme name too
  std::string_view summary;  // one line for tables and docs
  DType data_dtype;          // dtype of the packed tensor in the file
  DType scale_dtype;         // meaningful when block_in > 0
  int bits_per_element;
  int block_in;  // columns that share a scale; 0 = no scales, -1 = the whole row
  ActivationRounding activation;
  int block_out = 1;              // rows that share a scale
  bool has_global_scale = false;  // Weight::global_scale is part of the encoding

  // Shapes in the file.
  int64_t data_columns(int64_t in) const {
    return in * bits_per_element / (8 * static_cast<int64_t>(dtype_bytes(data_dtype)));
  }
  int64_t scale_columns(int64_t in) const {
    return block_in > 0 ? (in + block_in - 1) / block_in : block_in < 0 ? 1 : 0;
  }
  int64_t scale_rows(int64_t out) const { return (out + block_out - 1) / block_out; }
  // Blocks that share bytes cannot be cut; those of one element a byte may be, at the last column.
  bool fits(int64_t in) const {
    return block_in <= 0 || bits_per_element == 8 || in % block_in == 0;
  }

  // Row `row` as float32: out[in]. The reference every kernel is compared with.
  void (*decode_row)(const Weight& weight, int64_t row, std::span<float> out);
  // One row of float32 into the encoding, as the bytes lie in the file: data[data_columns] elements
  // of data_dtype, scales[scale_columns] of scale_dtype. Scaled formats need finite input (there is
  // no agreed encoding of a block with Inf or NaN), so the caller checks with all_finite() first.
  // The format's default recipe with a global scale of 1; nullptr when rows share scales.
  void (*encode_row)(std::span<const float> row, std::span<std::byte> data,
                     std::span<std::byte> scales);
};

extern const WeightFormat kF32;
extern const WeightFormat kBF16;
extern const WeightFormat kF16;
extern const WeightFormat kFp8;  // E4M3 (fn), one float32 scale per output row
extern const WeightFormat
    kMxfp4;  // OCP MX: E2M1 pairs, low nibble first; one E8M0 scale per 32 columns
extern const WeightFormat kFp8Block;  // E4M3, one float32 scale per 128x128 block
extern const WeightFormat kNvfp4;     // E2M1 pairs, one E4M3 scale per 16 columns, a global one
extern const WeightFormat kInt4G32;   // signed 4 bits + 8, one bfloat16 scale per 32 columns

std::span<const WeightFormat* const> all_formats();
const WeightFormat* find_format(std::string_view name);  // nullptr when unknown

// Views a plain tensor ([out, in], F32/BF16/F16) as a Weight.
Weight plain_weight(const Tensor& tensor);

// Rows [begin, begin + count) of a weight of any encoding.
Weight weight_rows(const Weight& weight, int64_t begin, int64_t count);

size_t weight_bytes(const Weight& weight);  // data and scales

bool all_finite(std::span<const float> values);

// Scalar codecs, used by kernels' tables and by activation emulation. Rounding is to nearest, ties
// to even; out of range saturates.
// What `emulate` does to a row of activations, in place: quantized and back, scales found on the
// way. The reference for kernels. NVFP4 takes the weight's static input scale when it has one
// (> 0), else the row's own largest magnitude / 2688.
void round_activation_nvfp4(std::span<float> row, float input_scale);
// Per 128 columns, max(amax, 1e-4) / 448, as DeepSeek's kernels do.
void round_activation_fp8_blocks(std::span<float> row);

float decode_fp8_e4m3(uint8_t bits);
uint8_t encode_fp8_e4m3(float value);  // ±448 at most; NaN stays NaN
float decode_fp4_e2m1(uint8_t nibble);
uint8_t encode_fp4_e2m1(float value);    // ±6 at most; what rounds to zero is code 0, never -0
float decode_e8m0(uint8_t bits);         // 2^(bits - 127); 255 is NaN
uint8_t mxfp4_scale(float amax);         // E8M0 scale of a block whose largest magnitude is amax
uint8_t encode_fp4_signed(float value);  // as encode_fp4_e2m1, but -0 stays -0 (code 8)
float decode_f16(uint16_t bits);
uint16_t encode_f16(float value);  // beyond 65504 is infinity, as hardware does it

// Row `row` of a tensor [rows, columns] whose elements are stored as T.
template <typename T>
const T* row_of(const Tensor& tensor, int64_t row) {
  return static_cast<const T*>(tensor.raw()) + row * tensor.stride(0);
}

}  // namespace eyrie::formats
