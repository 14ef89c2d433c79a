#include <algorithm>

#include "ops/gpu/sm80/copy.cuh"
#include "ops/gpu/sm80/mma.cuh"
#include "ops/gpu/sm90/async.cuh"
#include "ops/gpu/sm90/mla_work.cuh"
#include "ops/gpu/sm90/wgmma.cuh"

// Absorbed MLA on Hopper's tensor cores: 64 queries (heads of a row, or of several) against tiles
// of 32 positions of the one latent cache, in a line of four warpgroups:
//
//   producer  brings tiles to shared memory, a ring of them
//   scores    multiplies queries, in shared memory for the item, and keys; the softmax of a tile is
//             computed while the next tile's scores are multiplied; weights go to shared memory
//   values    two of them: each sums 256 of the 512 value columns, in registers
//
// An E4M3 cache is converted by the producer to float16, which holds every E4M3 value exactly;
// queries and weights are then rounded to float16, not bfloat16.
//
// A tile in shared memory: 9 blocks of 64 columns, each [32 positions][128 bytes], 16-byte chunks
// swizzled (chunk ^ position % 8). The scores' product reads it K-major, the values' MN-major.
//
// A tile costs 36 864 bytes of cache (E4M3: 18 432), 4.5 MFLOP and 188 KB of shared memory's
// bandwidth, 128 bytes a clock.
namespace eyrie::ops::gpu {
namespace {

using namespace mla;

// ---- producer -----------------------------------------------------------------------------------

// Sixteen E4M3 codes to two chunks of eight float16.
__device__ __forceinline__ void to_f16(const uint4& codes, uint4 (&chunks)[2]) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32_t out[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}\n"
        : "=r"(out[2 * i]), "=r"(out[2 * i + 1])
        : "r"(words[i]));
  }
  chunks[0] = {out[0], out[1], out[2], out[3]};
  chunks[1] = {out[4], out[5], out[6], out[7]};
}

__device__ __forceinline__ void store_shared(uint32_t to, const uint4& x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}
__device__ __forceinline__ uint4 load_shared(uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}

// A warp of the producer brings eight positions of each tile. They lie in one block of the table,
// so they lie together.
template <bool kFp8>
struct Producer {
  using L = Layout<kFp8>;
  static constexpr int kLag = kFp8 ? L::kRawStages - 1 : L::kStages - 2;  // tiles on their way
  static constexpr int kRowBytes = kWidth * (kFp8 ? 1 : 2);

  const Room& room;
  int warp, lane;
  uint32_t issued = 0, finished = 0;

  __device__ __forceinline__ void issue(const Attention& a, const Item& item, int tile) {
    const int first = tile * kTile + warp * 8;
    const int num_valid = min(max(item.context - first, 0), 8);
    const auto* from = static_cast<const uint8_t*>(a.keys.data);
    if (num_valid > 0) {
      from += slot_of(item.block_table, a.keys.block_size, first) * kRowBytes;
    }
    if (kFp8) {
      // Four lanes bring 64 bytes of a row; what a lane brings it finds again.
      const int row = lane / 4;
      from += row * kRowBytes + lane % 4 * 16;
      const uint32_t to = raw_of(issued);
#pragma unroll
      for (int i = 0; i < kColumnBlocks; ++i) {
        copy_async(to + i * 2048, from + i * 64, row < num_valid ? 16 : 0);
      }
    } else {
      // Eight lanes bring the 128 bytes that are a column block's; then four rows further down.
      const int row = lane / 8, chunk = lane % 8;
      from += row * kRowBytes + chunk * 16;
      wait_empty(issued);
      const uint32_t to = room.tiles + issued % L::kStages * kTileBytes + warp * 1024 + row * 128;
      const uint32_t upper = to + ((chunk ^ row) << 4), lower = to + 512 + ((chunk ^ row ^ 4) << 4);
#pragma unroll
      for (int i = 0; i < kColumnBlocks; ++i) {
        copy_async(upper + i * kBlockBytes, from + i * 128, row < num_valid ? 16 : 0);
        copy_async(lower + i * kBlockBytes, from + 4 * kRowBytes + i * 128,
                   row + 4 < num_valid ? 16 : 0);
      }
    }
    commit_copies();
    ++issued;
    if (issued - finished > kLag) {
      wait_copies<kLag>();
      finish();
    }
  }

  __device__ __forceinline__ void flush() {
    wait_copies<0>();
    while (finished < issued) finish();
  }

