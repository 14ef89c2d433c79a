// The kernels behind the cpu backend: plain pointers and sizes, no Tensor, no threads, no
// allocation. Each table is compiled once per instruction set; the accessor returns the one in use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/layout.h"

namespace eyrie::ops::cpu {

// Tiles are at most this many rows on any target.
inline constexpr int kMaxTileRows = 16;

struct GemmKernels {
  int max_rows;  // rows of this target's largest register tile

  // packed[k * num_rows + r] = rows[r][k], times what the encoding's kernel wants its input scaled
  // by; k in [in, padded_in) becomes 0. Where bfloat16 meets bfloat16 each is rounded, and may be
  // half a word. num_rows ≤ max_rows.
  void (*pack)(const PanelMatrix& matrix, const float* const* rows, int num_rows, float* packed);

  // out[r][o] = Σ_k packed[k, r] · weight[o, k] for the outputs of panels [panel_begin, panel_end).
  void (*panels)(const PanelMatrix& matrix, const float* packed, int num_rows, int64_t panel_begin,
                 int64_t panel_end, float* const* out);
};
const GemmKernels& gemm_kernels();

// Four-bit weights × int8 activations (int8_layout.h).
struct Int8Kernels {
  int max_rows;  // at most, so that a tile's sums and activations stay in the first cache

  // Rounds n columns, whole groups, into their part of a record.
  void (*round)(Encoding encoding, const float* x, int64_t n, std::byte* record);

  // out[r][o] for the outputs of panels [panel_begin, panel_end). num_rows ≤ max_rows.
  void (*panels)(const PanelMatrix& matrix, const std::byte* const* records, int num_rows,
                 int64_t panel_begin, int64_t panel_end, float* const* out);
};
const Int8Kernels& int8_kernels();

// Query rows of one sequence. Heads come in groups that read the same keys and values.
struct AttendParams {
  // A query is [dim0 | dim1] from two places: q0 + row · q0_row + head · q0_head, and q1 likewise.
  const float* q0;
  const float* q1;
  int64_t q0_row, q0_head, q1_row, q1_head;
  int dim0, dim1, dim_v;
  float* out;
  int64_t out_row, out_head;
  // Elements of the cache's type. Row of slot s: keys at keys + first_column + s · key_stride,
  // values likewise; the next group's are kv_group columns further.
  const void* keys;
  const void* values;
  int64_t first_column;
  int64_t key_stride, value_stride, kv_group;
  const int32_t* block_table;
  int block_size;
  int num_rows, num_groups, heads_per_group;
  int64_t first_position;
  float scale;        // of the scores, the key cache's scale included
  float value_scale;  // of the output: the value cache's scale
};

struct AttentionKernels {
  void (*attend_bf16)(const AttendParams& params, float* scratch);
  void (*attend_fp8)(const AttendParams& params, float* scratch);
};
const AttentionKernels& attention_kernels();
// Floats of scratch that attend needs for that many queries (rows · heads) and groups.
int64_t attend_scratch(int64_t num_queries, int64_t num_groups, int64_t key_width,
                       int64_t value_width);

struct VectorKernels {
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* out);
  void (*add)(const float* x, int64_t n, float* residual);
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
  void (*sigmoid)(const float* x, int64_t n, float* out);
  // out = Σ_slot weights[slot] · rows[slot], slots ascending.
  void (*weighted_sum)(const float* const* rows, const float* weights, int num_slots, int64_t n,
                       float* out);
  // cos and sin of position · inv_freq[i], times magnitude.
  void (*rope_table)(double position, const double* inv_freq, int64_t half, float magnitude,
                     float* cosines, float* sines);
  void (*to_bf16)(const float* x, int64_t n, bf16* out);
  void (*from_bf16)(const bf16* x, int64_t n, float* out);
  // E4M3 codes of x / scale, saturating; what is not finite becomes NaN.
  void (*to_fp8)(const float* x, int64_t n, float scale, uint8_t* out);
  int32_t (*argmax)(const float* x, int64_t n);
  // Activation rounding of one row (reference/reference.h says the rules); out may alias x.
  void (*round_fp8)(const float* x, int64_t n, float* out);
  void (*round_mxfp4)(const float* x, int64_t n, float* out);
  void (*round_nvfp4)(const float* x, int64_t n, float input_scale, float* out);
  void (*round_fp8_blocks)(const float* x, int64_t n, float* out);
};
const VectorKernels& vector_kernels();

}  // namespace eyrie::ops::cpu
