// What the kernels of linear layers and experts are given: raw device pointers and sizes. The .cu
// files hold kernels and launch functions, the .cpp files fill these structs from ops' arguments.
//
// How weights lie. BF16 is row-major, rows padded to a multiple of 32 and `stride` elements apart.
// Every other encoding is cut into groups of 32 rows x `unit` inputs (128 of four bits, 64 of
// eight), group after group along the inputs, so that a row group is one contiguous stream; a group
// is two tiles of 16 rows, one unit each:
//
//   unit = 1024 bytes of codes, then its scales
//     codes   [half][lane][16 bytes]: lane = 4·g + t of a warp holds row g + 8·half; a word of four
//             bits (two words of eight) holds inputs 32·j + 8·t … + 8 of the unit, j = 0, 1, …
//     scales  MXFP4  [16][4] u8: exponent field of the bf16 multiplier, E8M0 byte + 94
//             NVFP4  [16][8] u8: E4M3 with five exponent bits (its subnormals made normal)
//             INT4   [16][4] bf16
//             FP8 in blocks: one f32 (and 12 bytes of nothing)
//
// That is the order in which mma.m16n8k16 takes its A operand when the inputs of a step are
// permuted so that a lane's lie together; the activations are read under the same permutation. A
// word of four bits holds its codes where few instructions make bf16 of them (linear_codes.h).
#pragma once

#include <cstdint>

#include "ops/gpu/kernels_plain.h"

#if defined(__CUDACC__) || defined(__HIPCC__)
#define EYRIE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define EYRIE_HOST_DEVICE inline
#endif

namespace eyrie::ops::gpu {

enum class Layout : int32_t { kBF16, kMxfp4, kNvfp4, kInt4, kFp8, kFp8Block };
constexpr int kNumLayouts = 6;
constexpr int kRowTile = 16;
constexpr int kRowGroup = 32;

EYRIE_HOST_DEVICE constexpr int unit_inputs(Layout layout) {
  return layout == Layout::kBF16 || layout == Layout::kFp8 || layout == Layout::kFp8Block ? 64
                                                                                          : 128;
}
EYRIE_HOST_DEVICE constexpr int unit_bytes(Layout layout) {
  switch (layout) {
    case Layout::kBF16:
      return 16 * 64 * 2;
    case Layout::kMxfp4:
      return 1024 + 64;
    case Layout::kNvfp4:
    case Layout::kInt4:
      return 1024 + 128;
    case Layout::kFp8:
      return 1024;
    case Layout::kFp8Block:
      return 1024 + 16;
  }
  return 0;
}
// The largest E8M0 byte whose multiplier has an exponent field left (255 is NaN and stays it).
constexpr int kLargestE8m0 = 160;
// What sums are multiplied by: four-bit floats are decoded 2^-32 small so that every scale that
// occurs (up to 2^33) fits a bf16.
EYRIE_HOST_DEVICE constexpr float layout_scale(Layout layout) {
  return layout == Layout::kMxfp4 || layout == Layout::kNvfp4 ? 4294967296.0f : 1.0f;
}

// One matrix in its layout. row_scale: [rows] f32 or nullptr; multiplies the row's sum.
struct PackedMatrix {
  const uint8_t* data;
  const float* row_scale;
};

// ---- preparing ----------------------------------------------------------------------------------

enum class Encoding : int32_t { kF32, kBF16, kF16, kFp8, kFp8Block, kMxfp4, kNvfp4, kInt4 };

// Bytes as they lie in a file, on the device already, into rows first_row … of a packed matrix
// whose memory is zeroed where rows or inputs are padding. With layout kBF16 any encoding is
// decoded.
struct PackWeight {
  Encoding encoding;
  Layout layout;
  const void* codes;
  const void* scales;
  int64_t scale_columns;
  float global_scale;  // NVFP4
  int64_t source_row;  // FP8 blocks: row of codes in the matrix that the scales belong to
  int64_t rows, inputs;
  uint8_t* to;
  float* row_scale;  // of the whole packed matrix; nullptr where the layout has none
  int64_t first_row;
  int64_t stride;  // BF16: elements from row to row; else units of a row group
};
void launch_pack(const PackWeight& args, void* stream);

// ---- multiplying --------------------------------------------------------------------------------

// Tokens are taken in groups of at most this many by the widest kernel.
constexpr int kMaxTokenTile = 64;

// A run of activation rows that meet one expert: its matrices gate/up and down.
struct TokenTile {
  int32_t begin;  // first position
  int32_t count;
  PackedMatrix matrices[2];
};

// out[p, :] = x[x_rows ? x_rows[p] : p, :] · matrixᵀ for the positions p of each tile; or, paired,
// out[p, i] = silu(sum of row i) · (sum of row i + rows / 2), rows / 2 outputs.
struct Multiply {
  Layout layout;
  const PackedMatrix* matrices;  // [num_matrices], on the device; nullptr: `matrix` alone
  PackedMatrix matrix;
  int64_t rows, inputs;
  int64_t stride;  // as in PackWeight
  bool paired;