 private:
  __device__ __forceinline__ uint32_t raw_of(uint32_t turn) const {
    return room.raw + turn % L::kRawStages * kRawBytes + (warp * 32 + lane) * 16;
  }
  __device__ __forceinline__ void wait_empty(uint32_t turn) const {
    wait_barrier(room.empty + turn % L::kStages * 8, (turn / L::kStages & 1) ^ 1);
  }

  // The oldest tile has come: it goes to the consumers.
  __device__ __forceinline__ void finish() {
    if (kFp8) convert();
    publish_to_async_proxy();
    arrive(room.full + finished % L::kStages * 8);
    ++finished;
  }

  __device__ __forceinline__ void convert() {
    wait_empty(finished);
    const uint32_t from = raw_of(finished);
    const int row = lane / 4, pair = lane % 4 * 2;
    const uint32_t to = room.tiles + finished % L::kStages * kTileBytes + warp * 1024 + row * 128;
    const uint32_t even = to + ((pair ^ row) << 4), odd = to + (((pair + 1) ^ row) << 4);
#pragma unroll
    for (int i = 0; i < kColumnBlocks; ++i) {
      uint4 half[2];
      to_f16(load_shared(from + i * 2048), half);
      store_shared(even + i * kBlockBytes, half[0]);
      store_shared(odd + i * kBlockBytes, half[1]);
    }
  }
};

// ---- consumers ----------------------------------------------------------------------------------

