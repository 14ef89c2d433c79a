// What fills the stages of multiply.cuh's kernel: a leading warp that walks the tasks and brings
// their weights, and the warps behind it that bring the activations.
#pragma once

#include "ops/gpu/sm80/copy.cuh"
#include "ops/gpu/sm90/async.cuh"
#include "ops/gpu/sm90/multiply_shape.cuh"

namespace eyrie::ops::gpu::sm90 {

// ---- leader: tasks and weights ------------------------------------------------------------------

template <typename C>
struct Leader {
  const Problem& p;
  Ring<C> ring;
  int lane;
  Task task;
  const uint8_t* weights;
  int64_t stride;
  int all_inputs;
  int all_groups;  // of the matrix
  bool paired;
  int num_groups;  // row groups of the task that exist

  // Row group s of a stage is this one of the matrix.
  __device__ bool group_of(int s, int* group) const {
    if (paired) {
      const int first = task.row_task * (C::kGroups / 2) + s % (C::kGroups / 2);
      *group = first + s / (C::kGroups / 2) * (all_groups / 2);
      return first < all_groups / 2;
    }
    *group = task.row_task * C::kGroups + s;
    return *group < all_groups;
  }

  __device__ void run(const Task& t, const PackedMatrix& matrix) {
    const Multiply& m = p.m[t.which];
    task = t;
    task.row_scale = matrix.row_scale;
    weights = matrix.data;
    stride = m.stride;
    all_inputs = static_cast<int>(m.inputs);
    all_groups = static_cast<int>(m.rows + kRowGroup - 1) / kRowGroup;
    paired = m.paired;
    num_groups = 0;
    int group;
    for (int s = 0; s < C::kGroups; ++s) num_groups += group_of(s, &group) ? 1 : 0;
    const Share share = share_of<C>(p, t.which);
    for (int ks = share.begin; ks < share.end; ++ks) fill(ks);
  }

  __device__ void fill(int ks) {
    wait_barrier(ring.barrier(ring.empty), ring.parity ^ 1);
    const int inputs = stage_inputs<C>(all_inputs, ks);
    const int units = (inputs + C::kKu - 1) / C::kKu;
    const uint32_t full = ring.barrier(ring.full);
    if (lane == 0) {
      task.ks = ks;
      ring.tasks[ring.slot] = task;
      arrive(ring.barrier(ring.posted));
      if constexpr (C::kIsPlain) {
        arrive(full);
      } else {
        arrive_expecting(full,
                         static_cast<uint32_t>(num_groups * 2 * units * unit_bytes(C::kLayout)));
      }
    }
    __syncwarp();
    int group;
    if constexpr (C::kIsPlain) {
      constexpr int kChunks = C::kKs / 8;  // of 16 bytes a row
      constexpr int kRows = 32 / kChunks;  // a copy of the warp
      static_assert(kChunks <= 32);
      const int chunk = lane % kChunks;
      const int64_t step = 2 * kRows * stride;
      for (int s = 0; s < C::kGroups; ++s) {
        if (!group_of(s, &group) || chunk * 8 >= inputs) continue;
        const uint8_t* from =
            weights + 2 * ((group * kRowGroup + lane / kChunks) * stride + ks * C::kKs + chunk * 8);
        uint32_t to = ring.stage() + s * C::kGroupBytes + lane / kChunks * C::kXStride + chunk * 16;
#pragma unroll
        for (int r = 0; r < kRowGroup; r += kRows) {
          copy_async(to, from);
          to += kRows * C::kXStride;
          from += step;
        }
      }
      arrive_after_copies(full);
    } else if (lane < C::kGroups * C::kPieces && group_of(lane / C::kPieces, &group)) {
      constexpr int kUnitBytes = 2 * unit_bytes(C::kLayout);
      constexpr int kPieceUnits = C::kWk / C::kPieces;
      const int first = lane % C::kPieces * kPieceUnits;
      const int count = units - first < kPieceUnits ? units - first : kPieceUnits;
      if (count > 0) {
        bulk_copy(ring.stage() + lane / C::kPieces * C::kGroupBytes + first * kUnitBytes,
                  weights + (group * stride + ks * C::kWk + first) * kUnitBytes,
                  static_cast<uint32_t>(count * kUnitBytes), full);
      }
    }
    ring.advance();
  }

