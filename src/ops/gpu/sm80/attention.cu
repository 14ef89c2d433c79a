#include <algorithm>

#include "ops/gpu/attention_math.cuh"
#include "ops/gpu/sm80/copy.cuh"
#include "ops/gpu/sm80/mma.cuh"

// Attention on tensor cores by warps: grouped-query attention of a draft, and MLA of small shapes.
// A block is one tile of queries (the heads that share keys, of one row or several) and, of its
// positions, one split; each of its four warps walks every fourth tile of positions with a ring of
// copies of its own, so that no warp waits for another, and the warps' sums are added at the end.
//
// Memory is what decode costs, so keys and values are read as they lie, 16 bytes a lane: the order
// of columns in the first product and of result columns in the second is free, and is chosen so
// that what a lane read together it uses together. An E4M3 cache becomes float16, which holds its
// values exactly, in registers.
namespace eyrie::ops::gpu {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kStages = 3;
constexpr int kRescale = 8;  // sums are rescaled when scores grow by more than this power of 2
constexpr float kLn2 = 0.69314718055994531f, kLog2E = 1.4426950408889634f;

// kTiles of 16 queries; keys of kKey columns, values of kValue, which kShared makes the keys'
// first.
template <int kKey, int kValue, bool kShared, bool kFp8, int kTiles>
struct Shape {
  static constexpr int kBytes = kFp8 ? 1 : 2;
  static constexpr int kPositions = kFp8 ? 32 : 16;  // of a tile
  static constexpr int kKeyRow = kKey * kBytes, kValueRow = kValue * kBytes;
  static constexpr int kStageBytes = kPositions * (kKeyRow + (kShared ? 0 : kValueRow));
  static constexpr int kRingBytes = kStages * kStageBytes;  // of a warp
  static constexpr int kQueries = 16 * kTiles;
  static constexpr int kMergeStride = kValue + 4;
  static constexpr int kMergeBytes = kWarps * kQueries * (kMergeStride + 2) * 4;
  static constexpr int kSharedBytes =
      kWarps * kRingBytes > kMergeBytes ? kWarps* kRingBytes : kMergeBytes;
  static constexpr int kSteps = kKey / 16;
  static constexpr int kScoreTiles = kPositions / 8;
  static constexpr int kValueTiles = kValue / 8;
  // A lane's share of a row of keys: units of this many bytes, a quarter of the row.
  static constexpr int kUnit = kKeyRow % 64 == 0 ? 16 : 8;
  static constexpr int kUnits = kKeyRow / 4 / kUnit;
  static constexpr int kUnitSteps = kUnit / kBytes / 4;  // a step takes four elements of a lane
  // Of a row of values: an eighth.
  static constexpr int kValueUnit = kValueRow / 8 < 16 ? kValueRow / 8 : 16;
  static constexpr int kValueUnits = kValueRow / 8 / kValueUnit;
  static constexpr int kUnitColumns = kValueUnit / kBytes;

  // Which unit of a row the i-th of lane quarter j is: pairs of 16 bytes in each 128, so that eight
  // lanes of two rows meet no bank twice.
  __device__ static constexpr int unit_of(int i, int j) {
    if (kUnit == 8) return i * 4 + j;
    return i < kKeyRow / 128 * 2 ? i / 2 * 8 + 2 * j + i % 2 : kKeyRow / 128 * 8 + j;
  }
  // The first of the four columns that lane quarter j contributes to a step.
  __device__ static constexpr int column_of(int step, int j) {
    return unit_of(step / kUnitSteps, j) * (kUnit / kBytes) + step % kUnitSteps * 4;
  }
  // Where byte `at` of a row lies in shared memory: chunks of 16 are swizzled in rows that fill
  // whole turns of the banks.
  template <int kRow>
  __device__ static __forceinline__ uint32_t place(int row, int at) {
    return static_cast<uint32_t>(row * kRow + (kRow % 128 == 0 ? at ^ (row & 7) << 4 : at));
  }
};

struct Work {
  const int32_t* block_table;
  int first_row, context, first_query, end_query, kv_head;
  int first_tile, end_tile, tile_step;  // of the block's warps together
  int limit;                            // the position of the sequence's first row
};

template <int kBytes>
__device__ __forceinline__ void load_words(uint32_t from, uint32_t (&x)[kBytes / 4]) {
  if constexpr (kBytes == 16) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from));
  } else {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(from));
  }
}