__device__ __forceinline__ void store_shared(uint32_t to, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
__device__ __forceinline__ float load_shared_float(uint32_t from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}

// A thread of the scores' warpgroup has rows `row` and row + 8, columns `column`, + 1 of each
// eight.
template <bool kFp8>
struct Scores {
  using L = Layout<kFp8>;

  const Attention& a;
  const Room& room;
  int tid, row, column;
  float scale;
  uint32_t turn = 0;
  float largest[2], total[2];
  int limit[2];

  // Eight threads bring 128 bytes of a query.
  __device__ __forceinline__ void load_queries(const Item& item) {
    const int chunk = tid % 8;
#pragma unroll 1
    for (int r = tid / 8; r < kQueries; r += 16) {
      const int query = item.first_query + r;
      const bool is_query = query < item.end_query;
      const int q_row = query / a.num_heads, head = query - q_row * a.num_heads;
      const int64_t t = item.first_row + q_row;
      const auto* latent = static_cast<const bf16*>(a.q0.data) + t * a.q0.row_stride +
                           head * a.q0.head_stride + chunk * 8;
      const auto* rope = static_cast<const bf16*>(a.q1.data) + t * a.q1.row_stride +
                         head * a.q1.head_stride + chunk * 8;
      const uint32_t to = room.query + r * 128 + ((chunk ^ r % 8) << 4);
      uint4 x[kColumnBlocks];
#pragma unroll
      for (int i = 0; i < kColumnBlocks; ++i) {
        x[i] = {0, 0, 0, 0};
        if (is_query) x[i] = *reinterpret_cast<const uint4*>(i < 8 ? latent + i * 64 : rope);
      }
#pragma unroll
      for (int i = 0; i < kColumnBlocks; ++i) {
        if (kFp8) {
          for (uint32_t* pair : {&x[i].x, &x[i].y, &x[i].z, &x[i].w}) {
            *pair = pack_pair<true>(as_float(*pair << 16), as_float(*pair & 0xffff0000u));
          }
        }
        store_shared(to + i * kQueryBlockBytes, x[i]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = item.first_query + row + 8 * half;
      limit[half] = item.first_position + (query < item.end_query ? query / a.num_heads : 0);
      largest[half] = kLowest;
      total[half] = 0;
    }
    publish_to_async_proxy();
    sync_threads(1, 128);
  }

  // Steps of 16 columns go to two sums in turn: products that add to one sum wait for each other.
  __device__ __forceinline__ void multiply(float (&scores)[2][16], uint32_t of) {
    wait_barrier(room.full + of % L::kStages * 8, of / L::kStages & 1);
    // Through a shuffle the compiler knows that a warp agrees, and keeps addresses in uniform
    // registers, where the products want them.
    const Matrix queries = matrix_at(__shfl_sync(~0u, room.query, 0), 16, 1024);
    const Matrix keys =
        matrix_at(__shfl_sync(~0u, room.tiles + of % L::kStages * kTileBytes, 0), 16, 1024);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kWidth / 16; ++i) {
      wgmma_n32<kFp8>(scores[i % 2], queries.at(i / 4 * kQueryBlockBytes + i % 4 * 32),
                      keys.at(i / 4 * kBlockBytes + i % 4 * 32), i < 2 ? 0 : 1);
    }
    wgmma_commit();
  }

  // Scores become weights, in place.
  __device__ __forceinline__ void softmax(int tile, float (&scores)[16], float (&alpha)[2]) {
    const int first = tile * kTile + column;
    if (tile * kTile + kTile - 1 > limit[0]) {  // limit[0] ≤ limit[1], but for rows that are none
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if (first + i / 4 * 8 + i % 2 > limit[i / 2 % 2]) scores[i] = -INFINITY;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float high = -INFINITY;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        high = fmaxf(high, fmaxf(scores[4 * i + 2 * half], scores[4 * i + 2 * half + 1]));
      }
      high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
      high = fmaxf(high, __shfl_xor_sync(~0u, high, 2)) * scale;
      alpha[half] = 1;
      if (high > largest[half] + kRescale) {
        alpha[half] = exp2_of(largest[half] - high);
        largest[half] = high;
      }
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& x = scores[i / 2 * 4 + 2 * half + i % 2];
        x = exp2_of(fmaf(x, scale, -largest[half]));
        sum += x;
      }
      total[half] = total[half] * alpha[half] + sum;
    }
  }

  __device__ __forceinline__ void hand_on(const float (&weights)[16], const float (&alpha)[2],
                                          bool is_last) {
    const uint32_t buffer = turn % 2;
    wait_barrier(room.read + buffer * 8, (turn / 2 & 1) ^ 1);
    const uint32_t to = room.weights + row * 128 + column * 2;  // row + 8 is swizzled alike
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      const uint32_t at = to + (((buffer * 4 + g) ^ row % 8) << 4);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t pair =
            pack_pair<kFp8>(weights[4 * g + 2 * half], weights[4 * g + 2 * half + 1]);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(at + half * 1024), "r"(pair) : "memory");
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t at = buffer * kQueries + row + 8 * half;
      if (tid % 4 == 0) store_shared(room.alpha + at * 4, alpha[half]);
      if (!is_last) continue;
      float sum = total[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (tid % 4 == 0) {
        store_shared(room.softmax + at * 8, largest[half]);
        store_shared(room.softmax + at * 8 + 4, sum);
      }
    }
    publish_to_async_proxy();
    arrive(room.weighed + buffer * 8);
    ++turn;
  }

  // The j-th tile of the item, whose product is complete.
  __device__ __forceinline__ void finish(const Schedule& s, const Item& item, int j, bool is_last,
                                         float (&scores)[2][16]) {
    hold(scores[0]);
    hold(scores[1]);
#pragma unroll
    for (int i = 0; i < 16; ++i) scores[0][i] += scores[1][i];
    float alpha[2];
    softmax(tile_at(s.mode, item, j), scores[0], alpha);
    hand_on(scores[0], alpha, is_last);
  }
  // The same while the next is multiplied.
  __device__ __forceinline__ void step(const Schedule& s, const Item& item, int j,
                                       float (&scores)[2][16], float (&next)[2][16]) {
    multiply(next, turn + 1);
    wgmma_wait<1>();
    finish(s, item, j, false, scores);
  }

  __device__ __forceinline__ void attend(const Schedule& s, const Item& item) {
    const int num_tiles = __shfl_sync(~0u, item.num_tiles, 0);
    if (num_tiles == 0) return;
    load_queries(item);
    float even[2][16], odd[2][16];
    multiply(even, turn);
    int j = 0;
    for (; j + 2 < num_tiles; j += 2) {
      step(s, item, j, even, odd);
      step(s, item, j + 1, odd, even);
    }
    if (j + 1 < num_tiles) {
      step(s, item, j, even, odd);
      wgmma_wait<0>();
      finish(s, item, j + 1, true, odd);
    } else {
      wgmma_wait<0>();
      finish(s, item, j, true, even);
    }
  }
};

// A thread of a values' warpgroup has the same rows, and the columns of 256.
template <bool kFp8>
struct Values {
  using L = Layout<kFp8>;

  const Attention& a;
  const Room& room;
  int warpgroup, tid, row, column;
  uint32_t turn = 0;
  float sums[2][64];  // of 128 columns each
  float largest[2], total[2];

  // The tile was read by the warp's products; the weights' factors by each thread.
  __device__ __forceinline__ void release(uint32_t of) {
    arrive(room.read + of % 2 * 8);
    if (tid % 32 == 0) arrive(room.empty + of % L::kStages * 8);
  }

