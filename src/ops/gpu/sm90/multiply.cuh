// The product of few activation rows with a weight matrix, as a stream of weights: what decode
// steps spend their time on. Bytes of weights per second are all that counts here (a matrix of a
// layer is read once, for 1 … 64 tokens), so:
//
// - A leading warp a block keeps a ring of stages full and runs ahead of the arithmetic over the
//   borders of tasks, by bulk copies (a row group's units lie together: 2 to 9 KB a copy; one costs
//   the copy engine some 60 cycles whatever its size, so that rows of bf16 and of activations,
//   which are shorter, come 16 bytes a lane instead). A stage holds kKs inputs of kTiles row tiles
//   and of the tokens' activations; those are the business of one or two following warps, which
//   alone wait for the kernel before: weights stream in while it still runs.
// - Eight consumer warps stand in a grid of kWm x kWk: warp (wm, wk) takes row tiles wm and
//   wm + kWm and the inputs of unit wk of each stage. It turns its codes into bf16 in registers and
//   multiplies by mma.m16n8k16 with rows of the weight as M and tokens as N: 8 tokens cost what one
//   does. The kWk partial sums meet in shared memory at the end of a task, in a fixed order.
// - In a paired matrix the two row tiles of a warp are gate and up of the same outputs: SiLU and
//   product happen in registers.
// - Where a matrix has few rows, a cluster of blocks shares the inputs of a task, and the sums meet
//   through distributed shared memory, again in a fixed order.
//
// So a row's result depends on the matrix and its own activations only, never on other rows.
//
// Inputs are permuted within 32: lane t of a group of four takes 8·t … 8·t + 7, the first four in
// the first mma and the others in the second; weights and activations alike, so that sums do not
// change and everything is read 16 bytes at a time. Rows of activations are kKs·2 + 64 bytes apart
// in shared memory: 8 lanes (2 rows x 4) then touch all banks once.
#pragma once

#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_linear.h"

namespace eyrie::ops::gpu::sm90 {

constexpr int kConsumers = 8;
constexpr int kRt = 2;  // row tiles of a warp

// ---- instructions -------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Arrives when this thread's copies so far are there.
__device__ __forceinline__ void barrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;\n" ::
          : "memory");
}
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ float4 cluster_read(uint32_t address, uint32_t rank) {
  float4 v;
  asm volatile(
      "{\n"
      ".reg .u32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n"
      "}\n"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(rank)
      : "memory");
  return v;
}
__device__ __forceinline__ uint4 read16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}
__device__ __forceinline__ uint2 read8(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}
__device__ __forceinline__ uint32_t read4(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ uint32_t multiply2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ uint32_t subtract2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ---- codes --------------------------------------------------------------------------------------

// A lane's part of one unit of one row tile: rows g and g + 8. load() takes it from shared memory,
// block(j, …) gives inputs 8·t … 8·t + 7 of its j-th 32 as four bf16 pairs a row.
template <Layout kLayout>
struct UnitCodes;

__device__ __forceinline__ uint32_t component(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ __forceinline__ void decode_fp4(uint32_t w, uint32_t scale, uint32_t (&r)[4]) {
  constexpr uint32_t kSign = 0x80008000u, kMagnitude = 0x01c001c0u, kBoth = kSign | kMagnitude;
  r[0] = multiply2(w & kBoth, scale);
  r[1] = multiply2((w << 3) & kBoth, scale);
  r[2] = multiply2(((w << 6) & kMagnitude) | ((w << 1) & kSign), scale);
  r[3] = multiply2(((w >> 3) & kMagnitude) | ((w << 2) & kSign), scale);
}

template <>
struct UnitCodes<Layout::kMxfp4> {
  uint4 codes[2];
  uint32_t scales[2];
  __device__ __forceinline__ void load(uint32_t unit, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      codes[h] = read16(unit + h * 512 + lane * 16);
      scales[h] = read4(unit + 1024 + (lane / 4 + 8 * h) * 4);
    }
  }
  __device__ __forceinline__ void block(int j, int h, uint32_t (&r)[4]) const {
    const uint32_t scale = __byte_perm(scales[h], 0, 0x4040 + 0x0101 * j) * 128u;
    decode_fp4(component(codes[h], j), scale, r);
  }
};

template <>
struct UnitCodes<Layout::kNvfp4> {
  uint4 codes[2];
  uint2 scales[2];
  __device__ __forceinline__ void load(uint32_t unit, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      codes[h] = read16(unit + h * 512 + lane * 16);
      const uint2 s = read8(unit + 1024 + (lane / 4 + 8 * h) * 8);
      const int shift = (lane & 2) * 4;  // lanes 2 and 3 hold the second 16 of a block
      scales[h] = make_uint2(s.x >> shift, s.y >> shift);
    }
  }
  __device__ __forceinline__ void block(int j, int h, uint32_t (&r)[4]) const {
    const uint32_t s = j < 2 ? scales[h].x : scales[h].y;
    // Five exponent bits and three of mantissa, moved to where bf16 has them; 211 is what is
    // missing in the exponent: 127 + 126 of E2M1's place, less the scale's bias 10 and 32.
    const uint32_t scale = __byte_perm(s, 0, 0x4040 + 0x0202 * (j & 1)) * 16u + 211u * 0x00800080u;
    decode_fp4(component(codes[h], j), scale, r);
  }
};