// Starts the copy of the rows of one table block into a stage.
template <typename S, int kRow>
__device__ __forceinline__ void copy_rows_of_block(const Cache& cache, int64_t slot, int column,
                                                   int num_valid, int first_row, uint32_t to,
                                                   int lane) {
  constexpr int kChunks = kRow / 16;  // of a row
  const int64_t width = cache.width * S::kBytes;
  const auto* from = static_cast<const uint8_t*>(cache.data) + slot * width + column * S::kBytes;
#pragma unroll
  for (int i = 0; i < 16 * kChunks / 32; ++i) {
    const int row = (i * 32 + lane) / kChunks, chunk = (i * 32 + lane) % kChunks;
    copy_async(to + S::template place<kRow>(first_row + row, chunk * 16),
               from + (row < num_valid ? row * width : 0) + chunk * 16, row < num_valid ? 16 : 0);
  }
}

template <int kKey, int kValue, bool kShared, bool kFp8, int kTiles>
struct Warp {
  using S = Shape<kKey, kValue, kShared, kFp8, kTiles>;

  const Attention& a;
  const Work& work;
  uint32_t ring;
  int warp, lane, group, quarter;
  uint32_t q[kTiles][S::kSteps][4];
  float sums[kTiles][S::kValueTiles][4];
  float largest[kTiles][2], total[kTiles][2];
  int limit[kTiles][2];

  __device__ __forceinline__ void load_queries() {
    const int heads = a.num_heads / a.num_kv_heads;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = work.first_query + m * 16 + half * 8 + group;
        const bool is_query = query < work.end_query;
        const int row = query / heads, head = work.kv_head * heads + query % heads;
        limit[m][half] = work.limit + (is_query ? row : 0);
        const int64_t t = work.first_row + row;
        const auto* q0 =
            static_cast<const bf16*>(a.q0.data) + t * a.q0.row_stride + head * a.q0.head_stride;
        const auto* q1 = static_cast<const bf16*>(a.q1.data) + t * a.q1.row_stride +
                         head * a.q1.head_stride - kValue;
#pragma unroll
        for (int s = 0; s < S::kSteps; ++s) {
          const int column = S::column_of(s, quarter);
          const bf16* from = (kShared && column >= kValue ? q1 : q0) + column;
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            uint32_t pair = is_query ? *reinterpret_cast<const uint32_t*>(from + 2 * k) : 0u;
            if (kFp8) pair = pack_pair<true>(as_float(pair << 16), as_float(pair & 0xffff0000u));
            q[m][s][2 * k + half] = pair;
          }
        }
        largest[m][half] = kLowest;
        total[m][half] = 0;
      }
#pragma unroll
      for (int n = 0; n < S::kValueTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
      }
    }
  }

  __device__ __forceinline__ uint32_t stage(int turn) const {
    return ring + turn % kStages * S::kStageBytes;
  }

  // The copies of a tile, or nothing past the last, are one group.
  __device__ __forceinline__ void issue(int turn) {
    const int tile = work.first_tile + warp + turn * work.tile_step;
    if (tile < work.end_tile) {
#pragma unroll
      for (int first = 0; first < S::kPositions; first += 16) {
        const int position = tile * S::kPositions + first;
        const int num_valid = min(max(work.context - position, 0), 16);
        const int64_t slot =
            num_valid > 0 ? slot_of(work.block_table, a.keys.block_size, position) : 0;
        const int column = work.kv_head * a.kv_stride;
        copy_rows_of_block<S, S::kKeyRow>(a.keys, slot, column, num_valid, first, stage(turn),
                                          lane);
        if (!kShared) {
          copy_rows_of_block<S, S::kValueRow>(a.values, slot, column, num_valid, first,
                                              stage(turn) + S::kPositions * S::kKeyRow, lane);
        }
      }
    }
    commit_copies();
  }

  __device__ __forceinline__ void multiply_scores(uint32_t keys,
                                                  float (&scores)[kTiles][S::kScoreTiles][4]) {
#pragma unroll
    for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[m][n][i] = 0;
      }
