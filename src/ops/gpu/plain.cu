#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_plain.h"

// Kernels of one pass over rows. What they cost is their bytes and a launch, so all of them move 8
// elements a thread (16 or 32 bytes) where widths and addresses allow, one element where they
// don't.
namespace eyrie::ops::gpu {
namespace {

constexpr int kPack = 8;

bool is_packed(const Rows& rows) {
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride % kPack == 0;
}

// Calls fn with a value of the element type. Kernels are compiled for the pairs that occur only.
template <typename Fn>
void with_type(Type type, Fn fn) {
  switch (type) {
    case Type::kF32:
      return fn(float{});
    case Type::kBF16:
      return fn(bf16{});
    case Type::kF16:
      return fn(f16{});
  }
}
template <typename Fn>
void with_activation_type(Type type, Fn fn) {
  if (type == Type::kF32) {
    fn(float{});
  } else {
    fn(bf16{});
  }
}

// Elementwise kernels: a row is blockIdx.x, and blockIdx.y · blockDim.x threads walk its packs.
struct Walk {
  dim3 grid, block;
};
Walk walk(int64_t num_rows, int64_t num_packs) {
  const int64_t threads = num_packs <= 64 ? 64 : num_packs <= 128 ? 128 : 256;
  return {dim3(static_cast<unsigned>(num_rows),
               static_cast<unsigned>((num_packs + threads - 1) / threads)),
          dim3(static_cast<unsigned>(threads))};
}
__device__ __forceinline__ int64_t walked_pack() {
  return static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
}

template <typename To, typename From, int kCount>
__global__ void copy_rows_kernel(CopyRows a) {
  start_dependents();
  wait_for_inputs();
  const int64_t column = walked_pack() * kCount;
  if (column >= a.width) return;
  const int64_t row = blockIdx.x;
  int64_t source = a.index == nullptr ? row : a.index[row];
  bool is_inside = source >= 0 && source < a.num_from_rows;
  if (!is_inside && a.otherwise_first) {
    source = 0;
    is_inside = true;
  }
  float x[kCount];
  if (is_inside) {
    load_floats(static_cast<const From*>(a.from.data) + source * a.from.stride + column, x);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = as_float(0x7fc00000u);
  }
  store_floats(static_cast<To*>(a.to.data) + row * a.to.stride + column, x);
}

template <typename X, typename Y, int kCount>
__global__ void add_kernel(Update a) {
  start_dependents();
  wait_for_inputs();
  const int64_t column = walked_pack() * kCount;
  if (column >= a.width) return;
  X* const to = static_cast<X*>(a.x.data) + blockIdx.x * a.x.stride + column;
  float x[kCount], y[kCount];
  load_floats(to, x);
  load_floats(static_cast<const Y*>(a.y.data) + blockIdx.x * a.y.stride + column, y);
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] += y[i];
  store_floats(to, x);
}

template <typename X, int kCount>
__global__ void scale_kernel(Update a) {
  start_dependents();
  wait_for_inputs();
  const int64_t column = walked_pack() * kCount;
  if (column >= a.width) return;
  X* const to = static_cast<X*>(a.x.data) + blockIdx.x * a.x.stride + column;
  float x[kCount];
  load_floats(to, x);
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] *= a.factor;
  store_floats(to, x);
}

template <typename Out, typename In, int kCount>
__global__ void silu_mul_kernel(SiluMul a) {
  start_dependents();
  wait_for_inputs();
  const int64_t column = walked_pack() * kCount;
  if (column >= a.width) return;
  const In* const row = static_cast<const In*>(a.gate_up.data) + blockIdx.x * a.gate_up.stride;
  float gate[kCount], up[kCount];
  load_floats(row + column, gate);
  load_floats(row + a.width + column, up);
#pragma unroll
  for (int i = 0; i < kCount; ++i) gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
  store_floats(static_cast<Out*>(a.out.data) + blockIdx.x * a.out.stride + column, gate);
}

// One block a row. kPacks packs a thread stay in registers between the sum and the result.
template <typename Out, typename X, bool kAdds, int kPacks>
__global__ void __launch_bounds__(kMaxBlock) rms_norm_kernel(RmsNorm a) {
  __shared__ float shared[kMaxBlock / kWarpSize];
  start_dependents();
  float weight[kPack];
  // One pack's is read before the wait, as no kernel of a step writes it; more have no registers.
  if (kPacks == 1 && threadIdx.x * kPack < a.width) {
    load_floats(a.weight + threadIdx.x * kPack, weight);
  }
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const X* const x_row = static_cast<const X*>(a.x.data) + row * a.x.stride;
  float* const residual =
      kAdds ? static_cast<float*>(a.residual.data) + row * a.residual.stride : nullptr;
  float x[kPacks][kPack];
  float sum = 0.0f;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t column = (int64_t{p} * blockDim.x + threadIdx.x) * kPack;
    if (column >= a.width) break;
    load_floats(x_row + column, x[p]);
    if (kAdds) {
      float old[kPack];
      load_floats(residual + column, old);
#pragma unroll
      for (int i = 0; i < kPack; ++i) x[p][i] += old[i];
      store_floats(residual + column, x[p]);
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum += x[p][i] * x[p][i];
  }
  const float mean = block_sum(sum, shared) / static_cast<float>(a.width);
  const float factor = 1.0f / sqrtf(mean + a.eps);
  Out* const out = static_cast<Out*>(a.out.data) + row * a.out.stride;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t column = (int64_t{p} * blockDim.x + threadIdx.x) * kPack;
    if (column >= a.width) break;
    if (kPacks > 1) load_floats(a.weight + column, weight);
#pragma unroll
    for (int i = 0; i < kPack; ++i) x[p][i] = x[p][i] * factor * weight[i];
    store_floats(out + column, x[p]);
  }
}