template <>
struct UnitCodes<Layout::kInt4> {
  uint4 codes[2];
  uint2 scales[2];
  __device__ __forceinline__ void load(uint32_t unit, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      codes[h] = read16(unit + h * 512 + lane * 16);
      scales[h] = read8(unit + 1024 + (lane / 4 + 8 * h) * 8);
    }
  }
  __device__ __forceinline__ void block(int j, int h, uint32_t (&r)[4]) const {
    const uint32_t scale =
        __byte_perm(j < 2 ? scales[h].x : scales[h].y, 0, (j & 1) != 0 ? 0x3232 : 0x1010);
    const uint32_t w = component(codes[h], j);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      // 0x4300 is 128 in bf16, whose last bit is 1: 128 + code, less 136, is code - 8 exactly.
      const uint32_t biased = ((w >> (4 * p)) & 0x000f000fu) | 0x43004300u;
      r[p] = multiply2(subtract2(biased, 0x43084308u), scale);
    }
  }
};

template <>
struct UnitCodes<Layout::kFp8> {
  uint4 codes[2];
  __device__ __forceinline__ void load(uint32_t unit, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) codes[h] = read16(unit + h * 512 + lane * 16);
  }
  __device__ __forceinline__ void block(int j, int h, uint32_t (&r)[4]) const {
    constexpr uint32_t kSign = 0x80008000u, kMagnitude = 0x07f007f0u;
    constexpr uint32_t k2To120 = 0x7b807b80u;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t w = component(codes[h], 2 * j + i);
      r[2 * i] = multiply2((w & kSign) | ((w >> 4) & kMagnitude), k2To120);
      r[2 * i + 1] = multiply2(((w << 8) & kSign) | ((w << 4) & kMagnitude), k2To120);
    }
  }
};
template <>
struct UnitCodes<Layout::kFp8Block> : UnitCodes<Layout::kFp8> {
  float scale;
  __device__ __forceinline__ void load(uint32_t unit, int lane) {
    UnitCodes<Layout::kFp8>::load(unit, lane);
    scale = __uint_as_float(read4(unit + 1024));
  }
};

// ---- shape of the kernel ------------------------------------------------------------------------

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
};

struct Task {
  int32_t matrix, begin, count, row_task;  // count -1: no more tasks
  const float* row_scale;
  int32_t ks;  // of the stage
  int32_t reserved;
};

struct Problem {
  Multiply m;
  int32_t splits;       // blocks of a cluster: each takes its share of the inputs
  int32_t row_tasks;    // tasks down the rows of a matrix
  int32_t token_tiles;  // of a matrix, without device tiles
};

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
__device__ __forceinline__ int stage_inputs(const Problem& p, int ks) {
  const auto left = static_cast<int>(p.m.inputs) - ks * C::kKs;
  return left < C::kKs ? left : C::kKs;
}

// ---- leader: tasks and weights ------------------------------------------------------------------

template <typename C>
struct Leader {
  const Problem& p;
  Ring<C> ring;
  int lane;
  Task task;
  const uint8_t* weights;
  int num_groups;  // row groups of the task that exist

