// What the attention kernels are given: raw device pointers and sizes, no Tensor. Both sides
// include this, the .cu files that hold the kernels and attention.cpp, which fills it from ops'
// arguments. Spans point to device memory: a captured graph replays with other contents, so no
// launch depends on them. Strides are in elements. Launch functions enqueue on `stream` (a
// cudaStream_t).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/gpu/kernels_plain.h"

namespace eyrie::ops::gpu {

// The layout of ops::SequenceRows.
struct Sequence {
  int32_t first_row;
  int32_t num_rows;
  int32_t first_position;
  const int32_t* block_table;
};

struct Batch {
  const Sequence* sequences;
  int32_t num_sequences;
  int32_t num_rows;  // T, rows that only pad included
  int32_t max_rows;  // of one sequence
};

struct Cache {
  void* data;  // [num_slots, width]
  int64_t width;
  int32_t block_size;
  float scale;
  bool is_fp8;  // E4M3, or BF16
};

// [T, heads, columns], columns together.
struct Heads {
  void* data;
  int64_t row_stride;
  int64_t head_stride;
  Type type;  // F32 or BF16
};

struct Rotation {
  const int32_t* positions;  // [T]
  const double* inv_freq;    // [half]
  int32_t half;
  float magnitude;
  bool is_interleaved;
};

// x[t, h, :2·half] rotated in place.
struct Rope {
  Heads x;
  int64_t num_rows;
  int32_t num_heads;
  Rotation rotation;
};
void launch_rope(const Rope& args, void* stream);

// x[T, width] into the slots of the sequences' rows.
struct CacheWrite {
  Cache cache;
  Rows x;
  Batch batch;
};
void launch_cache_write(const CacheWrite& args, void* stream);

// kv[:, :latent] normalised, kv[:, latent:] rotated, kv to the cache; q[:, :q_width], when there is
// one, normalised. Neither latent nor q_width exceeds kMaxNormed; q and kv are of one type.
constexpr int kMaxNormed = 2048;
struct MlaCacheWrite {
  Cache cache;
  Rows kv;
  const float* norm_weight;
  float eps;
  int32_t latent;
  Rotation rotation;
  Batch batch;
  Rows q;  // data nullptr: none
  const float* q_norm_weight;
  float q_eps;
  int32_t q_width;
};
void launch_mla_cache_write(const MlaCacheWrite& args, void* stream);

// Attention of every shape: out[t, h] = Σ_j softmax_j(scale · (q0 · keys_j[:dim0] + q1 ·
// keys_j[dim0:])) · values_j[:dim_v]. Head h reads cache columns from h / (heads / kv_heads) ·
// kv_stride on. MLA: kv_heads 1, q1 the rope part, values the keys' first columns (shared_values).
// GQA: dim1 0.
struct Attention {
  Heads out, q0, q1;
  Cache keys, values;
  bool shared_values;
  Batch batch;
  int32_t num_heads, num_kv_heads;
  int32_t kv_stride;
  int32_t dim0, dim1, dim_v;
  float scale;
  bool is_deterministic;
  void* scratch;  // scratch_bytes(args) of it, 16-byte aligned
};

// One way to compute Attention. They stand in order of preference; the last takes every shape.
struct AttentionKernel {
  const char* name;
  bool (*can_run)(const Attention& args, int compute_capability);  // 90 for Hopper
  size_t (*scratch_bytes)(const Attention& args, int num_processors);
  void (*launch)(const Attention& args, int num_processors, void* stream);
};

// generic: plain loads and shuffles, on every device and for every shape.
const AttentionKernel& generic_attention();
#if !defined(EYRIE_HIP)
const AttentionKernel& mla_sm90();        // Kimi's MLA on Hopper
const AttentionKernel& attention_sm80();  // heads of 64 and 128, nano's MLA
#endif

}  // namespace eyrie::ops::gpu