  __device__ __forceinline__ void attend(const Item& item) {
#pragma unroll
    for (int i = 0; i < 128; ++i) sums[i / 64][i % 64] = 0;
    largest[0] = largest[1] = kLowest;
    total[0] = total[1] = 0;
    const int num_tiles = __shfl_sync(~0u, item.num_tiles, 0);
    for (int j = 0; j < num_tiles; ++j) {
      const uint32_t buffer = turn % 2;
      wait_barrier(room.weighed + buffer * 8, turn / 2 & 1);
      wait_barrier(room.full + turn % L::kStages * 8, turn / L::kStages & 1);
      float alpha[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t at = buffer * kQueries + row + 8 * half;
        alpha[half] = load_shared_float(room.alpha + at * 4);
        if (j + 1 == num_tiles) {
          largest[half] = load_shared_float(room.softmax + at * 8);
          total[half] = load_shared_float(room.softmax + at * 8 + 4);
        }
      }
      if (__any_sync(~0u, alpha[0] != 1.0f || alpha[1] != 1.0f) != 0) {
#pragma unroll
        for (int i = 0; i < 128; ++i) sums[i / 64][i % 64] *= alpha[i / 2 % 2];
      }
      const uint32_t tile = room.tiles + turn % L::kStages * kTileBytes;
      const Matrix weights = matrix_at(__shfl_sync(~0u, room.weights + buffer * 64, 0), 16, 1024);
      const Matrix values =
          matrix_at(__shfl_sync(~0u, tile + warpgroup * 4 * kBlockBytes, 0), kBlockBytes, 1024);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          wgmma_n128<kFp8>(sums[h], weights.at(k * 32), values.at(h * 2 * kBlockBytes + k * 2048),
                           1);
        }
      }
      wgmma_commit();
      wgmma_wait<0>();
      hold(sums[0]);
      hold(sums[1]);
      release(turn++);
    }
  }

  __device__ __forceinline__ void store(const Schedule& s, const Item& item) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = item.first_query + row + 8 * half;
      if (query >= item.end_query) continue;
      const int first = warpgroup * kSumColumns + column;
      if (item.slot >= 0) {
        const int64_t at = int64_t{item.slot} * kQueries + row + 8 * half;
        if (tid % 4 == 0 && warpgroup == 0) s.softmax[at] = {largest[half], total[half]};
        float* to = s.sums + at * kLatent + first;
#pragma unroll
        for (int g = 0; g < 32; ++g) {
          const float* of_group = &sums[g / 16][g % 16 * 4 + 2 * half];
          *reinterpret_cast<float2*>(to + 8 * g) = {of_group[0], of_group[1]};
        }
      } else {
        const int r = query / a.num_heads, head = query - r * a.num_heads;
        bf16* to = static_cast<bf16*>(a.out.data) + (item.first_row + r) * a.out.row_stride +
                   head * a.out.head_stride + first;
        const float factor = a.keys.scale / total[half];
#pragma unroll
        for (int g = 0; g < 32; ++g) {
          const float* of_group = &sums[g / 16][g % 16 * 4 + 2 * half];
          *reinterpret_cast<uint32_t*>(to + 8 * g) =
              pack_pair<false>(of_group[0] * factor, of_group[1] * factor);
        }
      }
    }
  }
};

