#include <algorithm>

#include "ops/gpu/sm80/copy.cuh"
#include "ops/gpu/sm80/mma.cuh"
#include "ops/gpu/sm90/async.cuh"
#include "ops/gpu/sm90/mla_work.cuh"
#include "ops/gpu/sm90/wgmma.cuh"

// Absorbed MLA on Hopper's tensor cores: 64 queries (heads of a row, or of several) against tiles of
// 32 positions of the one latent cache. The four warps of the producer bring tiles to shared memory,
// a ring of them, so that memory never rests; two warpgroups multiply:
//
//   scores   each warpgroup multiplies half of the 576 columns, its half of the queries held in
//            registers for the item; the halves are exchanged through shared memory and added, after
//            which both hold all scores in the layout the next product wants its left side in
//   output   each warpgroup sums 256 of the 512 value columns, in registers
//
// The scores of a tile are multiplied before the output of the tile before it, whose product then
// hides the softmax. An E4M3 cache is converted by the producer to float16, which holds every E4M3
// value exactly; queries and weights are then rounded to float16, not bfloat16.
//
// A tile in shared memory: 9 blocks of 64 columns, each [32 positions][128 bytes], 16-byte chunks
// swizzled (chunk ^ position % 8). The first product reads it K-major, the second MN-major.
//
// Cost of a tile: 36 864 bytes of cache (E4M3: 18 432) and 4.5 MFLOP.
namespace eyrie::ops::gpu {
namespace {

using namespace mla;

template <bool kFp8>
struct Layout {
  static constexpr int kStages = kFp8 ? 3 : 4;
  static constexpr int kRawStages = kFp8 ? 3 : 1;
  static constexpr int kRaw = kStages * kTileBytes;
  static constexpr int kExchange = kRaw + (kFp8 ? kRawStages * kRawBytes : 0);  // [2 turns][2 warpgroups]
  static constexpr int kQuery = kExchange + 4 * kExchangeBytes;  // [2 warpgroups]
  static constexpr int kBarriers = kQuery + 2 * kQueryBytes;
  static constexpr int kBytes = kBarriers + 2 * kStages * 8 + 1024;  // what aligning may take
};

struct Ring {
  uint32_t tiles, raw, exchange, query, full, empty;
};

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

  const Ring& ring;
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
      const uint32_t to = ring.tiles + issued % L::kStages * kTileBytes + warp * 1024 + row * 128;
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
    return ring.raw + turn % L::kRawStages * kRawBytes + (warp * 32 + lane) * 16;
  }
  __device__ __forceinline__ void wait_empty(uint32_t turn) const {
    wait_barrier(ring.empty + turn % L::kStages * 8, (turn / L::kStages & 1) ^ 1);
  }

  // The oldest tile has come: it goes to the consumers.
  __device__ __forceinline__ void finish() {
    if (kFp8) convert();
    publish_to_async_proxy();
    arrive(ring.full + finished % L::kStages * 8);
    ++finished;
  }