  // Row group s of a stage is this one of the matrix.
  __device__ bool group_of(int s, int* group) const {
    const auto limit = static_cast<int>(p.m.rows + kRowGroup - 1) / kRowGroup;
    if (p.m.paired) {
      const int first = task.row_task * (C::kGroups / 2) + s % (C::kGroups / 2);
      *group = first + s / (C::kGroups / 2) * (limit / 2);
      return first < limit / 2;
    }
    *group = task.row_task * C::kGroups + s;
    return *group < limit;
  }

  __device__ void run(const Task& t, const PackedMatrix& matrix, int ks_begin, int ks_end) {
    task = t;
    task.row_scale = matrix.row_scale;
    weights = matrix.data;
    num_groups = 0;
    int group;
    for (int s = 0; s < C::kGroups; ++s) num_groups += group_of(s, &group) ? 1 : 0;
    for (int ks = ks_begin; ks < ks_end; ++ks) fill(ks);
  }

  __device__ void fill(int ks) {
    barrier_wait(ring.barrier(ring.empty), ring.parity ^ 1);
    const int inputs = stage_inputs<C>(p, ks);
    const int units = (inputs + C::kKu - 1) / C::kKu;
    const uint32_t full = ring.barrier(ring.full);
    if (lane == 0) {
      task.ks = ks;
      ring.tasks[ring.slot] = task;
      barrier_arrive(ring.barrier(ring.posted));
      if constexpr (C::kIsPlain) {
        barrier_arrive(full);
      } else {
        barrier_arrive_expecting(
            full, static_cast<uint32_t>(num_groups * 2 * units * unit_bytes(C::kLayout)));
      }
    }
    __syncwarp();
    int group;
    if constexpr (C::kIsPlain) {
      constexpr int kChunks = C::kKs / 8;  // of 16 bytes a row
      constexpr int kRows = 32 / kChunks;  // a copy of the warp
      static_assert(kChunks <= 32);
      const int chunk = lane % kChunks;
      const int64_t step = 2 * kRows * p.m.stride;
      for (int s = 0; s < C::kGroups; ++s) {
        if (!group_of(s, &group) || chunk * 8 >= inputs) continue;
        const uint8_t* from = weights + 2 * ((group * kRowGroup + lane / kChunks) * p.m.stride +
                                             ks * C::kKs + chunk * 8);
        uint32_t to = ring.stage() + s * C::kGroupBytes + lane / kChunks * C::kXStride + chunk * 16;
#pragma unroll
        for (int r = 0; r < kRowGroup; r += kRows) {
          copy16(to, from);
          to += kRows * C::kXStride;
          from += step;
        }
      }
      barrier_arrive_after_copies(full);
    } else if (lane < C::kGroups && group_of(lane, &group)) {
      bulk_copy(ring.stage() + lane * C::kGroupBytes,
                weights + (group * p.m.stride + ks * C::kWk) * (2 * unit_bytes(C::kLayout)),
                static_cast<uint32_t>(2 * units * unit_bytes(C::kLayout)), full);
    }
    ring.advance();
  }

  __device__ void end() {
    barrier_wait(ring.barrier(ring.empty), ring.parity ^ 1);
    if (lane == 0) {
      ring.tasks[ring.slot].count = -1;
      barrier_arrive(ring.barrier(ring.posted));
      barrier_arrive(ring.barrier(ring.full));
    }
    if constexpr (C::kIsPlain) barrier_arrive(ring.barrier(ring.full));
  }
};

// Without device tiles, task i is token tile i % token_tiles of row task i / token_tiles …: blocks
// that run together read the same weights.
__device__ __forceinline__ Task static_task(const Problem& p, int64_t i) {
  Task task{};
  const auto tile = static_cast<int32_t>(i % p.token_tiles);
  const auto rest = static_cast<int32_t>(i / p.token_tiles);
  task.row_task = rest % p.row_tasks;
  task.matrix = rest / p.row_tasks;
  task.begin = tile * p.m.tile_tokens;
  const auto left = static_cast<int32_t>(p.m.num_tokens) - task.begin;
  task.count = left < p.m.tile_tokens ? left : p.m.tile_tokens;
  return task;
}