  const void* x;  // bf16
  int64_t x_stride, x_matrix_stride;
  const int32_t* x_rows;
  void* out;
  bool out_is_f32;
  int64_t out_stride, out_matrix_stride;

  // Tiles made on the device (tile_tokens is their largest count), walked by blocks that draw tasks
  // from *next_task; or, with tiles == nullptr, num_matrices x positions 0 … num_tokens.
  const TokenTile* tiles;
  int32_t which;  // of a tile's matrices
  const int32_t* num_tiles;
  int32_t* next_task;
  int64_t max_tiles;
  int64_t num_matrices, num_tokens;
  int32_t tile_tokens;
  int32_t splits;    // blocks that share a matrix's inputs; 0: the kernel chooses
  bool fixed_order;  // the result of a row never depends on how many rows there are
};

// A second product over the same tiles, of what the first writes, in the same launch.
struct Chained {
  Multiply m;
  int32_t* tiles_done;  // [max_tiles], zero
};

// The tensor-core kernel of Hopper (sm90/): false when it cannot run this (alignment, sizes).
bool can_multiply_sm90(const Multiply& args);
void launch_multiply_sm90(const Multiply& args, void* stream);
// Both are of one layout and of the same tiles.
void launch_chain_sm90(const Multiply& first, const Chained& second, void* stream);
// The twin that any GPU runs.
void launch_multiply_generic(const Multiply& args, void* stream);
// to[r, :] = row r as bf16, `to_stride` elements apart (a multiple of 8, at least the inputs): for
// libraries that take plain matrices.
void launch_unpack(const PackedMatrix& matrix, Layout layout, int64_t rows, int64_t inputs,
                   int64_t stride, void* to, int64_t to_stride, void* stream);

// ---- experts ------------------------------------------------------------------------------------

// Sorts the pairs (token, slot) by expert: positions 0 … of which token_of says the token,
// position_of the pair's place (-1: no expert). With a shared expert, positions tokens · top_k + t
// follow for token t. Tiles of at most tile_tokens positions; resets their counters and the two of
// tasks.
struct Sort {
  const int32_t* ids;  // [tokens, top_k], -1: none
  int32_t num_tokens, top_k, num_experts;
  const PackedMatrix* gate_up;  // [num_experts], on the device
  const PackedMatrix* down;
  bool has_shared;
  PackedMatrix shared_gate_up, shared_down;
  int32_t tile_tokens;
  TokenTile* tiles;
  int32_t* num_tiles;
  int32_t* tiles_done;
  int32_t* next_task;  // [2]
  int32_t* token_of;
  int32_t* position_of;
};
constexpr int kMaxSortedExperts = 1024;
void launch_sort(const Sort& args, void* stream);
// The router and the sorting of its ids of few tokens in one launch: false when it cannot run this.
bool can_route_and_sort(const Route& route, const Sort& sort);
void launch_route_and_sort(const Route& route, const Sort& sort, void* stream);

// out[t, :] = Σ_slot weights[t, slot] · y[position_of[t, slot], :] + shared[t, :]
struct Combine {
  void* out;
  bool out_is_f32;
  int64_t out_stride;
  const void* y;  // bf16
  int64_t y_stride;
  const int32_t* position_of;
  const float* weights;
  const void* shared;  // bf16 or nullptr
  int64_t shared_stride;
  int32_t num_tokens, top_k;
  int64_t width;
};
void launch_combine(const Combine& args, void* stream);

// to[r, :] = bf16(from[r, :])
void launch_round_rows(void* to, int64_t to_stride, const float* from, int64_t from_stride,
                       int64_t rows, int64_t width, void* stream);

}  // namespace eyrie::ops::gpu
