// How multiply.cuh's kernel is cut up: its compile-time shape, tasks, the ring of stages.
#pragma once

#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_linear.h"
#include "ops/gpu/sm90/cluster.cuh"

namespace eyrie::ops::gpu::sm90 {

constexpr int kConsumers = 8;
constexpr int kRt = 2;  // row tiles of a warp

template <Layout kLayout_, int kMaxNt_, int kKu_, int kWm_, int kWk_, int kBlocksPerSm_>
struct Config {
  static constexpr Layout kLayout = kLayout_;
  static constexpr int kMaxNt = kMaxNt_, kWm = kWm_, kWk = kWk_, kBlocksPerSm = kBlocksPerSm_;
  static_assert(kWm * kWk == kConsumers);
  static constexpr bool kIsPlain = kLayout == Layout::kBF16;
  static constexpr int kKu = kKu_;  // inputs of a warp in a stage
  static_assert(kIsPlain || kKu == unit_inputs(kLayout));
  static constexpr int kBlocks = kKu / 32;
  static constexpr int kKs = kKu * kWk;  // inputs of a stage
  static constexpr int kTiles = kRt * kWm;
  static constexpr int kXStride = kKs * 2 + 64;
  static constexpr int kGroups = kTiles / 2;  // row groups of a stage
  static_assert(kWm % 2 == 0);
  static constexpr int kGroupBytes =
      kIsPlain ? kRowGroup * kXStride : 2 * kWk * unit_bytes(kLayout);
  static constexpr int kWeightBytes = kGroups * kGroupBytes;
  static constexpr int kPieces = kWk > 2 ? 2 : 1;  // copies of a group's part of a stage
  // Where unit wk of a stage's row tile s lies.
  static __device__ __forceinline__ uint32_t unit_at(int s, int wk) {
    return static_cast<uint32_t>(s / 2 * kGroupBytes + (wk * 2 + s % 2) * unit_bytes(kLayout));
  }
  static constexpr int kStageBytes = kWeightBytes + kMaxNt * 8 * kXStride;
  static constexpr int kReduceBytes = (kWk - 1) * kWm * kRt * 32 * 16;
  static constexpr int kHeadBytes = 1024;  // barriers and tasks
  static constexpr int kBudget = (kBlocksPerSm == 1 ? 227 * 1024 : 112 * 1024);
  static constexpr int kStagesThatFit = (kBudget - kHeadBytes - kReduceBytes) / kStageBytes;
  static constexpr int kStages = kStagesThatFit < 8 ? kStagesThatFit : 8;
  static_assert(kStages >= 2);
  // The sums of a split task lie where the stages were.
  static_assert(kWm * kRt * kMaxNt * 512 <= kStages * kStageBytes);
  static constexpr int kSharedBytes = kHeadBytes + kReduceBytes + kStages * kStageBytes;

  static constexpr int kFollowers = kMaxNt > 2 ? 2 : 1;
  static constexpr int kThreads = (kConsumers + 1 + kFollowers) * 32;
  // Arrivals that fill a stage: the leader's word, and every lane that copies 16 bytes at a time.
  static constexpr int kFullArrivals = 1 + 32 * (kFollowers + (kIsPlain ? 1 : 0));
  static constexpr int kEmptyArrivals = 32 * kConsumers;  // that free it: every lane that reads
};

struct Task {
  int32_t index;                   // of the matrix, or of the tile where tiles are given
  int32_t begin, count, row_task;  // count -1: no more tasks
  const float* row_scale;
  int32_t ks;     // of the stage
  int32_t which;  // of the problem's products
};

// One product, or a chain of two over the same tiles: all tasks of the first, then those of the
// second, each of which waits until its tile's outputs of the first are there. Tasks are drawn in
// that order, so what one waits for is already in the hands of a block that waits for nothing.
struct Problem {
  Multiply m[2];
  int32_t row_tasks[2];  // tasks down the rows of a matrix
  int32_t num_products;
  int32_t splits;       // blocks of a cluster: each takes its share of the inputs
  int32_t token_tiles;  // of a matrix, without device tiles
  int32_t* tiles_done;  // of a chain: warps that have written their part of a tile
};

// The stages of a product's inputs that are this block's.
struct Share {
  int begin, end;
};
template <typename C>
__device__ __forceinline__ Share share_of(const Problem& p, int which) {
  const int count = static_cast<int>((p.m[which].inputs + C::kKs - 1) / C::kKs);
  if (p.splits == 1) return {0, count};
  const auto rank = static_cast<int>(cluster_rank());
  return {count * rank / p.splits, count * (rank + 1) / p.splits};
}

// A block's place in its ring of stages.
template <typename C>
struct Ring {
  uint32_t full, empty, posted, stages;  // shared addresses
  Task* tasks;
  int slot = 0;
  uint32_t parity = 0;
  __device__ uint32_t barrier(uint32_t of) const { return of + static_cast<uint32_t>(slot) * 8; }
  __device__ uint32_t stage() const {
    return stages + static_cast<uint32_t>(slot * C::kStageBytes);
  }
  __device__ void advance() {
    if (++slot == C::kStages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

template <typename C>
__device__ __forceinline__ int stage_inputs(int inputs, int ks) {
  const int left = inputs - ks * C::kKs;
  return left < C::kKs ? left : C::kKs;
}

}  // namespace eyrie::ops::gpu::sm90