template <bool kFp8>
__global__ void __launch_bounds__(kThreads, 1)
    mla_kernel(const __grid_constant__ Attention a, const __grid_constant__ Schedule s) {
  using L = Layout<kFp8>;
  extern __shared__ uint8_t dynamic[];
  __shared__ LocateShared walk_shared;
  start_dependents();
  const uint32_t base = (shared_address(dynamic) + 1023u) & ~1023u;
  const uint32_t barriers = base + L::kBarriers;
  const Room room{base,
                  base + L::kRaw,
                  base + L::kQuery,
                  base + L::kWeights,
                  base + L::kAlpha,
                  base + L::kSoftmax,
                  barriers,
                  barriers + L::kStages * 8,
                  barriers + 2 * L::kStages * 8,
                  barriers + (2 * L::kStages + 2) * 8};
  if (threadIdx.x == 0) {
    for (int i = 0; i < L::kStages; ++i) {
      init_barrier(room.full + i * 8, 128);
      init_barrier(room.empty + i * 8, 8);
    }
    for (int i = 0; i < 2; ++i) {
      init_barrier(room.weighed + i * 8, 128);
      init_barrier(room.read + i * 8, 256);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // The batch comes from the host before the step, so that it can be read before the wait.
  Walk walk = begin_walk(a, s, walk_shared);  // ends with a barrier of the block
  wait_for_inputs();
  Item item;
  Left left{-1, 0};
  const int tid = static_cast<int>(threadIdx.x) % 128;
  const int row = tid / 32 * 16 + tid % 32 / 4, column = tid % 4 * 2;
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    Producer<kFp8> producer{room, tid / 32, tid % 32};
    while (next_item(a, s, walk, item, left)) {
      for (int j = 0; j < item.num_tiles; ++j) producer.issue(a, item, tile_at(s.mode, item, j));
    }
    producer.flush();
  } else if (threadIdx.x < 256) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 136;");
    Scores<kFp8> scores{a, room, tid, row, column, a.scale * a.keys.scale * kLog2E};
    while (next_item(a, s, walk, item, left)) scores.attend(s, item);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 168;");
    Values<kFp8> values{a, room, static_cast<int>(threadIdx.x) / 128 - 2, tid, row, column};
    while (next_item(a, s, walk, item, left)) {
      values.attend(item);
      values.store(s, item);
    }
    if (threadIdx.x == 256 && s.mode == Mode::kGrouped) s.left[blockIdx.x] = left;
  }
}

// Adds up what blocks left in scratch of one query tile, a warp per query, in the order of
// positions.
constexpr int kCombineWarps = 8;
__global__ void __launch_bounds__(kCombineWarps * 32)
    combine_mla_kernel(const __grid_constant__ Attention a, const __grid_constant__ Schedule s) {
  start_dependents();
  wait_for_inputs();
  __shared__ int found;
  const int block = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.y) * kCombineWarps + static_cast<int>(threadIdx.x) / 32;
  int sequence, first_query, num_slots;
  if (s.mode == Mode::kFixed) {
    const int t = s.first_row + block / s.head_tiles;
    sequence = find_sequence(a.batch, t, &found);
    if (sequence < 0) return;
    first_query =
        (t - a.batch.sequences[sequence].first_row) * a.num_heads + block % s.head_tiles * kQueries;
    if (block % s.head_tiles * kQueries + row >= a.num_heads) return;
    num_slots = kSplits;
  } else {
    sequence = s.left[block].sequence;
    if (sequence < 0) return;
    first_query = block % s.group * kQueries;
    num_slots = s.left[block].num_slots;
  }
  const Sequence q = a.batch.sequences[sequence];
  const int query = first_query + row;
  if (query >= q.num_rows * a.num_heads) return;
  const auto slot_at = [&](int i) {
    const int64_t slot = s.mode == Mode::kFixed ? block * kSplits + i
                         : i == 0               ? 2 * block + 1
                                                : 2 * (block + i * s.group);
    return slot * kQueries + row;
  };
  // A lane looks at every 32nd slot for the largest; sums are then added in order.
  float largest = kLowest;
  for (int i = lane; i < num_slots; i += 32) largest = fmaxf(largest, s.softmax[slot_at(i)].x);
  largest = warp_max(largest);
  float total = 0;
  float4 sums[4] = {};
#pragma unroll 4
  for (int i = 0; i < num_slots; ++i) {
    const int64_t at = slot_at(i);
    const float2 part = s.softmax[at];
    const float weight = exp2_of(part.x - largest);
    total += weight * part.y;
    const float4* from = reinterpret_cast<const float4*>(s.sums + at * kLatent) + lane;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float4 x = from[c * 32];
      sums[c].x += weight * x.x;
      sums[c].y += weight * x.y;
      sums[c].z += weight * x.z;
      sums[c].w += weight * x.w;
    }
  }
  const float factor = a.keys.scale / total;
  const int r = query / a.num_heads, head = query - r * a.num_heads;
  bf16* out = static_cast<bf16*>(a.out.data) + (q.first_row + r) * a.out.row_stride +
              head * a.out.head_stride + lane * 4;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    *reinterpret_cast<uint2*>(out + c * 128) = {
        pack_pair<false>(sums[c].x * factor, sums[c].y * factor),
        pack_pair<false>(sums[c].z * factor, sums[c].w * factor)};
  }
}

// ---- host ---------------------------------------------------------------------------------------

constexpr int kMaxGroup = 8;
constexpr int kMinTiles = 4;
constexpr int kFixedRows = 64;  // of one launch, by their scratch

