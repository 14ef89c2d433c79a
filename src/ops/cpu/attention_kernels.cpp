// Attention of a group of queries over one sequence's paged cache, 16 positions at a time. For each
// tile the keys are transposed to [width][16] and the values widened to float32, once for all
// queries, from bfloat16 or E4M3 codes; an FP8 cache's scales are factors of the scores and of the
// output. Scores: one lane is one position, summed over the width ascending. Softmax: running
// maximum and 16 partial sums per query. Output: one lane is one value column, summed over
// positions ascending; positions a query may not see are left out rather than multiplied by zero.
// Nothing in a query's operations depends on which other queries share the tile.
#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/cache_tile-inl.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eyrie::ops::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
inline constexpr int kScoreRows = 12;  // × one vector of 16 positions
inline constexpr int kValueRows = 8;   // × two vectors of value columns
#else
inline constexpr int kScoreRows = 4;
inline constexpr int kValueRows = 4;
#endif

// Scratch of one attend(), carved out of the caller's memory. Queries are ordered by group, then
// row, then head of the group.
struct Scratch {
  float* queries;  // per group: register tiles [width][rows], one after the other
  float* keys;     // per group: [width][16]
  float* values;   // per group: [16][dim_v]
  float* probs;    // [queries][16]
  float* sums;     // [queries][16]
  float* maxima;   // [queries]
  float* factors;  // [queries + 16 of padding]: what the output so far is multiplied by
};