// Any width and alignment: reads the row twice. A thread writes what it alone reads, and after the
// barrier in block_sum, so out may be x.
template <typename Out, typename X, bool kAdds>
__global__ void __launch_bounds__(256) rms_norm_any_kernel(RmsNorm a) {
  __shared__ float shared[kMaxBlock / kWarpSize];
  start_dependents();
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const X* const x_row = static_cast<const X*>(a.x.data) + row * a.x.stride;
  float* const residual =
      kAdds ? static_cast<float*>(a.residual.data) + row * a.residual.stride : nullptr;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
    float x = to_float(x_row[i]);
    if (kAdds) residual[i] = x += residual[i];
    sum += x * x;
  }
  const float mean = block_sum(sum, shared) / static_cast<float>(a.width);
  const float factor = 1.0f / sqrtf(mean + a.eps);
  Out* const out = static_cast<Out*>(a.out.data) + row * a.out.stride;
  for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
    const float x = kAdds ? residual[i] : to_float(x_row[i]);
    out[i] = from_float<Out>(x * factor * a.weight[i]);
  }
}

template <typename Out, typename X, bool kAdds>
void launch_rms_norm_of(const RmsNorm& a, void* stream) {
  const dim3 grid(static_cast<unsigned>(a.num_rows));
  const bool packed = a.width % kPack == 0 && is_packed(a.out) && is_packed(a.x) &&
                      (!kAdds || is_packed(a.residual)) &&
                      reinterpret_cast<uintptr_t>(a.weight) % 16 == 0;
  const int64_t num_packs = a.width / kPack;
  const auto block = [&](int64_t packs_a_thread) {
    const int64_t threads = (num_packs + packs_a_thread - 1) / packs_a_thread;
    return dim3(static_cast<unsigned>((threads + kWarpSize - 1) / kWarpSize * kWarpSize));
  };
  if (!packed || num_packs > 4 * kMaxBlock) {
    launch("rms_norm", rms_norm_any_kernel<Out, X, kAdds>, grid, dim3(256), 0, stream, a);
  } else if (num_packs <= kMaxBlock) {
    launch("rms_norm", rms_norm_kernel<Out, X, kAdds, 1>, grid, block(1), 0, stream, a);
  } else {
    launch("rms_norm", rms_norm_kernel<Out, X, kAdds, 4>, grid, block(4), 0, stream, a);
  }
}

__global__ void probe_kernel() {}

}  // namespace

void launch_copy_rows(const CopyRows& a, void* stream) {
  if (a.num_rows == 0 || a.width == 0) return;
  const bool packed = a.width % kPack == 0 && is_packed(a.to) && is_packed(a.from);
  const Walk w = walk(a.num_rows, packed ? a.width / kPack : a.width);
  with_type(a.from.type, [&](auto from) {
    with_activation_type(a.to.type, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      launch("copy_rows",
             packed ? copy_rows_kernel<To, From, kPack> : copy_rows_kernel<To, From, 1>, w.grid,
             w.block, 0, stream, a);
    });
  });
}

void launch_add(const Update& a, void* stream) {
  if (a.num_rows == 0 || a.width == 0) return;
  const bool packed = a.width % kPack == 0 && is_packed(a.x) && is_packed(a.y);
  const Walk w = walk(a.num_rows, packed ? a.width / kPack : a.width);
  with_activation_type(a.x.type, [&](auto x) {
    with_activation_type(a.y.type, [&](auto y) {
      using X = decltype(x);
      using Y = decltype(y);
      launch("add", packed ? add_kernel<X, Y, kPack> : add_kernel<X, Y, 1>, w.grid, w.block, 0,
             stream, a);
    });
  });
}

void launch_scale(const Update& a, void* stream) {
  if (a.num_rows == 0 || a.width == 0) return;
  const bool packed = a.width % kPack == 0 && is_packed(a.x);
  const Walk w = walk(a.num_rows, packed ? a.width / kPack : a.width);
  with_activation_type(a.x.type, [&](auto x) {
    using X = decltype(x);
    launch("scale_rows", packed ? scale_kernel<X, kPack> : scale_kernel<X, 1>, w.grid, w.block, 0,
           stream, a);
  });
}

void launch_silu_mul(const SiluMul& a, void* stream) {
  if (a.num_rows == 0 || a.width == 0) return;
  const bool packed = a.width % kPack == 0 && is_packed(a.out) && is_packed(a.gate_up);
  const Walk w = walk(a.num_rows, packed ? a.width / kPack : a.width);
  with_activation_type(a.out.type, [&](auto out) {
    with_activation_type(a.gate_up.type, [&](auto in) {
      using Out = decltype(out);
      using In = decltype(in);
      launch("silu_mul", packed ? silu_mul_kernel<Out, In, kPack> : silu_mul_kernel<Out, In, 1>,
             w.grid, w.block, 0, stream, a);
    });
  });
}

void launch_rms_norm(const RmsNorm& a, void* stream) {
  if (a.num_rows == 0 || a.width == 0) return;
  with_activation_type(a.out.type, [&](auto out) {
    with_activation_type(a.x.type, [&](auto x) {
      using Out = decltype(out);
      using X = decltype(x);
      if (a.residual.data != nullptr) {
        launch_rms_norm_of<Out, X, true>(a, stream);
      } else {
        launch_rms_norm_of<Out, X, false>(a, stream);
      }
    });
  });
}

int probe_kernel_image() {
  GPU(FuncAttributes) attributes;
  return static_cast<int>(
      GPU(FuncGetAttributes)(&attributes, reinterpret_cast<const void*>(probe_kernel)));
}

}  // namespace eyrie::ops::gpu