template <typename C>
__device__ __forceinline__ void lead(Leader<C>& leader, int ks_begin, int ks_end) {
  const Problem& p = leader.p;
  if (p.m.tiles == nullptr) {
    const int64_t num_tasks = p.m.num_matrices * p.row_tasks * p.token_tiles;
    for (int64_t i = blockIdx.x / p.splits; i < num_tasks; i += gridDim.x / p.splits) {
      const Task task = static_task(p, i);
      leader.run(task, p.m.matrices == nullptr ? p.m.matrix : p.m.matrices[task.matrix], ks_begin,
                 ks_end);
    }
  } else {
    wait_for_inputs();
    // Every block has a first task of its own; the rest are drawn. What a task needs is one read
    // away: the tile, which may be none when there are fewer tasks than blocks.
    int32_t next = 0;
    auto i = static_cast<int32_t>(blockIdx.x);
    const auto last_tile = static_cast<int32_t>(p.m.max_tiles) - 1;
    while (true) {
      const int32_t index = i / p.row_tasks;
      const TokenTile& tile = p.m.tiles[index < last_tile ? index : last_tile];
      const PackedMatrix matrix = tile.matrices[p.m.which];
      Task task{};
      task.begin = tile.begin;
      task.count = tile.count;
      task.row_task = i % p.row_tasks;
      const int32_t num_tasks = *p.m.num_tiles * p.row_tasks;
      if (i >= num_tasks) break;
      if (leader.lane == 0) next = atomicAdd(p.m.next_task, 1);
      leader.run(task, matrix, ks_begin, ks_end);
      i = static_cast<int32_t>(gridDim.x) + __shfl_sync(0xffffffffu, next, 0);
    }
  }
  leader.end();
}

// ---- followers: activations ---------------------------------------------------------------------

template <typename C>
__device__ __forceinline__ void follow(const Problem& p, Ring<C> ring, int follower, int lane,
                                       int ks_begin) {
  // The warp copies kCopies times 32 chunks of 16 bytes of a token, or a chunk a lane of kTokens
  // tokens; where a token's row begins is found once a task.
  constexpr int kChunks = C::kKs / 8;
  constexpr int kCopies = kChunks > 32 ? kChunks / 32 : 1;
  constexpr int kTokens = kChunks > 32 ? 1 : 32 / kChunks;
  constexpr int kSteps = C::kMaxNt * 8 / kTokens / C::kFollowers;
  const int lane_token = lane / kChunks, lane_chunk = lane % kChunks;
  uint32_t rows[kSteps];  // in chunks
  wait_for_inputs();
  while (true) {
    barrier_wait(ring.barrier(ring.posted), ring.parity);
    const Task task = ring.tasks[ring.slot];
    const uint32_t full = ring.barrier(ring.full);
    if (task.count < 0) {
      barrier_arrive(full);
      return;
    }
    if (task.ks == ks_begin) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int token = (i * C::kFollowers + follower) * kTokens + lane_token;
        const int64_t position = task.begin + (token < task.count ? token : 0);
        const int64_t row = p.m.x_rows == nullptr ? position : p.m.x_rows[position];
        rows[i] =
            static_cast<uint32_t>((task.matrix * p.m.x_matrix_stride + row * p.m.x_stride) / 8);
      }
    }
    const int inputs = stage_inputs<C>(p, task.ks);
    const uint32_t to = ring.stage() + C::kWeightBytes;
    const auto* const from =
        static_cast<const uint8_t*>(p.m.x) + 2 * (static_cast<int64_t>(task.ks) * C::kKs);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int token = (i * C::kFollowers + follower) * kTokens + lane_token;
#pragma unroll
      for (int c = 0; c < kCopies; ++c) {
        const int chunk = c * 32 + lane_chunk;
        if (token < task.count && chunk * 8 < inputs) {
          copy16(to + token * C::kXStride + chunk * 16,
                 from + int64_t{16} * (rows[i] + static_cast<uint32_t>(chunk)));
        }
      }
    }
    barrier_arrive_after_copies(full);
    ring.advance();
  }
}

// ---- consumers ----------------------------------------------------------------------------------