  __device__ __forceinline__ void convert() {
    wait_empty(finished);
    const uint32_t from = raw_of(finished);
    const int row = lane / 4, pair = lane % 4 * 2;
    const uint32_t to = ring.tiles + finished % L::kStages * kTileBytes + warp * 1024 + row * 128;
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

template <bool kFp8>
struct Consumer {
  using L = Layout<kFp8>;

  const Attention& a;
  const Ring& ring;
  int warpgroup, tid, row, column;  // row, and row + 8; column of eight
  uint32_t turn = 0;
  float sums[128];
  float scores[16];
  uint32_t q[kRegisterSteps][4];
  uint32_t weights[2][4];
  float largest[2], total[2];
  float alpha[2];
  int limit[2];

  // Steps 0…15 are of the latent's half, 16 and 17 of the rope part's.
  __device__ __forceinline__ void load_queries(const Item& item) {
    int own_row = row;
    asm volatile("" : "+r"(own_row));  // or addresses below are kept in registers between items
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = item.first_query + own_row + 8 * half;
      const bool is_query = query < item.end_query;
      const int r = query / a.num_heads, head = query - r * a.num_heads;
      const int64_t t = item.first_row + r;
      limit[half] = item.first_position + (is_query ? r : 0);
      const auto* latent = static_cast<const bf16*>(a.q0.data) + t * a.q0.row_stride +
                           head * a.q0.head_stride + warpgroup * kSumColumns + column;
      const auto* rope = static_cast<const bf16*>(a.q1.data) + t * a.q1.row_stride +
                         head * a.q1.head_stride + warpgroup * (kRope / 2) + column;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const bf16* from = i < 16 ? latent + i * 16 : rope + (i - 16) * 16;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          uint32_t pair = is_query ? *reinterpret_cast<const uint32_t*>(from + 8 * k) : 0u;
          if (kFp8) pair = pack_pair<true>(as_float(pair << 16), as_float(pair & 0xffff0000u));
          if (i < kRegisterSteps) {
            q[i][2 * k + half] = pair;
          } else {
            const int chunk = 2 * (i - kRegisterSteps) + k;  // of 16 bytes, of the row
            const uint32_t at = ring.query + warpgroup * kQueryBytes + (own_row + 8 * half) * 128 +
                                ((chunk ^ own_row % 8) << 4) + column * 2;
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(pair) : "memory");
          }
        }
      }
      largest[half] = kLowest;
      total[half] = 0;
    }
    publish_to_async_proxy();
    sync_threads(2 + warpgroup, 128);
  }

  __device__ __forceinline__ uint32_t tile_address(uint32_t t) const {
    return ring.tiles + t % L::kStages * kTileBytes;
  }
  __device__ __forceinline__ void wait_full() {
    wait_barrier(ring.full + turn % L::kStages * 8, turn / L::kStages & 1);
  }
  __device__ __forceinline__ void release(uint32_t t) {
    if (tid % 32 == 0) arrive(ring.empty + t % L::kStages * 8);
  }

  __device__ __forceinline__ void multiply_scores() {
    const uint32_t tile = tile_address(turn);
    const uint32_t latent = tile + warpgroup * 4 * kBlockBytes;
    const uint32_t rope = tile + 8 * kBlockBytes + warpgroup * 64;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const uint32_t at = i < 16 ? latent + i / 4 * kBlockBytes + i % 4 * 32 : rope + (i - 16) * 32;
      const uint64_t keys = matrix_descriptor(at, 16, 1024);
      if (i < kRegisterSteps) {
        wgmma_n32<kFp8>(scores, q[i], keys, i == 0 ? 0 : 1);
      } else {
        const uint32_t query = ring.query + warpgroup * kQueryBytes + (i - kRegisterSteps) * 32;
        wgmma_n32<kFp8>(scores, matrix_descriptor(query, 16, 1024), keys, 1);
      }
    }
    wgmma_commit();
  }

  // The tile before this turn's (of).
  __device__ __forceinline__ void multiply_values(uint32_t of) {
    const uint32_t at = tile_address(of) + warpgroup * 4 * kBlockBytes;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      wgmma_n256<kFp8>(sums, weights[k], matrix_descriptor(at + k * 2048, kBlockBytes, 1024), 1);
    }
    wgmma_commit();
  }

  // Half sums become scores, scores become weights, in place.
  __device__ __forceinline__ void softmax(int tile, float scale) {
    const uint32_t turn_buffer = ring.exchange + (turn & 1) * 2 * kExchangeBytes + tid * 16;
    const uint32_t own = turn_buffer + warpgroup * kExchangeBytes;
    const uint32_t other = turn_buffer + (warpgroup ^ 1) * kExchangeBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      store_shared(own + i * 2048,
                   {as_bits(scores[4 * i]), as_bits(scores[4 * i + 1]), as_bits(scores[4 * i + 2]),
                    as_bits(scores[4 * i + 3])});
    }
    sync_threads(1, 256);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 x = load_shared(other + i * 2048);
      scores[4 * i] += as_float(x.x);
      scores[4 * i + 1] += as_float(x.y);
      scores[4 * i + 2] += as_float(x.z);
      scores[4 * i + 3] += as_float(x.w);
    }
    const int first = tile * kTile + column;
    if (tile * kTile + kTile - 1 > limit[0]) {  // limit[0] ≤ limit[1]
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

  // After the product that used the sums and weights before.
  __device__ __forceinline__ void take_weights() {
    if (__any_sync(~0u, alpha[0] != 1.0f || alpha[1] != 1.0f) != 0) {
#pragma unroll
      for (int i = 0; i < 128; ++i) sums[i] *= alpha[i / 2 % 2];
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[k][i] = pack_pair<kFp8>(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
      }
    }
  }

  __device__ __forceinline__ void attend(const Schedule& s, const Item& item, float scale) {
    load_queries(item);
#pragma unroll
    for (int i = 0; i < 128; ++i) sums[i] = 0;
    if (item.num_tiles > 0) {
      wait_full();
      wgmma_fence();
      multiply_scores();
      wgmma_wait<0>();
      hold(scores);
      softmax(tile_at(s.mode, item, 0), scale);
      take_weights();
      for (int j = 1; j < item.num_tiles; ++j) {
        const uint32_t before = turn++;
        wait_full();
        wgmma_fence();
        multiply_scores();
        multiply_values(before);
        wgmma_wait<1>();
        hold(scores);
        softmax(tile_at(s.mode, item, j), scale);
        wgmma_wait<0>();
        hold(sums);
        release(before);
        take_weights();
      }
      wgmma_fence();
      multiply_values(turn);
      wgmma_wait<0>();
      hold(sums);
      release(turn++);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] += __shfl_xor_sync(~0u, total[half], 1);
      total[half] += __shfl_xor_sync(~0u, total[half], 2);
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
          *reinterpret_cast<float2*>(to + 8 * g) = {sums[4 * g + 2 * half],
                                                    sums[4 * g + 2 * half + 1]};
        }
      } else {
        const int r = query / a.num_heads, head = query - r * a.num_heads;
        bf16* to = static_cast<bf16*>(a.out.data) + (item.first_row + r) * a.out.row_stride +
                   head * a.out.head_stride + first;
        const float factor = a.keys.scale / total[half];
#pragma unroll
        for (int g = 0; g < 32; ++g) {
          *reinterpret_cast<uint32_t*>(to + 8 * g) = pack_pair<false>(
              sums[4 * g + 2 * half] * factor, sums[4 * g + 2 * half + 1] * factor);
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
  const Ring ring{base, base + L::kRaw, base + L::kExchange, base + L::kQuery,
                  base + L::kBarriers, base + L::kBarriers + L::kStages * 8};
  if (threadIdx.x == 0) {
    for (int i = 0; i < L::kStages; ++i) {
      init_barrier(ring.full + i * 8, 128);
      init_barrier(ring.empty + i * 8, 8);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  wait_for_inputs();
  Walk walk = begin_walk(a, s, walk_shared);  // ends with a barrier of the block
  Item item;
  Left left{-1, 0};
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    Producer<kFp8> producer{ring, static_cast<int>(threadIdx.x) / 32,
                            static_cast<int>(threadIdx.x) % 32};
    while (next_item(a, s, walk, item, left)) {
      for (int j = 0; j < item.num_tiles; ++j) producer.issue(a, item, tile_at(s.mode, item, j));
    }
    producer.flush();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const int tid = static_cast<int>(threadIdx.x) % 128;
    Consumer<kFp8> consumer{a, ring, static_cast<int>(threadIdx.x) / 128 - 1, tid,
                            tid / 32 * 16 + tid % 32 / 4, tid % 4 * 2};
    const float scale = a.scale * a.keys.scale * kLog2E;
    while (next_item(a, s, walk, item, left)) {
      consumer.attend(s, item, scale);
      consumer.store(s, item);
    }
    if (threadIdx.x == 128 && s.mode == Mode::kGrouped) s.left[blockIdx.x] = left;
  }
}

// Adds up what blocks left in scratch of one query tile, a warp per query, in the order of positions.
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
    first_query = (t - a.batch.sequences[sequence].first_row) * a.num_heads +
                  block % s.head_tiles * kQueries;
    if (block % s.head_tiles * kQueries + row >= a.num_heads) return;
    num_slots = kSplits;
  } else {
    sequence = s.left[block].sequence;
    if (sequence < 0) return;
    first_query = block % s.group * kQueries;
    num_slots = 2;
    for (int b = block + s.group; s.left[b].slot_state == 2; b += s.group) ++num_slots;
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
  float largest = kLowest, total = 0;
  for (int i = 0; i < num_slots; ++i) largest = fmaxf(largest, s.softmax[slot_at(i)].x);
  float4 sums[4] = {};
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

bool is_row_of_pairs(const Heads& x, int bytes) {
  return x.type == Type::kBF16 && x.row_stride % (bytes / 2) == 0 &&
         x.head_stride % (bytes / 2) == 0 && reinterpret_cast<uintptr_t>(x.data) % bytes == 0;
}

bool can_run(const Attention& a, int compute_capability) {
  return compute_capability == 90 && a.shared_values && a.num_kv_heads == 1 && a.dim0 == kLatent &&
         a.dim1 == kRope && a.dim_v == kLatent && a.keys.width == kWidth &&
         a.keys.block_size % 16 == 0 && a.scale > 0 && is_row_of_pairs(a.q0, 4) &&
         is_row_of_pairs(a.q1, 4) && is_row_of_pairs(a.out, 8) &&
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
  return static_cast<size_t>(plan.num_slots) * kQueries * (kLatent * sizeof(float) + sizeof(float2)) +
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
