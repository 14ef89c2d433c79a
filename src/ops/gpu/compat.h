// The only file that knows a vendor's names: CUDA's or HIP's runtime as GPU(name), and what kernels
// need under one name on both. Included by .cu files and by the .cpp files that call the runtime
// (those see the host half only); never by a header that other rooms read.
//
// Every kernel takes part in programmatic dependent launch: it begins with
//     start_dependents(); wait_for_inputs();
// so that its launch overlaps the end of the kernel before it. What it does between or before the
// two must not read or write memory of other kernels of the step (weights are fine). All kernels
// must do so, also those that need nothing of their predecessor: a kernel that ends without having
// waited would let its successors run ahead of what is still being written before it.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(EYRIE_HIP)
#include <hip/hip_runtime_api.h>
#define GPU(name) hip##name
#else
#include <cuda_runtime_api.h>
#define GPU(name) cuda##name
#endif

namespace eyrie::ops::gpu {

// A launch or a runtime call failed: throws eyrie::Error with the call, the runtime's words and,
// for an error that kernels before it may have caused, that.
[[noreturn]] void fail_runtime(const char* what, int code);
inline void check_runtime(GPU(Error_t) code, const char* what) {
  if (code != GPU(Success)) fail_runtime(what, static_cast<int>(code));
}

// Where a step's time goes: with EYRIE_GPU_TRACE=N each launch in its scope is timed by itself (it
// waits for the device, so recordings must be off) and the last N are shown at the end, summed by
// name and shape. Otherwise it is one comparison.
class LaunchTrace {
 public:
  // what: a literal; the three numbers tell launches of one name apart.
  LaunchTrace(const char* what, int64_t x, int64_t y, int64_t z, void* stream)
      : what_(is_on() ? what : nullptr), shape_{x, y, z}, stream_(stream) {
    if (what_ != nullptr) begin();
  }
  ~LaunchTrace() {
    if (what_ != nullptr) end();
  }
  LaunchTrace(const LaunchTrace&) = delete;
  LaunchTrace& operator=(const LaunchTrace&) = delete;

 private:
  static bool is_on();
  void begin();
  void end();
  const char* what_;
  int64_t shape_[3];
  void* stream_;
};

// EYRIE_GPU_PDL=0 launches every kernel after the end of the one before: to find a missing wait.
bool overlaps_launches();

}  // namespace eyrie::ops::gpu

#if defined(__CUDACC__) || defined(__HIPCC__)
#if defined(EYRIE_HIP)
#include <hip/hip_runtime.h>
#endif

namespace eyrie::ops::gpu {

#if defined(EYRIE_HIP)
constexpr int kWarpSize = 64;  // gfx9's wavefront
using LaneMask = uint64_t;
#else
constexpr int kWarpSize = 32;
using LaneMask = uint32_t;
#endif
constexpr LaneMask kAllLanes = ~LaneMask{0};
constexpr int kMaxBlock = 1024;

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

// ---- order between kernels ----------------------------------------------------------------------

// The next kernel may be launched now; it still waits for the whole of this one in wait_for_inputs.
__device__ __forceinline__ void start_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Everything that kernels before this one wrote can be read after this.
__device__ __forceinline__ void wait_for_inputs() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- lanes --------------------------------------------------------------------------------------

template <typename T>
__device__ __forceinline__ T shuffle_xor(T value, int lane_mask) {
#if defined(EYRIE_HIP)
  return __shfl_xor(value, lane_mask, kWarpSize);
#else
  return __shfl_xor_sync(kAllLanes, value, lane_mask);
#endif
}
template <typename T>
__device__ __forceinline__ T shuffle(T value, int lane) {
#if defined(EYRIE_HIP)
  return __shfl(value, lane, kWarpSize);
#else
  return __shfl_sync(kAllLanes, value, lane);
#endif
}
__device__ __forceinline__ LaneMask ballot(bool predicate) {
#if defined(EYRIE_HIP)
  return __ballot(predicate);
#else
  return __ballot_sync(kAllLanes, predicate);
#endif
}
__device__ __forceinline__ void sync_warp() {
#if defined(EYRIE_HIP)
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
#else
  __syncwarp();
#endif
}

// The same value in every lane; the order of summation is fixed.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
  return x;
}
__device__ __forceinline__ uint32_t warp_max(uint32_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kAllLanes, x);
#else
#pragma unroll
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    const uint32_t other = shuffle_xor(x, mask);
    x = other > x ? other : x;
  }
  return x;