template <typename C, int kNt, bool kWhole>
__device__ __forceinline__ void consume(uint32_t stage, int wm, int wk, int lane, int blocks,
                                        float (&acc)[kRt][kNt][4]) {
  const int g = lane / 4, t = lane % 4;
  const uint32_t x = stage + C::kWeightBytes + wk * C::kKu * 2 + g * C::kXStride + t * 16;
  if constexpr (C::kIsPlain) {
    const uint32_t w = stage + (wm * kRowTile + g) * C::kXStride + wk * C::kKu * 2 + t * 16;
#pragma unroll
    for (int j = 0; j < C::kBlocks; ++j) {
      if (!kWhole && j >= blocks) break;
      uint4 a[kRt][2];
#pragma unroll
      for (int rt = 0; rt < kRt; ++rt) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          a[rt][h] = read16(w + (rt * C::kWm * kRowTile + h * 8) * C::kXStride + j * 64);
        }
      }
#pragma unroll
      for (int nt = 0; nt < kNt; ++nt) {
        const uint4 b = read16(x + nt * 8 * C::kXStride + j * 64);
#pragma unroll
        for (int rt = 0; rt < kRt; ++rt) {
          mma(acc[rt][nt], a[rt][0].x, a[rt][1].x, a[rt][0].y, a[rt][1].y, b.x, b.y);
          mma(acc[rt][nt], a[rt][0].z, a[rt][1].z, a[rt][0].w, a[rt][1].w, b.z, b.w);
        }
      }
    }
  } else {
    constexpr bool kScaled = C::kLayout == Layout::kFp8Block;
    UnitCodes<C::kLayout> codes[kRt];
#pragma unroll
    for (int rt = 0; rt < kRt; ++rt) {
      codes[rt].load(stage + C::unit_at(wm + rt * C::kWm, wk), lane);
    }
    float unit_sums[kRt][kScaled ? kNt : 1][4];
    if constexpr (kScaled) {
#pragma unroll
      for (int i = 0; i < kRt * kNt * 4; ++i) unit_sums[i / (kNt * 4)][i / 4 % kNt][i % 4] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < C::kBlocks; ++j) {
      if (!kWhole && j >= blocks) break;
      uint32_t a[kRt][2][4];
#pragma unroll
      for (int rt = 0; rt < kRt; ++rt) {
        codes[rt].block(j, 0, a[rt][0]);
        codes[rt].block(j, 1, a[rt][1]);
      }
#pragma unroll
      for (int nt = 0; nt < kNt; ++nt) {
        const uint4 b = read16(x + nt * 8 * C::kXStride + j * 64);
#pragma unroll
        for (int rt = 0; rt < kRt; ++rt) {
          float(&c)[4] = [&]() -> float(&)[4] {
            if constexpr (kScaled) {
              return unit_sums[rt][nt];
            } else {
              return acc[rt][nt];
            }
          }();
          mma(c, a[rt][0][0], a[rt][1][0], a[rt][0][1], a[rt][1][1], b.x, b.y);
          mma(c, a[rt][0][2], a[rt][1][2], a[rt][0][3], a[rt][1][3], b.z, b.w);
        }
      }
    }
    if constexpr (kScaled) {
#pragma unroll
      for (int rt = 0; rt < kRt; ++rt) {
#pragma unroll
        for (int i = 0; i < kNt * 4; ++i) {
          acc[rt][i / 4][i % 4] += codes[rt].scale * unit_sums[rt][i / 4][i % 4];
        }
      }
    }
  }
}