#pragma unroll
      for (int u = 0; u < S::kUnits; ++u) {
        uint32_t words[S::kUnit / 4];
        load_words<S::kUnit>(
            keys + S::template place<S::kKeyRow>(n * 8 + group, S::unit_of(u, quarter) * S::kUnit),
            words);
#pragma unroll
        for (int k = 0; k < S::kUnitSteps; ++k) {
          const uint32_t b0 = kFp8 ? e4m3_pair(words[k]) : words[2 * k];
          const uint32_t b1 = kFp8 ? e4m3_pair(words[k] >> 16) : words[2 * k + 1];
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            mma<kFp8>(scores[m][n], q[m][u * S::kUnitSteps + k], b0, b1);
          }
        }
      }
    }
  }

  // Scores become weights, in place; sums of before are rescaled where scores have grown.
  __device__ __forceinline__ void softmax(int tile, float scale,
                                          float (&scores)[kTiles][S::kScoreTiles][4]) {
    const int first = tile * S::kPositions + 2 * quarter;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      float alpha[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float high = -INFINITY;
#pragma unroll
        for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& x = scores[m][n][2 * half + i];
            if (first + n * 8 + i > limit[m][half]) x = -INFINITY;
            high = fmaxf(high, x);
          }
        }
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 2)) * scale;
        alpha[half] = 1;
        if (high > largest[m][half] + kRescale) {
          alpha[half] = exp2_of(largest[m][half] - high);
          largest[m][half] = high;
        }
        float sum = 0;
#pragma unroll
        for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& x = scores[m][n][2 * half + i];
            x = exp2_of(fmaf(x, scale, -largest[m][half]));
            sum += x;
          }
        }
        total[m][half] = total[m][half] * alpha[half] + sum;
      }
      if (__any_sync(~0u, alpha[0] != 1.0f || alpha[1] != 1.0f) != 0) {
#pragma unroll
        for (int n = 0; n < S::kValueTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[m][n][i] *= alpha[i / 2];
        }
      }
    }
  }

  // Result tile u · kUnitColumns + c has the columns (n + 8u) · kUnitColumns + c, n = 0…7.
  __device__ __forceinline__ void multiply_values(
      uint32_t values, const float (&weights)[kTiles][S::kScoreTiles][4]) {
    constexpr int kRow = kShared ? S::kKeyRow : S::kValueRow;
#pragma unroll
    for (int k = 0; k < S::kPositions / 16; ++k) {
      uint32_t p[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&w)[4] = weights[m][2 * k + i / 2];
          p[m][i] = pack_pair<kFp8>(w[i % 2 * 2], w[i % 2 * 2 + 1]);
        }
      }