  __device__ void end() {
    wait_barrier(ring.barrier(ring.empty), ring.parity ^ 1);
    if (lane == 0) {
      ring.tasks[ring.slot].count = -1;
      arrive(ring.barrier(ring.posted));
      arrive(ring.barrier(ring.full));
    }
    if constexpr (C::kIsPlain) arrive(ring.barrier(ring.full));
  }
};

// Without device tiles, task i is token tile i % token_tiles of row task i / token_tiles …: blocks
// that run together read the same weights.
__device__ __forceinline__ Task static_task(const Problem& p, int64_t i) {
  Task task{};
  const auto tile = static_cast<int32_t>(i % p.token_tiles);
  const auto rest = static_cast<int32_t>(i / p.token_tiles);
  task.row_task = rest % p.row_tasks[0];
  task.index = rest / p.row_tasks[0];
  task.begin = tile * p.m[0].tile_tokens;
  const auto left = static_cast<int32_t>(p.m[0].num_tokens) - task.begin;
  task.count = left < p.m[0].tile_tokens ? left : p.m[0].tile_tokens;
  return task;
}

// Tiles were made on the device, by the kernel before. Tasks are drawn from a counter; what a task
// needs is one read away: the tile, which may be none when there are fewer tasks than blocks.
template <typename C>
__device__ __forceinline__ void lead_tiles(Leader<C>& leader) {
  const Problem& p = leader.p;
  const bool is_chain = p.num_products == 2;
  wait_for_inputs();
  int32_t next = 0;
  const auto draw = [&] {
    if (leader.lane == 0) next = atomicAdd(p.m[0].next_task, 1);
  };
  // A block of a single product has a first task of its own. In a chain it has not, as it must not
  // own what others wait for before it runs.
  int32_t i = static_cast<int32_t>(blockIdx.x), first_drawn = static_cast<int32_t>(gridDim.x);
  if (is_chain) {
    draw();
    first_drawn = 0;
    i = __shfl_sync(0xffffffffu, next, 0);
  }
  const int32_t num_tiles = *p.m[0].num_tiles;
  const int32_t end_first = num_tiles * p.row_tasks[0];
  const int32_t end = end_first + (is_chain ? num_tiles * p.row_tasks[1] : 0);
  const auto last_tile = static_cast<int32_t>(p.m[0].max_tiles) - 1;
  while (true) {
    Task task{};
    task.which = is_chain && i >= end_first ? 1 : 0;
    const int32_t of_product = i - (task.which == 1 ? end_first : 0);
    const int32_t row_tasks = p.row_tasks[task.which];
    task.index = of_product / row_tasks;
    task.row_task = of_product - task.index * row_tasks;
    const TokenTile& tile = p.m[0].tiles[task.index < last_tile ? task.index : last_tile];
    const PackedMatrix matrix = tile.matrices[p.m[task.which].which];
    task.begin = tile.begin;
    task.count = tile.count;
    if (i >= end) break;
    draw();
    leader.run(task, matrix);
    i = first_drawn + __shfl_sync(0xffffffffu, next, 0);
  }
}

template <typename C>
__device__ __forceinline__ void lead(Leader<C>& leader) {
  const Problem& p = leader.p;
  if (p.m[0].tiles != nullptr) {
    lead_tiles(leader);
  } else {
    const int64_t num_tasks = p.m[0].num_matrices * p.row_tasks[0] * p.token_tiles;
    for (int64_t i = blockIdx.x / p.splits; i < num_tasks; i += gridDim.x / p.splits) {
      const Task task = static_task(p, i);
      leader.run(task, p.m[0].matrices == nullptr ? p.m[0].matrix : p.m[0].matrices[task.index]);
    }
  }
  leader.end();
}

// ---- followers: activations ---------------------------------------------------------------------

// Until the first product's outputs of this tile are there.
template <typename C>
__device__ __forceinline__ void wait_for_tile(const Problem& p, int32_t tile) {
  const int32_t all = p.row_tasks[0] * C::kWm;
  int32_t done;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                 : "=r"(done)
                 : "l"(p.tiles_done + tile)
                 : "memory");
  } while (done < all);
}

template <typename C>
__device__ __forceinline__ void follow(const Problem& p, Ring<C> ring, int follower, int lane) {
  // The warp copies kCopies times 32 chunks of 16 bytes of a token, or a chunk a lane of kTokens
  // tokens; where a token's row begins is found once a task.
  constexpr int kChunks = C::kKs / 8;
  constexpr int kCopies = kChunks > 32 ? kChunks / 32 : 1;
  constexpr int kTokens = kChunks > 32 ? 1 : 32 / kChunks;
  constexpr int kSteps = C::kMaxNt * 8 / kTokens / C::kFollowers;
  const int lane_token = lane / kChunks, lane_chunk = lane % kChunks;
  const int ks_begin = share_of<C>(p, 0).begin;
  uint32_t rows[kSteps];  // in chunks
  wait_for_inputs();
  while (true) {
    wait_barrier(ring.barrier(ring.posted), ring.parity);
    const Task task = ring.tasks[ring.slot];
    const uint32_t full = ring.barrier(ring.full);
    if (task.count < 0) {
      arrive(full);
      return;
    }
    const Multiply& m = p.m[task.which];
    if (task.ks == ks_begin) {
      if (task.which == 1) wait_for_tile<C>(p, task.index);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if ((i * C::kFollowers + follower) * kTokens >= task.count) break;
        const int token = (i * C::kFollowers + follower) * kTokens + lane_token;
        const int64_t position = task.begin + (token < task.count ? token : 0);
        const int64_t row = m.x_rows == nullptr ? position : m.x_rows[position];
        rows[i] = static_cast<uint32_t>((task.index * m.x_matrix_stride + row * m.x_stride) / 8);
      }
    }
    const int inputs = stage_inputs<C>(static_cast<int>(m.inputs), task.ks);
    const uint32_t to = ring.stage() + C::kWeightBytes;
    const auto* const from =
        static_cast<const uint8_t*>(m.x) + 2 * (static_cast<int64_t>(task.ks) * C::kKs);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if ((i * C::kFollowers + follower) * kTokens >= task.count) break;
      const int token = (i * C::kFollowers + follower) * kTokens + lane_token;
#pragma unroll
      for (int c = 0; c < kCopies; ++c) {
        const int chunk = c * 32 + lane_chunk;
        if (token < task.count && chunk * 8 < inputs) {
          copy_async(to + token * C::kXStride + chunk * 16,
                     from + int64_t{16} * (rows[i] + static_cast<uint32_t>(chunk)));
        }
      }
    }
    arrive_after_copies(full);
    ring.advance();
  }
}

}  // namespace eyrie::ops::gpu::sm90