// The sums of row tiles wm and wm + kWm for tokens 8·nt … + 8 of the task.
template <typename C>
__device__ __forceinline__ void store(const Problem& p, const Task& task, int wm, int nt, int lane,
                                      const float (&first)[4], const float (&second)[4]) {
  const int g = lane / 4, t = lane % 4;
  const float scale = layout_scale(C::kLayout);
  const auto scale_of = [&](int64_t row) {
    return task.row_scale == nullptr ? scale : task.row_scale[row] * scale;
  };
  const auto put = [&](int64_t row, int i, float value) {
    const int token = nt * 8 + 2 * t + (i & 1);
    if (token >= task.count) return;
    const int64_t at =
        task.matrix * p.m.out_matrix_stride + (task.begin + token) * p.m.out_stride + row;
    if (p.m.out_is_f32) {
      static_cast<float*>(p.m.out)[at] = value;
    } else {
      static_cast<bf16*>(p.m.out)[at] = from_float<bf16>(value);
    }
  };
  if (p.m.paired) {
    const int64_t outputs = p.m.rows / 2;
    const int64_t row0 = static_cast<int64_t>(task.row_task * C::kWm + wm) * kRowTile + g;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = row0 + 8 * (i / 2);
      if (row >= outputs) continue;
      const float gate = first[i] * scale_of(row);
      const float up = second[i] * scale_of(row + outputs);
      put(row, i, gate / (1.0f + __expf(-gate)) * up);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t row =
        static_cast<int64_t>(task.row_task * C::kTiles + wm) * kRowTile + g + 8 * (i / 2);
    if (row < p.m.rows) put(row, i, first[i] * scale_of(row));
    const int64_t other = row + C::kWm * kRowTile;
    if (other < p.m.rows) put(other, i, second[i] * scale_of(other));
  }
}

template <typename C>
struct Consumer {
  const Problem& p;
  Ring<C> ring;
  float4* reduce;
  int warp, lane;

  __device__ int wm() const { return warp % C::kWm; }
  __device__ int wk() const { return warp / C::kWm; }

