// Plain matrix products of many rows, by NVIDIA's cuBLASLt. The library is looked up when first
// used (one program starts with and without it); where there is none, our own kernels run.
#pragma once

#include <cstdint>

namespace eyrie::ops::gpu {

// out[t, r] = Σ_k x[t, k] · w[r, k]; x and w bf16, sums float32, out bf16 or float32. Strides in
// elements. `batch` such products, `*_batch` elements apart.
struct PlainProduct {
  int64_t tokens, rows, inputs;
  const void* x;
  int64_t x_stride;
  const void* w;
  int64_t w_stride;
  void* out;
  int64_t out_stride;
  bool out_is_f32;
  int64_t batch = 1;
  int64_t x_batch = 0, w_batch = 0, out_batch = 0;
};

bool has_cublaslt();
// Opens the library and takes its workspace, so that a recorded step need not. False: there is
// none.
bool open_cublaslt();
// The algorithm is the library's first choice for the shape, found once. False: it knows none.
bool multiply_cublaslt(const PlainProduct& product, void* stream);

}  // namespace eyrie::ops::gpu
