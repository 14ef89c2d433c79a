#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_linear.h"
#include "ops/gpu/linear_decode.cuh"

// The twin of sm90/multiply.cuh that any GPU runs and tests compare with: a warp an output row, for
// kTokens tokens at a time, so that a weight is decoded once for them. No tensor cores.
namespace eyrie::ops::gpu {
namespace {

constexpr int kWarps = 8;
constexpr int kTokens = 8;

struct Span {
  PackedMatrix matrix;
  int64_t index;  // of the matrix among those of the product
  int32_t begin, count;
};

__device__ __forceinline__ void multiply_rows(const Multiply& m, const uint8_t* data, int64_t row,
                                              const bf16* const (&x)[kTokens], int count,
                                              float (&sums)[kTokens]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int i = 0; i < kTokens; ++i) sums[i] = 0.0f;
  // Rows are padded to a multiple of 8 inputs with zeros; activations are not.
  for (int64_t k = lane * 8; k < m.inputs; k += kWarpSize * 8) {
    float w[8];
    packed_values(data, m.layout, row, k, m.stride, w);
    const int64_t left = m.inputs - k;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if (i >= count) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j < left) sums[i] += w[j] * to_float(x[i][k + j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kTokens; ++i) sums[i] = warp_sum(sums[i]);
}

__device__ __forceinline__ void multiply_span(const Multiply& m, const Span& span, int64_t output) {
  const PackedMatrix matrix = span.matrix;
  const int64_t outputs = m.paired ? m.rows / 2 : m.rows;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const auto scale_of = [&](int64_t row) {
    return matrix.row_scale == nullptr ? 1.0f : matrix.row_scale[row];
  };
  for (int first = 0; first < span.count; first += kTokens) {
    const int count = span.count - first < kTokens ? span.count - first : kTokens;
    const bf16* x[kTokens];
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int64_t position = span.begin + first + (i < count ? i : 0);
      const int64_t row = m.x_rows == nullptr ? position : m.x_rows[position];
      x[i] = static_cast<const bf16*>(m.x) + span.index * m.x_matrix_stride + row * m.x_stride;
    }
    float sums[kTokens], ups[kTokens];
    multiply_rows(m, matrix.data, output, x, count, sums);
    if (m.paired) multiply_rows(m, matrix.data, output + outputs, x, count, ups);
    if (lane != 0) continue;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if (i >= count) continue;
      float value = sums[i] * scale_of(output);
      if (m.paired) value = value / (1.0f + __expf(-value)) * (ups[i] * scale_of(output + outputs));
      const int64_t at =
          span.index * m.out_matrix_stride + (span.begin + first + i) * m.out_stride + output;
      if (m.out_is_f32) {
        static_cast<float*>(m.out)[at] = value;
      } else {
        static_cast<bf16*>(m.out)[at] = from_float<bf16>(value);
      }
    }
  }
}

__global__ void multiply_generic_kernel(Multiply m) {
  start_dependents();
  wait_for_inputs();
  const int64_t output =
      static_cast<int64_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  if (output >= (m.paired ? m.rows / 2 : m.rows)) return;
  if (m.tiles == nullptr) {
    const auto begin = static_cast<int32_t>(blockIdx.z) * kMaxTokenTile;
    const auto left = static_cast<int32_t>(m.num_tokens) - begin;
    const auto index = static_cast<int64_t>(blockIdx.y);
    multiply_span(m,
                  {m.matrices == nullptr ? m.matrix : m.matrices[index], index, begin,
                   left < kMaxTokenTile ? left : kMaxTokenTile},
                  output);
    return;
  }
  for (int32_t i = static_cast<int32_t>(blockIdx.y); i < *m.num_tiles;
       i += static_cast<int32_t>(gridDim.y)) {
    const TokenTile tile = m.tiles[i];
    multiply_span(m, {tile.matrices[m.which], 0, tile.begin, tile.count}, output);
  }
}

// 8 inputs a thread.
__global__ void unpack_kernel(PackedMatrix matrix, Layout layout, int64_t rows, int64_t inputs,
                              int64_t stride, bf16* to, int64_t to_stride) {
  start_dependents();
  wait_for_inputs();
  const int64_t packs = (inputs + 7) / 8;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * packs) return;
  const int64_t row = i / packs, k = i % packs * 8;
  const float scale = matrix.row_scale == nullptr ? 1.0f : matrix.row_scale[row];
  float values[8];
  packed_values(matrix.data, layout, row, k, stride, values);
#pragma unroll
  for (int j = 0; j < 8; ++j) values[j] *= scale;
  store_floats(to + row * to_stride + k, values);
}

__global__ void round_rows_kernel(bf16* to, int64_t to_stride, const float* from,
                                  int64_t from_stride, int64_t rows, int64_t width) {
  start_dependents();
  wait_for_inputs();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * width) return;
  to[i / width * to_stride + i % width] =
      from_float<bf16>(from[i / width * from_stride + i % width]);
}

dim3 over(int64_t count, int threads) {
  return dim3(static_cast<unsigned>((count + threads - 1) / threads));
}

}  // namespace

void launch_multiply_generic(const Multiply& m, void* stream) {
  const int64_t outputs = m.paired ? m.rows / 2 : m.rows;
  dim3 grid = over(outputs, kWarps);
  if (m.tiles == nullptr) {
    grid.y = static_cast<unsigned>(m.num_matrices);
    grid.z = static_cast<unsigned>((m.num_tokens + kMaxTokenTile - 1) / kMaxTokenTile);
  } else {
    grid.y = static_cast<unsigned>(m.max_tiles < 256 ? m.max_tiles : 256);
  }
  launch("multiply (generic)", multiply_generic_kernel, grid, dim3(kWarps * kWarpSize), 0, stream,
         m);
}

void launch_unpack(const PackedMatrix& matrix, Layout layout, int64_t rows, int64_t inputs,
                   int64_t stride, void* to, int64_t to_stride, void* stream) {
  launch("unpacking a weight", unpack_kernel, over(rows * ((inputs + 7) / 8), 256), dim3(256), 0,
         stream, matrix, layout, rows, inputs, stride, static_cast<bf16*>(to), to_stride);
}

void launch_round_rows(void* to, int64_t to_stride, const float* from, int64_t from_stride,
                       int64_t rows, int64_t width, void* stream) {
  launch("rounding rows", round_rows_kernel, over(rows * width, 256), dim3(256), 0, stream,
         static_cast<bf16*>(to), to_stride, from, from_stride, rows, width);
}

}  // namespace eyrie::ops::gpu