  template <int kNt>
  __device__ void run(const Task& task, int ks_begin, int ks_end) {
    float acc[kRt][kNt][4];
#pragma unroll
    for (int i = 0; i < kRt * kNt * 4; ++i) acc[i / (kNt * 4)][i / 4 % kNt][i % 4] = 0.0f;
    for (int ks = ks_begin; ks < ks_end; ++ks) {
      barrier_wait(ring.barrier(ring.full), ring.parity);
      const uint32_t stage = ring.stage();
      const int left = static_cast<int>(p.m.inputs) - ks * C::kKs - wk() * C::kKu;
      if (left >= C::kKu) {
        consume<C, kNt, true>(stage, wm(), wk(), lane, C::kBlocks, acc);
      } else if (left > 0) {
        consume<C, kNt, false>(stage, wm(), wk(), lane, left / 32, acc);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(ring.barrier(ring.empty));
      ring.advance();
    }
    finish<kNt>(task, acc);
  }

  // Partial sums of the kWk warps meet in the first of them.
  template <int kNt>
  __device__ void finish(const Task& task, float (&acc)[kRt][kNt][4]) {
    constexpr int kGroup = C::kWk * 32;
    // The sums of a split task are written where stages were: all warps have read them by then.
    if (p.splits > 1) named_barrier(1 + C::kWm, kConsumers * 32);
#pragma unroll
    for (int nt = 0; nt < kNt; ++nt) {
      if (wk() > 0) {
#pragma unroll
        for (int rt = 0; rt < kRt; ++rt) {
          const float(&c)[4] = acc[rt][nt];
          reduce[(((wk() - 1) * C::kWm + wm()) * kRt + rt) * 32 + lane] =
              make_float4(c[0], c[1], c[2], c[3]);
        }
      }
      if constexpr (C::kWk > 1) named_barrier(1 + wm(), kGroup);
      if (wk() == 0) {
#pragma unroll
        for (int other = 0; other < C::kWk - 1; ++other) {
#pragma unroll
          for (int rt = 0; rt < kRt; ++rt) {
            const float4 v = reduce[((other * C::kWm + wm()) * kRt + rt) * 32 + lane];
            float(&c)[4] = acc[rt][nt];
            c[0] += v.x;
            c[1] += v.y;
            c[2] += v.z;
            c[3] += v.w;
          }
        }
        if (p.splits == 1) {
          store<C>(p, task, wm(), nt, lane, acc[0][nt], acc[1][nt]);
        } else {
#pragma unroll
          for (int rt = 0; rt < kRt; ++rt) {
            const float(&c)[4] = acc[rt][nt];
            *split_sums(wm(), kNt, nt, rt) = make_float4(c[0], c[1], c[2], c[3]);
          }
        }
      }
      if constexpr (C::kWk > 1) named_barrier(1 + wm(), kGroup);
    }
    if (p.splits > 1) join_splits<kNt>(task);
  }

  __device__ float4* split_sums(int of_wm, int num_nt, int nt, int rt) const {
    extern __shared__ __align__(1024) uint8_t shared[];
    auto* sums = reinterpret_cast<float4*>(shared + C::kHeadBytes + C::kReduceBytes);
    return sums + ((of_wm * num_nt + nt) * kRt + rt) * 32 + lane;
  }

  // Blocks of the cluster deal out the pieces of the tile; each sums its own over all of them.
  template <int kNt>
  __device__ void join_splits(const Task& task) {
    cluster_barrier();
    const auto rank = static_cast<int>(cluster_rank());
    for (int piece = rank + p.splits * warp; piece < C::kWm * kNt; piece += p.splits * kConsumers) {
      const int of_wm = piece / kNt, nt = piece % kNt;
      float sums[kRt][4] = {};
      for (int other = 0; other < p.splits; ++other) {
#pragma unroll
        for (int rt = 0; rt < kRt; ++rt) {
          const float4 v = cluster_read(shared_address(split_sums(of_wm, kNt, nt, rt)),
                                        static_cast<uint32_t>(other));
          sums[rt][0] += v.x;
          sums[rt][1] += v.y;
          sums[rt][2] += v.z;
          sums[rt][3] += v.w;
        }
      }
      store<C>(p, task, of_wm, nt, lane, sums[0], sums[1]);
    }
    cluster_barrier();
  }
};

// ---- kernel -------------------------------------------------------------------------------------

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm) multiply_kernel(const Problem p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kBarriers = C::kStages * 8;
  const uint32_t head = shared_address(shared);
  const Ring<C> ring{head, head + kBarriers, head + 2 * kBarriers,
                     head + C::kHeadBytes + C::kReduceBytes, reinterpret_cast<Task*>(shared + 256)};
  static_assert(3 * kBarriers <= 256 && 256 + C::kStages * sizeof(Task) <= C::kHeadBytes);

  start_dependents();
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < C::kStages; ++s) {
      barrier_init(ring.full + s * 8, C::kFullArrivals);
      barrier_init(ring.empty + s * 8, kConsumers);
      barrier_init(ring.posted + s * 8, 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();

  // This block's share of the inputs, in stages.
  const auto num_ks = static_cast<int>((p.m.inputs + C::kKs - 1) / C::kKs);
  const int rank = p.splits > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int ks_begin = num_ks * rank / p.splits, ks_end = num_ks * (rank + 1) / p.splits;

  if (warp >= kConsumers) {
    if (warp == kConsumers) {
      Leader<C> leader{p, ring, lane, {}, nullptr, 0};
      lead(leader, ks_begin, ks_end);
    } else {
      follow<C>(p, ring, warp - kConsumers - 1, lane, ks_begin);
    }
    if (p.splits > 1) {  // one task a block: the barriers of its consumers
      __syncwarp();
      cluster_barrier();
      cluster_barrier();
    }
    return;
  }
  Consumer<C> consumer{p, ring, reinterpret_cast<float4*>(shared + C::kHeadBytes), warp, lane};
  while (true) {
    barrier_wait(consumer.ring.barrier(ring.full), consumer.ring.parity);
    const Task task = ring.tasks[consumer.ring.slot];
    if (task.count < 0) break;
    if (task.count <= 8) {
      consumer.template run<1>(task, ks_begin, ks_end);
    } else if (C::kMaxNt == 2 || (C::kMaxNt > 2 && task.count <= 16)) {
      consumer.template run<(C::kMaxNt < 2 ? C::kMaxNt : 2)>(task, ks_begin, ks_end);
    } else if (C::kMaxNt == 4 || (C::kMaxNt > 4 && task.count <= 32)) {
      consumer.template run<(C::kMaxNt < 4 ? C::kMaxNt : 4)>(task, ks_begin, ks_end);
    } else {
      consumer.template run<C::kMaxNt>(task, ks_begin, ks_end);
    }
  }
}

// ---- launching ----------------------------------------------------------------------------------

int num_multiprocessors();
// How many clusters of `splits` blocks of this kernel run at a time.
int max_clusters(const void* kernel, int threads, int shared_bytes, int splits);

template <typename C>
void launch_config(const Multiply& m, void* stream) {
  static const bool allowed = [] {
    allow_shared_memory("allowing shared memory to multiply", multiply_kernel<C>, C::kSharedBytes);
    return true;
  }();
  static_cast<void>(allowed);
  Problem p{};
  p.m = m;
  const int64_t rows = m.paired ? m.rows / 2 : m.rows;
  const int64_t rows_per_task = (m.paired ? C::kWm : C::kTiles) * kRowTile;
  p.row_tasks = static_cast<int32_t>((rows + rows_per_task - 1) / rows_per_task);
  p.splits = 1;
  const int slots = num_multiprocessors() * C::kBlocksPerSm;
  int64_t blocks = slots;
  if (m.tiles == nullptr) {
    if (p.m.tile_tokens > C::kMaxNt * 8) p.m.tile_tokens = C::kMaxNt * 8;
    p.token_tiles = static_cast<int32_t>((m.num_tokens + p.m.tile_tokens - 1) / p.m.tile_tokens);
    const int64_t num_tasks = m.num_matrices * p.row_tasks * p.token_tiles;
    // Splits depend on the matrix alone, so that sums have one order for any number of tokens.
    const int64_t stages = (m.inputs + C::kKs - 1) / C::kKs;
    const int64_t matrix_tasks = m.num_matrices * p.row_tasks;
    for (int splits = 8; splits > 1 && m.splits == 0; splits /= 2) {
      if (stages < 2 * splits || matrix_tasks * splits > 2 * num_multiprocessors() * 7 / 8)
        continue;
      if (matrix_tasks <= max_clusters(reinterpret_cast<const void*>(multiply_kernel<C>),
                                       C::kThreads, C::kSharedBytes, splits)) {
        p.splits = splits;
        break;
      }
    }
    if (m.splits > 0) p.splits = m.splits;
    blocks = p.splits > 1 ? num_tasks * p.splits : num_tasks < slots ? num_tasks : slots;
  }
  if (blocks == 0) return;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = overlaps_launches() ? 1 : 0;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(p.splits);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(C::kThreads);
  config.dynamicSmemBytes = C::kSharedBytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  config.numAttrs = p.splits > 1 ? 2 : 1;
  const LaunchTrace trace("multiply", p.m.rows, p.m.inputs, p.m.num_tokens, stream);
  check_runtime(cudaLaunchKernelEx(&config, multiply_kernel<C>, static_cast<const Problem>(p)),
                "multiply");
}

// The kernel for tasks of up to kNt · 8 tokens. Up to 8, blocks are short, so that there are enough
// of them for a token alone; more share the tokens' activations among more rows. Two blocks a
// multiprocessor decode while the other waits.
template <Layout kLayout, int kNt>
void launch_for(const Multiply& m, void* stream) {
  constexpr int kUnit = unit_inputs(kLayout);
  if constexpr (kNt == 8) {
    constexpr bool kIsPlain = kLayout == Layout::kBF16;
    launch_config<Config<kLayout, 8, kUnit, kIsPlain ? 4 : 8, kIsPlain ? 2 : 1, 1>>(m, stream);
  } else if constexpr (kLayout == Layout::kBF16) {
    launch_config<Config<kLayout, kNt, 32, 2, 4, 2>>(m, stream);
  } else if constexpr (kNt == 1) {
    launch_config<Config<kLayout, 1, kUnit, 2, 4, 2>>(m, stream);
  } else {
    launch_config<Config<kLayout, kNt, kUnit, 8, 1, kNt == 2 ? 2 : 1>>(m, stream);
  }
}

template <Layout kLayout>
void launch_layout(const Multiply& m, void* stream) {
  const int64_t largest =
      m.tiles != nullptr || m.tile_tokens < m.num_tokens ? m.tile_tokens : m.num_tokens;
  if (m.fixed_order || (largest > 8 && largest <= 16)) {
    launch_for<kLayout, 2>(m, stream);
  } else if (largest <= 8) {
    launch_for<kLayout, 1>(m, stream);
  } else if (largest <= 32) {
    launch_for<kLayout, 4>(m, stream);
  } else {
    launch_for<kLayout, 8>(m, stream);
  }
}

}  // namespace eyrie::ops::gpu::sm90