#pragma unroll
      for (int u = 0; u < S::kValueUnits; ++u) {
        constexpr int kWords = S::kValueUnit / 4;
        uint32_t rows[4][kWords];  // positions 2j, 2j + 1, 2j + 8, 2j + 9
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int row = k * 16 + 2 * quarter + r / 2 * 8 + r % 2;
          load_words<S::kValueUnit>(
              values + S::template place<kRow>(row, (group + 8 * u) * S::kValueUnit), rows[r]);
        }
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          if constexpr (kFp8) {
#pragma unroll
            for (int pair = 0; pair < 2; ++pair) {  // columns 0, 1 and 2, 3 of the word
              const int pick = pair == 0 ? 0x5140 : 0x7362;
              const uint32_t low = __byte_perm(rows[0][w], rows[1][w], pick);
              const uint32_t high = __byte_perm(rows[2][w], rows[3][w], pick);
              const int n = u * S::kUnitColumns + 4 * w + 2 * pair;
              add_products(n, p, e4m3_pair(low), e4m3_pair(high));
              add_products(n + 1, p, e4m3_pair(low >> 16), e4m3_pair(high >> 16));
            }
          } else {
            const int n = u * S::kUnitColumns + 2 * w;
            add_products(n, p, __byte_perm(rows[0][w], rows[1][w], 0x5410),
                         __byte_perm(rows[2][w], rows[3][w], 0x5410));
            add_products(n + 1, p, __byte_perm(rows[0][w], rows[1][w], 0x7632),
                         __byte_perm(rows[2][w], rows[3][w], 0x7632));
          }
        }
      }
    }
  }
  __device__ __forceinline__ void add_products(int n, const uint32_t (&p)[kTiles][4], uint32_t b0,
                                               uint32_t b1) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) mma<kFp8>(sums[m][n], p[m], b0, b1);
  }

  __device__ __forceinline__ void attend(float scale) {
#pragma unroll
    for (int turn = 0; turn < kStages - 1; ++turn) issue(turn);
    load_queries();
    int turn = 0;
    for (int tile = work.first_tile + warp; tile < work.end_tile; tile += work.tile_step, ++turn) {
      wait_copies<kStages - 2>();
      __syncwarp();  // of all lanes, and all have done with the stage that is filled next
      issue(turn + kStages - 1);
      float scores[kTiles][S::kScoreTiles][4];
      const uint32_t keys = stage(turn);
      multiply_scores(keys, scores);
      softmax(tile, scale, scores);
      multiply_values(kShared ? keys : keys + S::kPositions * S::kKeyRow, scores);
    }
    wait_copies<0>();
  }

  // [warp][query][kMergeStride] sums, then [warp][query] largest and total.
  __device__ __forceinline__ void leave(float* merge) {
    float* softmax_of = merge + kWarps * S::kQueries * S::kMergeStride;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = warp * S::kQueries + m * 16 + half * 8 + group;
        float sum = total[m][half];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (quarter == 0) {
          softmax_of[2 * at] = largest[m][half];
          softmax_of[2 * at + 1] = sum;
        }
        float* row = merge + at * S::kMergeStride;
#pragma unroll
        for (int n = 0; n < S::kValueTiles; ++n) {
          const int unit = n / S::kUnitColumns, c = n % S::kUnitColumns;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            row[(2 * quarter + i + 8 * unit) * S::kUnitColumns + c] = sums[m][n][2 * half + i];
          }
        }
      }
    }
  }
};

// Adds the warps' sums and stores them, four columns a thread.
template <typename S, int kValue>
__device__ __forceinline__ void merge_and_store(const Attention& a, const Split& split,
                                                const Work& work, const float* merge) {
  const float* softmax_of = merge + kWarps * S::kQueries * S::kMergeStride;
  const int heads = a.num_heads / a.num_kv_heads;
  for (int i = static_cast<int>(threadIdx.x); i < S::kQueries * (kValue / 4); i += kThreads) {
    const int row = i / (kValue / 4), column = i % (kValue / 4) * 4;
    const int query = work.first_query + row;
    if (query >= work.end_query) continue;
    float largest = kLowest, total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      largest = fmaxf(largest, softmax_of[2 * (w * S::kQueries + row)]);
    }
    float x[4] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const int at = w * S::kQueries + row;
      const float weight = exp2_of(softmax_of[2 * at] - largest);
      total += weight * softmax_of[2 * at + 1];
      const float4 part = *reinterpret_cast<const float4*>(merge + at * S::kMergeStride + column);
      x[0] += weight * part.x;
      x[1] += weight * part.y;
      x[2] += weight * part.z;
      x[3] += weight * part.w;
    }
    const int64_t t = work.first_row + query / heads;
    const int head = work.kv_head * heads + query % heads;
    const float factor = split.count == 1 ? a.values.scale / total : a.values.scale;
#pragma unroll
    for (float& value : x) value *= factor;
    if (split.count == 1) {
      store_floats(
          static_cast<bf16*>(a.out.data) + t * a.out.row_stride + head * a.out.head_stride + column,
          x);
    } else {
      const int64_t part = (t * a.num_heads + head) * split.count + static_cast<int>(blockIdx.y);
      store_floats(split.values + part * kValue + column, x);
      if (column == 0) split.softmax[part] = {largest * kLn2, total};
    }
  }
}