// scores[r][16] = queries[·][r] · keys[·][16]
template <int R>
void score_tile(const float* queries, const float* keys, int width, float* scores) {
  VF acc[R][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::Zero(df);
  }
  for (int k = 0; k < width; ++k, keys += 16, queries += R) {
    VF key[kVecs];
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) key[v] = hn::LoadU(df, keys + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const VF q = hn::Set(df, queries[r]);
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::MulAdd(q, key[v], acc[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) hn::StoreU(acc[r][v], df, scores + r * 16 + v * kLanes);
  }
}

using ScoreTile = void (*)(const float*, const float*, int, float*);
inline constexpr ScoreTile kScoreTiles[] = {
    score_tile<1>, score_tile<2>,  score_tile<3>,  score_tile<4>,
#if HWY_TARGET == HWY_AVX3
    score_tile<5>, score_tile<6>,  score_tile<7>,  score_tile<8>,
    score_tile<9>, score_tile<10>, score_tile<11>, score_tile<12>,
#endif
};
static_assert(sizeof(kScoreTiles) / sizeof(kScoreTiles[0]) == kScoreRows);

// The softmax step of queries [begin, end) over a tile: scores → probs in place, sums, maxima, and
// factors, by which the output so far is multiplied. Three passes, so that the queries' chains of
// operations overlap; `seen(q)` positions of the tile are visible to query q.
template <typename Seen>
HWY_INLINE void softmax_step(const Scratch& s, int64_t begin, int64_t end, float scale,
                             const Seen& seen) {
  const VF minus_inf = hn::Set(df, -HUGE_VALF);
  const auto mask = [](int visible, int v) HWY_ATTR {
    return hn::RebindMask(df, hn::Lt(hn::Iota(di, v * kLanes), hn::Set(di, visible)));
  };
  for (int64_t q = begin; q < end; ++q) {
    float* scores = s.probs + q * 16;
    VF largest = minus_inf;
    for (int v = 0; v < kVecs; ++v) {
      const VF x = hn::Mul(hn::LoadU(df, scores + v * kLanes), hn::Set(df, scale));
      const VF y = hn::IfThenElse(mask(seen(q), v), x, minus_inf);
      hn::StoreU(y, df, scores + v * kLanes);
      largest = hn::Max(largest, y);
    }
    const float old = s.maxima[q], tile = hn::GetLane(hn::MaxOfLanes(df, largest));
    s.maxima[q] = HWY_MAX(old, tile);
    s.factors[q] = old - s.maxima[q];  // -inf in the first tile
  }
  for (int64_t q = begin; q < end; q += kLanes) {  // the last vector may go past the end: padding
    hn::StoreU(exp(hn::LoadU(df, s.factors + q)), df, s.factors + q);
  }
  for (int64_t q = begin; q < end; ++q) {
    float* scores = s.probs + q * 16;
    for (int v = 0; v < kVecs; ++v) {
      // What is not seen is -inf here, and e^-inf is 0.
      const VF x = hn::LoadU(df, scores + v * kLanes);
      const VF p = exp(hn::Sub(x, hn::Set(df, s.maxima[q])));
      hn::StoreU(p, df, scores + v * kLanes);
      float* sums = s.sums + q * 16 + v * kLanes;
      hn::StoreU(hn::MulAdd(hn::LoadU(df, sums), hn::Set(df, s.factors[q]), p), df, sums);
    }
  }
}

// out[r][·] = out[r][·] · factor[r] + Σ_{j < count} probs[r][j] · values[j][·]
template <int R, int V>
HWY_INLINE void value_columns(const float* probs, const float* factors, const float* values,
                              int count, int width, int column, float* const* out) {
  VF acc[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const VF factor = hn::Set(df, factors[r]);
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      acc[r][v] = hn::Mul(hn::LoadU(df, out[r] + column + v * kLanes), factor);
    }
  }
  for (int j = 0; j < count; ++j) {
    VF value[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      value[v] = hn::LoadU(df, values + int64_t{j} * width + column + v * kLanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const VF p = hn::Set(df, probs[r * 16 + j]);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) acc[r][v] = hn::MulAdd(p, value[v], acc[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) hn::StoreU(acc[r][v], df, out[r] + column + v * kLanes);
  }
}

template <int R>
void value_tile(const float* probs, const float* factors, const float* values, int count, int width,
                float* const* out) {
  int column = 0;
  for (; column + 2 * kLanes <= width; column += 2 * kLanes) {
    value_columns<R, 2>(probs, factors, values, count, width, column, out);
  }
  for (; column + kLanes <= width; column += kLanes) {
    value_columns<R, 1>(probs, factors, values, count, width, column, out);
  }
  for (; column < width; ++column) {
    for (int r = 0; r < R; ++r) {
      const hn::CappedTag<float, 1> d1;
      auto sum = hn::Mul(hn::Set(d1, out[r][column]), hn::Set(d1, factors[r]));
      for (int j = 0; j < count; ++j) {
        sum = hn::MulAdd(hn::Set(d1, probs[r * 16 + j]),
                         hn::Set(d1, values[int64_t{j} * width + column]), sum);
      }
      out[r][column] = hn::GetLane(sum);
    }
  }
}

using ValueTile = void (*)(const float*, const float*, const float*, int, int, float* const*);
inline constexpr ValueTile kValueTiles[] = {
    value_tile<1>, value_tile<2>, value_tile<3>, value_tile<4>,
#if HWY_TARGET == HWY_AVX3
    value_tile<5>, value_tile<6>, value_tile<7>, value_tile<8>,
#endif
};
static_assert(sizeof(kValueTiles) / sizeof(kValueTiles[0]) == kValueRows);

// Where query q of its group is: row and head.
struct Place {
  int64_t row, head;
};

HWY_INLINE Place place_of(const AttendParams& p, int group, int64_t q) {
  return {q / p.heads_per_group, group * p.heads_per_group + q % p.heads_per_group};
}

// Queries [begin, end) of a group, all of which see `count` positions of the tile.
void add_values(const AttendParams& p, const Scratch& s, int group, int64_t begin, int64_t end,
                int count) {
  const int64_t first = int64_t{group} * p.num_rows * p.heads_per_group;
  const float* values = s.values + int64_t{group} * 16 * p.dim_v;
  float* out[kValueRows];
  for (int64_t q = begin; q < end; q += kValueRows) {
    const auto rows = static_cast<int>(HWY_MIN(int64_t{kValueRows}, end - q));
    for (int r = 0; r < rows; ++r) {
      const Place place = place_of(p, group, q + r);
      out[r] = p.out + place.row * p.out_row + place.head * p.out_head;
    }
    kValueTiles[rows - 1](s.probs + (first + q) * 16, s.factors + first + q, values, count, p.dim_v,
                          out);
  }
}

void pack_queries(const AttendParams& p, int group, float* packed) {
  const int width = p.dim0 + p.dim1;
  const int64_t num_queries = int64_t{p.num_rows} * p.heads_per_group;
  for (int64_t begin = 0; begin < num_queries; begin += kScoreRows, packed += kScoreRows * width) {
    const int64_t rows = HWY_MIN(int64_t{kScoreRows}, num_queries - begin);
    for (int64_t r = 0; r < rows; ++r) {
      const Place place = place_of(p, group, begin + r);
      const float* q0 = p.q0 + place.row * p.q0_row + place.head * p.q0_head;
      const float* q1 = p.q1 + place.row * p.q1_row + place.head * p.q1_head;
      for (int k = 0; k < p.dim0; ++k) packed[k * rows + r] = q0[k];
      for (int k = 0; k < p.dim1; ++k) packed[(p.dim0 + k) * rows + r] = q1[k];
      float* out = p.out + place.row * p.out_row + place.head * p.out_head;
      for (int k = 0; k < p.dim_v; ++k) out[k] = 0.0f;
    }
  }
}

Scratch carve(const AttendParams& p, float* memory) {
  const int64_t num_queries = int64_t{p.num_rows} * p.num_groups * p.heads_per_group;
  Scratch s{};
  s.keys = memory;
  s.values = s.keys + int64_t{p.num_groups} * (p.dim0 + p.dim1) * 16;
  s.probs = s.values + int64_t{p.num_groups} * p.dim_v * 16;
  s.sums = s.probs + num_queries * 16;
  s.maxima = s.sums + num_queries * 16;
  s.factors = s.maxima + num_queries;
  s.queries = s.factors + num_queries + 16;
  return s;
}

// Asks for a tile's cache rows while the one before is computed.
template <typename E>
HWY_INLINE void prefetch_rows(const E* rows, int64_t stride, int64_t columns) {
  constexpr int64_t kLine = 64 / sizeof(E);
  for (int i = 0; i < 16; ++i) {
    for (int64_t c = 0; c < columns; c += kLine) {
      __builtin_prefetch(rows + i * stride + c);
    }
  }
}

int64_t slot_of(const AttendParams& p, int64_t position) {
  return p.block_table[position / p.block_size] * int64_t{p.block_size} + position % p.block_size;
}

template <typename E>
void attend_tile(const AttendParams& p, const Scratch& s, int64_t j) {
  const auto* all_keys = static_cast<const E*>(p.keys);
  const auto* all_values = static_cast<const E*>(p.values);
  const int width = p.dim0 + p.dim1;
  const int64_t last_position = p.first_position + p.num_rows - 1;
  const int64_t per_group = int64_t{p.num_rows} * p.heads_per_group;
  const auto filled = static_cast<int>(HWY_MIN(int64_t{16}, last_position + 1 - j));
  const int64_t slot = slot_of(p, j);
  const E* keys = all_keys + p.first_column + slot * p.key_stride;
  const E* values = all_values + p.first_column + slot * p.value_stride;
  if (j + kAttentionTile <= last_position) {
    const int64_t next = slot_of(p, j + kAttentionTile);
    const int64_t further = (p.num_groups - 1) * p.kv_group;
    prefetch_rows(all_keys + p.first_column + next * p.key_stride, p.key_stride, further + width);
    if (p.values != p.keys) {
      prefetch_rows(all_values + p.first_column + next * p.value_stride, p.value_stride,
                    further + p.dim_v);
    }
  }
  // Rows from first_seeing on see the tile, from first_full on all of it.
  const int64_t first_seeing = HWY_MAX(int64_t{0}, j - p.first_position);
  const int64_t first_full =
      HWY_MIN(int64_t{p.num_rows}, HWY_MAX(first_seeing, j + 15 - p.first_position));
  const int64_t first_query = first_seeing * p.heads_per_group;

  // Stage by stage over all groups: their chains of operations overlap.
  for (int g = 0; g < p.num_groups; ++g) {
    float* transposed = s.keys + int64_t{g} * width * 16;
    transpose_keys(keys + g * p.kv_group, p.key_stride, width, transposed);
    widen_values(values + g * p.kv_group, p.value_stride, filled, p.dim_v,
                 s.values + int64_t{g} * 16 * p.dim_v);
    const int64_t first = g * per_group;
    for (int64_t q = first_query / kScoreRows * kScoreRows; q < per_group; q += kScoreRows) {
      const auto rows = static_cast<int>(HWY_MIN(int64_t{kScoreRows}, per_group - q));
      kScoreTiles[rows - 1](s.queries + (first + q) * width, transposed, width,
                            s.probs + (first + q) * 16);
    }
  }
  for (int g = 0; g < p.num_groups; ++g) {
    const int64_t first = g * per_group;
    softmax_step(s, first + first_query, first + per_group, p.scale, [&](int64_t q) HWY_ATTR {
      const int64_t seen = p.first_position + (q - first) / p.heads_per_group + 1 - j;
      return static_cast<int>(HWY_MIN(int64_t{16}, seen));
    });
  }
  for (int g = 0; g < p.num_groups; ++g) {
    for (int64_t row = first_seeing; row < first_full; ++row) {
      add_values(p, s, g, row * p.heads_per_group, (row + 1) * p.heads_per_group,
                 static_cast<int>(p.first_position + row + 1 - j));
    }
    add_values(p, s, g, first_full * p.heads_per_group, per_group, 16);
  }
}

template <typename E>
void attend(const AttendParams& p, float* scratch) {
  const Scratch s = carve(p, scratch);
  const int64_t per_group = int64_t{p.num_rows} * p.heads_per_group;
  for (int g = 0; g < p.num_groups; ++g) {
    pack_queries(p, g, s.queries + g * per_group * (p.dim0 + p.dim1));
  }
  for (int64_t q = 0; q < per_group * p.num_groups; ++q) {
    s.maxima[q] = -HUGE_VALF;
    for (int i = 0; i < 16; ++i) s.sums[q * 16 + i] = 0.0f;
  }
  for (int64_t j = 0; j < p.first_position + p.num_rows; j += kAttentionTile) {
    attend_tile<E>(p, s, j);
  }
  for (int g = 0; g < p.num_groups; ++g) {
    for (int64_t q = 0; q < per_group; ++q) {
      const float inverse = p.value_scale / sum16(s.sums + (g * per_group + q) * 16);
      const Place place = place_of(p, g, q);
      float* out = p.out + place.row * p.out_row + place.head * p.out_head;
      for (int i = 0; i < p.dim_v; ++i) out[i] *= inverse;
    }
  }
}

const AttentionKernels* attention_table() {
  static constexpr AttentionKernels kTable{.attend_bf16 = attend<bf16>,
                                           .attend_fp8 = attend<uint8_t>};
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace eyrie::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eyrie::ops::cpu {
HWY_EXPORT(attention_table);

const AttentionKernels& attention_kernels() {
  init_isa();
  return *HWY_DYNAMIC_DISPATCH(attention_table)();
}

int64_t attend_scratch(int64_t num_queries, int64_t num_groups, int64_t key_width,
                       int64_t value_width) {
  return num_groups * (key_width + value_width) * 16 + num_queries * (16 + 16 + 2 + key_width) + 32;
}

}  // namespace eyrie::ops::cpu
#endif
