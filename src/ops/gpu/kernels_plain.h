// What the plain kernels are given: raw device pointers and sizes, no Tensor. Both sides include
// this, the .cu files that hold the kernels and the .cpp files that fill it from ops' arguments.
// Launch functions enqueue on `stream` (a cudaStream_t) and return; zero rows launch nothing.
#pragma once

#include <cstdint>

namespace eyrie::ops::gpu {

enum class Type : int32_t { kF32, kBF16, kF16 };  // F16 only where something is read

// Rows of elements that lie together, `stride` elements from row to row.
struct Rows {
  void* data;
  int64_t stride;
  Type type;
};

// to[i, :] = from[index ? index[i] : i, :], rounded to to's type. An index outside the source's
// rows reads none of them: it gives row 0 (otherwise_first: token ids, where -1 stands for a fault
// that is reported elsewhere, and for padding) or NaN, which shows.
struct CopyRows {
  Rows to;
  Rows from;
  const int32_t* index;
  bool otherwise_first;
  int64_t num_rows;
  int64_t num_from_rows;
  int64_t width;
};
void launch_copy_rows(const CopyRows& args, void* stream);

// x[t, :] += y[t, :] (y given) or x[t, :] *= factor.
struct Update {
  Rows x;
  Rows y;
  float factor;
  int64_t num_rows;
  int64_t width;
};
void launch_add(const Update& args, void* stream);
void launch_scale(const Update& args, void* stream);

// out = x / sqrt(mean(x²) + eps) · weight, after residual += x when there is one (out is then of
// the new residual, F32).
struct RmsNorm {
  Rows out;
  Rows x;
  Rows residual;  // data nullptr: none
  const float* weight;
  float eps;
  int64_t num_rows;
  int64_t width;
};
void launch_rms_norm(const RmsNorm& args, void* stream);

// out[t, :] = silu(gate_up[t, :width]) · gate_up[t, width:]
struct SiluMul {
  Rows out;
  Rows gate_up;
  int64_t num_rows;
  int64_t width;
};
void launch_silu_mul(const SiluMul& args, void* stream);

constexpr int kMaxRoutedExperts = 1024;
constexpr int kMaxTopK = 32;
struct Route {
  int32_t* ids;    // [rows, top_k]
  float* weights;  // [rows, top_k]
  const float* logits;
  int64_t logits_stride;
  const float* bias;  // [num_experts]
  int32_t num_experts, top_k, n_group, topk_group;
  bool norm_topk_prob;
  float routed_scaling_factor;
  const int32_t* num_valid;  // rows from *num_valid on get no expert; nullptr: all are valid
  int64_t num_rows;
};
void launch_route(const Route& args, void* stream);

// The layout of ops::SampleRow.
struct SampleParams {
  uint64_t seed;
  int64_t position;
  float temperature;
};
// The best token of a part of a row. Scores are ordered_bits-like: unsigned in the order of
// doubles.
struct Candidate {
  uint64_t score;
  int32_t token;
  int32_t is_fault;
};
// rows nullptr: the argmax, in which an infinity is a number like others.
struct Select {
  int32_t* ids;
  int64_t ids_stride;
  const float* logits;
  int64_t logits_stride;
  const SampleParams* rows;
  const int32_t* id_map;  // nullptr: the choice itself
  Candidate* scratch;     // [num_rows, select_splits()]
  int64_t num_rows;
  int64_t width;
};
int64_t select_splits(int64_t num_rows, int64_t width);
void launch_select(const Select& args, void* stream);

// An error code of the runtime (0: fine) that tells whether this program has code for the device
// that is current.
int probe_kernel_image();

}  // namespace eyrie::ops::gpu