// What a split without positions leaves.
__device__ __forceinline__ void store_nothing(const Attention& a, const Split& split,
                                              const Work& work) {
  const int heads = a.num_heads / a.num_kv_heads;
  const int query = work.first_query + static_cast<int>(threadIdx.x);
  if (query >= work.end_query) return;
  const int64_t t = work.first_row + query / heads;
  const int head = work.kv_head * heads + query % heads;
  split.softmax[(t * a.num_heads + head) * split.count + static_cast<int>(blockIdx.y)] = {kLowest,
                                                                                          0};
}

template <int kKey, int kValue, bool kShared, bool kFp8, int kTiles>
__global__ void __launch_bounds__(kThreads, 2)
    mma_attention_kernel(const __grid_constant__ Attention a, const __grid_constant__ Split split) {
  using W = Warp<kKey, kValue, kShared, kFp8, kTiles>;
  using S = typename W::S;
  start_dependents();
  wait_for_inputs();
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ LocateShared shared;
  const int heads = a.num_heads / a.num_kv_heads;
  const auto query_tiles = [&](const Sequence& s) {
    return (s.num_rows * heads + S::kQueries - 1) / S::kQueries;
  };
  const Located found = locate(
      a.batch, [&](const Sequence& s) { return query_tiles(s) * a.num_kv_heads; },
      [&](int total) { return total - 1 - static_cast<int>(blockIdx.x); }, shared);
  if (found.sequence < 0) return;
  const Sequence sequence = a.batch.sequences[found.sequence];
  Work work;
  work.block_table = sequence.block_table;
  work.first_row = sequence.first_row;
  work.limit = sequence.first_position;
  work.context = sequence.first_position + sequence.num_rows;
  work.kv_head = found.offset / query_tiles(sequence);
  work.first_query = found.offset % query_tiles(sequence) * S::kQueries;
  work.end_query = min(work.first_query + S::kQueries, sequence.num_rows * heads);
  const int visible = sequence.first_position + (work.end_query - 1) / heads + 1;
  const int tiles = (visible + S::kPositions - 1) / S::kPositions;
  const int per_split = split.is_striped ? kWarps : (tiles + split.count - 1) / split.count;
  work.first_tile = static_cast<int>(blockIdx.y) * per_split;
  work.end_tile = split.is_striped ? tiles : min(work.first_tile + per_split, tiles);
  work.tile_step = split.is_striped ? kWarps * split.count : kWarps;
  if (work.first_tile >= work.end_tile) return store_nothing(a, split, work);

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  W own{a, work, shared_address(dynamic) + warp * S::kRingBytes, warp, lane, lane / 4, lane % 4};
  own.attend(a.scale * a.keys.scale * kLog2E);
  __syncthreads();  // the rings become the room to merge in
  auto* merge = reinterpret_cast<float*>(dynamic);
  own.leave(merge);
  __syncthreads();
  merge_and_store<S, kValue>(a, split, work, merge);
}

// ---- host ---------------------------------------------------------------------------------------

struct Choice {
  int key, value;
  bool is_shared;
  void (*run)(const Attention& a, const Split& split, int num_items, void* stream);
};

int queries_per_item(const Attention& a) {
  return a.batch.max_rows * (a.num_heads / a.num_kv_heads) <= 16 ? 16 : 32;
}

// No batch of this shape has more.
int num_items(const Attention& a) {
  const int heads = a.num_heads / a.num_kv_heads, queries = queries_per_item(a);
  const int by_sequence =
      a.batch.num_sequences * ((a.batch.max_rows * heads + queries - 1) / queries);
  const int by_row = a.batch.num_rows * heads / queries + a.batch.num_sequences;
  return std::min(by_sequence, by_row) * a.num_kv_heads;
}