#endif
}
__device__ __forceinline__ uint32_t warp_min(uint32_t x) { return ~warp_max(~x); }

// Sum over the block, the same in every thread. `shared` holds kMaxBlock / kWarpSize floats; the
// block's size is a multiple of kWarpSize. Ends without a barrier: synchronise before reusing it.
__device__ __forceinline__ float block_sum(float x, float* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  x = warp_sum(x);
  if (num_warps == 1) return x;
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  return warp_sum(lane < num_warps ? shared[lane] : 0.0f);
}

// ---- numbers ------------------------------------------------------------------------------------

__device__ __forceinline__ float as_float(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ uint32_t as_bits(float x) { return __float_as_uint(x); }

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return as_float(uint32_t{x.bits} << 16); }
__device__ __forceinline__ float to_float(f16 x) {
#if defined(EYRIE_HIP)
  union {
    uint16_t bits;
    _Float16 value;
  } half{x.bits};
  return static_cast<float>(half.value);
#else
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
#endif
}

// Rounded to nearest even; NaN stays NaN.
template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  bf16 rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(x));
  return rounded;
#else
  const uint32_t u = as_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
#endif
}

// Unsigned integers in the order of the floats: -inf is lowest but for 0, which no number maps to;
// -0 equals +0; NaN, of either sign, is highest.
__device__ __forceinline__ uint32_t ordered_bits(float x) {
  if (x != x) return 0xffffffffu;
  const uint32_t u = as_bits(x + 0.0f);
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

// kCount values that lie together, by 16-byte accesses where they are that long.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack {
  T value[kCount];
};
template <int kCount, typename T>
__device__ __forceinline__ void load_floats(const T* from, float (&to)[kCount]) {
  const auto pack = *reinterpret_cast<const Pack<T, kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = to_float(pack.value[i]);
}
template <int kCount, typename T>
__device__ __forceinline__ void store_floats(T* to, const float (&from)[kCount]) {
  Pack<T, kCount> pack;
#pragma unroll
  for (int i = 0; i < kCount; ++i) pack.value[i] = from_float<T>(from[i]);
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

// ---- launching ----------------------------------------------------------------------------------

// Enqueues the kernel; nothing for an empty grid. `what` names it in an error.
template <typename... Params, typename... Args>
void launch(const char* what, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
            void* stream, Args... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const LaunchTrace trace(what, grid.x, grid.y, grid.z, stream);
#if defined(EYRIE_HIP)
  hipLaunchKernelGGL(kernel, grid, block, static_cast<uint32_t>(shared_bytes),
                     static_cast<hipStream_t>(stream), static_cast<Params>(args)...);
  check_runtime(hipGetLastError(), what);
#else
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap;
  config.numAttrs = overlaps_launches() ? 1 : 0;
  check_runtime(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), what);
#endif
}

// Lets the kernel have this much dynamic shared memory (beyond 48 KB it must be asked for).
template <typename... Params>
void allow_shared_memory(const char* what, void (*kernel)(Params...), size_t bytes) {
  check_runtime(
      GPU(FuncSetAttribute)(reinterpret_cast<const void*>(kernel),
                            GPU(FuncAttributeMaxDynamicSharedMemorySize), static_cast<int>(bytes)),
      what);
}

}  // namespace eyrie::ops::gpu
#endif