bool is_aligned(const Heads& x, int bytes) {
  return x.type == Type::kBF16 && x.row_stride % (bytes / 2) == 0 &&
         x.head_stride % (bytes / 2) == 0 && reinterpret_cast<uintptr_t>(x.data) % bytes == 0;
}

bool can_run(const Attention& a, int compute_capability) {
  return compute_capability == 90 && a.shared_values && a.num_kv_heads == 1 && a.dim0 == kLatent &&
         a.dim1 == kRope && a.dim_v == kLatent && a.keys.width == kWidth &&
         a.keys.block_size % 16 == 0 && a.scale > 0 && is_aligned(a.q0, 16) &&
         is_aligned(a.q1, 16) && is_aligned(a.out, 8) &&
         reinterpret_cast<uintptr_t>(a.keys.data) % 16 == 0;
}

struct Plan {
  Schedule schedule{};
  int num_blocks = 0;
  int num_slots = 0;
};

Plan plan_of(const Attention& a, int num_processors) {
  Plan plan;
  Schedule& s = plan.schedule;
  const int tiles = (a.batch.max_rows * a.num_heads + kQueries - 1) / kQueries;
  if (a.is_deterministic) {
    s.mode = Mode::kFixed;
    s.head_tiles = (a.num_heads + kQueries - 1) / kQueries;
    plan.num_blocks = std::min(a.batch.num_rows, kFixedRows) * s.head_tiles * kSplits;
    plan.num_slots = plan.num_blocks;
  } else if (tiles > kMaxGroup) {
    s.mode = Mode::kWhole;
    plan.num_blocks = a.batch.num_rows * a.num_heads / kQueries + a.batch.num_sequences;
  } else {
    s.mode = Mode::kGrouped;
    s.group = std::max(tiles, 1);
    s.num_parts = std::max(num_processors / s.group, 1);
    s.min_tiles = kMinTiles;
    plan.num_blocks = s.num_parts * s.group;
    plan.num_slots = 2 * plan.num_blocks;
  }
  return plan;
}

size_t bytes_of(const Plan& plan) {
  return static_cast<size_t>(plan.num_slots) * kQueries *
             (kLatent * sizeof(float) + sizeof(float2)) +
         static_cast<size_t>(plan.num_blocks) * sizeof(Left);
}

size_t scratch_bytes(const Attention& a, int num_processors) {
  return bytes_of(plan_of(a, num_processors));
}

template <bool kFp8>
void run_plan(const Attention& a, const Plan& plan, int num_combines, void* stream) {
  static const bool is_allowed = [] {
    allow_shared_memory("mla_attention", mla_kernel<kFp8>, Layout<kFp8>::kBytes);
    return true;
  }();
  static_cast<void>(is_allowed);
  launch("mla_attention", mla_kernel<kFp8>, dim3(static_cast<unsigned>(plan.num_blocks)),
         dim3(kThreads), Layout<kFp8>::kBytes, stream, a, plan.schedule);
  if (num_combines > 0) {
    launch("combine_mla", combine_mla_kernel,
           dim3(static_cast<unsigned>(num_combines), kQueries / kCombineWarps),
           dim3(kCombineWarps * 32), 0, stream, a, plan.schedule);
  }
}

void run(const Attention& a, int num_processors, void* stream) {
  if (a.batch.num_sequences == 0 || a.batch.num_rows == 0) return;
  Plan plan = plan_of(a, num_processors);
  Schedule& s = plan.schedule;
  s.sums = static_cast<float*>(a.scratch);
  s.softmax = reinterpret_cast<float2*>(s.sums + int64_t{plan.num_slots} * kQueries * kLatent);
  s.left = reinterpret_cast<Left*>(s.softmax + int64_t{plan.num_slots} * kQueries);
  const auto run_of_type = a.keys.is_fp8 ? run_plan<true> : run_plan<false>;
  if (s.mode != Mode::kFixed) {
    run_of_type(a, plan, s.mode == Mode::kGrouped ? plan.num_blocks : 0, stream);
    return;
  }
  for (s.first_row = 0; s.first_row < a.batch.num_rows; s.first_row += kFixedRows) {
    const int rows = std::min(a.batch.num_rows - s.first_row, kFixedRows);
    plan.num_blocks = rows * s.head_tiles * kSplits;
    run_of_type(a, plan, rows * s.head_tiles, stream);
  }
}

}  // namespace

const AttentionKernel& mla_sm90() {
  static const AttentionKernel kernel{"mla sm90", can_run, scratch_bytes, run};
  return kernel;
}

}  // namespace eyrie::ops::gpu