template <int kKey, int kValue, bool kShared, bool kFp8, int kTiles>
void run_shape(const Attention& a, const Split& split, int num_items, void* stream) {
  using S = Shape<kKey, kValue, kShared, kFp8, kTiles>;
  static const bool is_allowed = [] {
    allow_shared_memory("attention", mma_attention_kernel<kKey, kValue, kShared, kFp8, kTiles>,
                        S::kSharedBytes);
    return true;
  }();
  static_cast<void>(is_allowed);
  launch("attention", mma_attention_kernel<kKey, kValue, kShared, kFp8, kTiles>,
         dim3(static_cast<unsigned>(num_items), static_cast<unsigned>(split.count)), dim3(kThreads),
         S::kSharedBytes, stream, a, split);
}

template <int kKey, int kValue, bool kShared>
void run_choice(const Attention& a, const Split& split, int num_items, void* stream) {
  const bool is_narrow = queries_per_item(a) == 16;
  if (a.keys.is_fp8) {
    (is_narrow ? run_shape<kKey, kValue, kShared, true, 1>
               : run_shape<kKey, kValue, kShared, true, 2>)(a, split, num_items, stream);
  } else {
    (is_narrow ? run_shape<kKey, kValue, kShared, false, 1>
               : run_shape<kKey, kValue, kShared, false, 2>)(a, split, num_items, stream);
  }
}

// Drafts' heads of 128, nano's of 64, nano's MLA.
const Choice* choice_for(const Attention& a) {
  static const Choice choices[] = {{128, 128, false, run_choice<128, 128, false>},
                                   {64, 64, false, run_choice<64, 64, false>},
                                   {160, 128, true, run_choice<160, 128, true>}};
  for (const Choice& c : choices) {
    if (c.key == a.dim0 + a.dim1 && c.value == a.dim_v && c.is_shared == a.shared_values) return &c;
  }
  return nullptr;
}

bool is_aligned(const Heads& x, int columns) {
  return x.type == Type::kBF16 && x.row_stride % columns == 0 && x.head_stride % columns == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % (columns * 2) == 0;
}
bool is_aligned(const Cache& cache, int kv_stride) {
  const int columns = cache.is_fp8 ? 16 : 8;
  return cache.width % columns == 0 && kv_stride % columns == 0 && cache.block_size % 16 == 0 &&
         reinterpret_cast<uintptr_t>(cache.data) % 16 == 0;
}

bool can_run(const Attention& a, int compute_capability) {
  return compute_capability >= 80 && choice_for(a) != nullptr && a.scale > 0 &&
         (!a.shared_values || a.dim0 == a.dim_v) && is_aligned(a.q0, 2) && is_aligned(a.q1, 2) &&
         is_aligned(a.out, 4) && is_aligned(a.keys, a.kv_stride) &&
         is_aligned(a.values, a.kv_stride) && a.keys.is_fp8 == a.values.is_fp8;
}

// MLA of small shapes is short: stripes of four tiles are dealt out to a fixed number of splits, so
// that where a position is added depends on the position only, whatever the batch. For a draft two
// blocks a processor are wanted, and in deterministic mode its positions are not divided.
constexpr int kStripedSplits = 8;

int num_splits(const Attention& a, int num_processors) {
  if (a.shared_values) return kStripedSplits;
  if (a.is_deterministic || num_items(a) == 0) return 1;
  return std::clamp(2 * num_processors / num_items(a), 1, kMaxSplits);
}

size_t scratch_bytes(const Attention& a, int num_processors) {
  return split_bytes(a, num_splits(a, num_processors));
}

void run(const Attention& a, int num_processors, void* stream) {
  const int items = num_items(a);
  if (items == 0) return;
  Split split = split_of(a, num_splits(a, num_processors));
  split.is_striped = a.shared_values;
  choice_for(a)->run(a, split, items, stream);
  if (split.count > 1) launch_combine(a, split, stream);
}

}  // namespace

const AttentionKernel& attention_sm80() {
  static const AttentionKernel kernel{"sm80", can_run, scratch_bytes, run};
  return kernel;
}

}  // namespace eyrie::ops::gpu
