#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_linear.h"
#include "ops/gpu/linear_codes.h"
#include "ops/gpu/linear_decode.cuh"

// Weights on their way from a file's encoding to a layout: one thread a word or a scale, reads
// coalesced, so that the copy from the host is what loading costs. These kernels let no successor
// start before their end: kernels of a step read weights before they wait.
namespace eyrie::ops::gpu {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kE8m0Offset =
    94;  // the multiplier's exponent field of E8M0 byte 0: 2^-127 · 2^94

__device__ __forceinline__ int64_t global_thread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// 8 inputs of a row a thread.
__global__ void pack_codes_kernel(PackWeight a) {
  wait_for_inputs();
  const int64_t words = a.inputs / 8;
  const int64_t i = global_thread();
  if (i >= a.rows * words) return;
  const int64_t row = i / words, k = i % words * 8, to_row = a.first_row + row;
  auto* to = reinterpret_cast<uint32_t*>(a.to + word_of(a.layout, to_row, k, a.stride));
  if (a.encoding == Encoding::kFp8 || a.encoding == Encoding::kFp8Block) {
    const auto* from = static_cast<const uint32_t*>(a.codes) + i * 2;
    to[0] = pack_fp8(from[0]);
    to[1] = pack_fp8(from[1]);
    return;
  }
  const uint32_t codes = static_cast<const uint32_t*>(a.codes)[i];
  if (a.layout == Layout::kInt4) {
    to[0] = pack_int4(codes);
    return;
  }
  // A block whose E4M3 scale is zero is a block of zeros: the layout's scales have no zero.
  const bool is_zero =
      a.layout == Layout::kNvfp4 &&
      (static_cast<const uint8_t*>(a.scales)[row * a.scale_columns + k / 16] & 0x7fu) == 0;
  to[0] = is_zero ? 0 : pack_fp4(codes);
}

__global__ void pack_scales_kernel(PackWeight a) {
  wait_for_inputs();
  const int64_t i = global_thread();
  if (a.layout == Layout::kFp8) {
    if (i < a.rows) a.row_scale[a.first_row + i] = static_cast<const float*>(a.scales)[i];
    return;
  }
  const int group = a.layout == Layout::kNvfp4 ? 16 : a.layout == Layout::kFp8Block ? 64 : 32;
  const int64_t groups = (a.inputs + group - 1) / group;
  if (i >= a.rows * groups) return;
  const int64_t row = i / groups, k = i % groups * group, to_row = a.first_row + row;
  uint8_t* const to = a.to + unit_of(a.layout, to_row, k, a.stride) + 1024;
  const int64_t in_unit = k % unit_inputs(a.layout) / group, tile_row = to_row % kRowTile;
  if (a.layout == Layout::kMxfp4) {
    const uint32_t byte = static_cast<const uint8_t*>(a.scales)[row * a.scale_columns + k / 32];
    const bool fits = byte <= kLargestE8m0;
    to[tile_row * 4 + in_unit] = static_cast<uint8_t>(fits ? byte + kE8m0Offset : 255u);
  } else if (a.layout == Layout::kNvfp4) {
    uint32_t code = static_cast<const uint8_t*>(a.scales)[row * a.scale_columns + k / 16] & 0x7fu;
    if (code == 0) code = 0x38;  // 1, of zeros
    uint32_t exponent = code >> 3, mantissa = code & 7u;
    if (exponent == 0) {  // mantissa · 2^-9
      exponent = 1;
      while (mantissa < 8) {
        mantissa *= 2;
        --exponent;
      }
      mantissa -= 8;
    }
    to[tile_row * 8 + in_unit] = static_cast<uint8_t>((exponent + 3u) << 3 | mantissa);
    if (k == 0) a.row_scale[to_row] = a.global_scale;
  } else if (a.layout == Layout::kInt4) {
    reinterpret_cast<uint16_t*>(to)[tile_row * 4 + in_unit] =
        static_cast<const uint16_t*>(a.scales)[row * a.scale_columns + k / 32];
  } else if (tile_row == 0) {  // FP8 in blocks: all rows of a tile share theirs
    *reinterpret_cast<float*>(to) =
        static_cast<const float*>(a.scales)[(a.source_row + row) / 128 * a.scale_columns + k / 128];
  }
}

__device__ float encoded_value(const PackWeight& a, int64_t row, int64_t k) {
  const int64_t i = row * a.inputs + k;
  switch (a.encoding) {
    case Encoding::kF32:
      return static_cast<const float*>(a.codes)[i];
    case Encoding::kBF16:
      return to_float(static_cast<const bf16*>(a.codes)[i]);
    case Encoding::kF16:
      return to_float(static_cast<const f16*>(a.codes)[i]);
    case Encoding::kFp8:
      return e4m3_value(static_cast<const uint8_t*>(a.codes)[i]) *
             static_cast<const float*>(a.scales)[row];
    case Encoding::kFp8Block:
      return e4m3_value(static_cast<const uint8_t*>(a.codes)[i]) *
             static_cast<const float*>(
                 a.scales)[(a.source_row + row) / 128 * a.scale_columns + k / 128];
    default:
      break;
  }
  const uint32_t code = (static_cast<const uint8_t*>(a.codes)[i / 2] >> (4 * (i & 1))) & 15u;
  const int64_t scale_row = row * a.scale_columns;
  if (a.encoding == Encoding::kMxfp4) {
    return e2m1_value(code) * e8m0_value(static_cast<const uint8_t*>(a.scales)[scale_row + k / 32]);
  }
  if (a.encoding == Encoding::kNvfp4) {
    const float scale = e4m3_value(static_cast<const uint8_t*>(a.scales)[scale_row + k / 16]);
    return e2m1_value(code) * (scale * a.global_scale);
  }
  return static_cast<float>(static_cast<int>(code) - 8) *
         to_float(static_cast<const bf16*>(a.scales)[scale_row + k / 32]);
}

__global__ void decode_kernel(PackWeight a) {
  wait_for_inputs();
  const int64_t i = global_thread();
  if (i >= a.rows * a.inputs) return;
  const int64_t row = i / a.inputs, k = i % a.inputs;
  reinterpret_cast<bf16*>(a.to)[(a.first_row + row) * a.stride + k] =
      from_float<bf16>(encoded_value(a, row, k));
}

// BF16 as it is, 8 elements a thread.
__global__ void copy_bf16_kernel(PackWeight a) {
  wait_for_inputs();
  const int64_t packs = a.inputs / 8;
  const int64_t i = global_thread();
  if (i >= a.rows * packs) return;
  const int64_t row = i / packs, k = i % packs * 8;
  *reinterpret_cast<uint4*>(a.to + ((a.first_row + row) * a.stride + k) * 2) =
      static_cast<const uint4*>(a.codes)[i];
}

void launch_over(const char* what, void (*kernel)(PackWeight), int64_t count,
                 const PackWeight& args, void* stream) {
  launch(what, kernel, dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)),
         dim3(kThreads), 0, stream, args);
}

}  // namespace

void launch_pack(const PackWeight& a, void* stream) {
  if (a.layout == Layout::kBF16) {
    const bool is_plain = a.encoding == Encoding::kBF16 && a.inputs % 8 == 0;
    if (is_plain) {
      launch_over("packing bf16", copy_bf16_kernel, a.rows * (a.inputs / 8), a, stream);
    } else {
      launch_over("decoding a weight", decode_kernel, a.rows * a.inputs, a, stream);
    }
    return;
  }
  launch_over("packing a weight", pack_codes_kernel, a.rows * (a.inputs / 8), a, stream);
  const int64_t groups = a.layout == Layout::kFp8     ? 1
                         : a.layout == Layout::kNvfp4 ? (a.inputs + 15) / 16
                                                      : (a.inputs + 31) / 32;
  launch_over("packing scales", pack_scales_kernel, a.rows * groups, a, stream);
}

}  // namespace eyrie::ops::gpu
