// How absorbed MLA is divided among blocks. A query is one head of one row; 64 of a sequence are a
// query tile, 32 positions a position tile; an item is a query tile against a run of position
// tiles. Every role of a block walks the same items. Lengths are read on the device, so a captured
// graph stays right as sequences grow.
//
//   kGrouped  few rows a sequence. Position tiles of all sequences, end to end, are cut into parts
//   of
//             equal length; the query tiles of a sequence go through a part side by side, a block
//             each, so that the part comes from memory once. What a cut leaves unfinished goes to
//             scratch: slot 2b for the run block b began in the middle, 2b + 1 for the one it left.
//   kWhole    many rows: a block is one query tile against all it sees.
//   kFixed    deterministic: a block is 64 heads of one row against every kSplits-th stretch of
//             kStretch position tiles: its sums depend on nothing but the row.
#pragma once

#include "ops/gpu/attention_math.cuh"

namespace eyrie::ops::gpu::mla {

constexpr int kQueries = 64;
constexpr int kTile = 32;
constexpr int kLatent = 512;
constexpr int kRope = 64;
constexpr int kWidth = kLatent + kRope;
constexpr int kSplits = 8;   // kFixed
constexpr int kStretch = 8;  // kFixed
constexpr float kLog2E = 1.4426950408889634f;

// The kernel's shapes.
constexpr int kThreads = 512;  // four warpgroups: producer, scores, two of values
constexpr int kBlockBytes = kTile * 128;
constexpr int kColumnBlocks = kWidth / 64;
constexpr int kTileBytes = kColumnBlocks * kBlockBytes;
constexpr int kRawBytes = kTile * kWidth;  // an E4M3 tile as it comes
constexpr int kQueryBlockBytes = kQueries * 128;
constexpr int kSumColumns = kLatent / 2;  // of one warpgroup
constexpr int kRescale = 8;  // sums are rescaled when scores grow by more than this power of 2

// Of shared memory, in bytes.
template <bool kFp8>
struct Layout {
  static constexpr int kStages = kFp8 ? 3 : 4;
  static constexpr int kRawStages = 2;
  static constexpr int kRaw = kStages * kTileBytes;
  static constexpr int kQuery = kRaw + (kFp8 ? kRawStages * kRawBytes : 0);
  static constexpr int kWeights = kQuery + kColumnBlocks * kQueryBlockBytes;  // two tiles' abreast
  static constexpr int kAlpha = kWeights + kQueries * 128;                    // [2][kQueries]
  static constexpr int kSoftmax = kAlpha + 2 * kQueries * 4;                  // [2][kQueries]
  static constexpr int kBarriers = kSoftmax + 2 * kQueries * 8;
  static constexpr int kBytes = kBarriers + (2 * kStages + 4) * 8 + 1024;  // what aligning may take
};

// Addresses in shared memory. Barriers, 8 bytes apart: a stage is full, is empty; weights are
// there, were read.
struct Room {
  uint32_t tiles, raw, query, weights, alpha, softmax;
  uint32_t full, empty, weighed, read;
};

enum class Mode : int32_t { kGrouped, kWhole, kFixed };

// What a block left in scratch, for the kernel that adds it up.
struct Left {
  int32_t sequence;   // whose item it began and did not finish, in slot 2b + 1; -1: none
  int32_t num_slots;  // of that item: this one and 2b of the blocks that go on with it
};

struct Schedule {
  Mode mode;
  int32_t group;       // kGrouped: query tiles side by side
  int32_t num_parts;   // kGrouped
  int32_t min_tiles;   // kGrouped: of a part
  int32_t first_row;   // kFixed: of this launch
  int32_t head_tiles;  // kFixed
  float* sums;         // [slots, kQueries, kLatent]
  float2* softmax;     // [slots, kQueries]: largest (in powers of 2) and sum
  Left* left;          // [blocks]
};

struct Item {
  const int32_t* block_table;
  int32_t first_row, first_position;
  int32_t context;                 // positions that are written
  int32_t first_query, end_query;  // row · heads + head, from the sequence's first row on
  int32_t first_tile, num_tiles;
  int32_t slot;  // of scratch; -1: the item is whole and goes to out
};

struct Walk {
  int32_t sequence, offset, left;
  int32_t query_tile;
  int32_t per_part;  // kGrouped
};

__device__ __forceinline__ int div_up(int x, int y) { return (x + y - 1) / y; }
__device__ __forceinline__ int position_tiles(const Sequence& s) {
  return s.num_rows == 0 ? 0 : div_up(s.first_position + s.num_rows, kTile);
}
__device__ __forceinline__ int query_tiles(const Sequence& s, int num_heads) {
  return div_up(s.num_rows * num_heads, kQueries);
}

// Where the j-th tile of an item lies.
__device__ __forceinline__ int tile_at(Mode mode, const Item& item, int j) {
  if (mode != Mode::kFixed) return item.first_tile + j;
  return item.first_tile + j / kStretch * (kStretch * kSplits) + j % kStretch;
}

// Called by all threads of the block.
__device__ __forceinline__ Walk begin_walk(const Attention& a, const Schedule& s,
                                           LocateShared& shared) {
  const int block = static_cast<int>(blockIdx.x);
  if (s.mode == Mode::kFixed) {
    const int t = s.first_row + block / (kSplits * s.head_tiles);
    const int found = find_sequence(a.batch, t, &shared.found.sequence);
    return {found, t, found >= 0 ? 1 : 0, block / kSplits % s.head_tiles, 0};
  }
  if (s.mode == Mode::kWhole) {
    // The longest, of a sequence's last rows, first.
    const Located at = locate(
        a.batch, [&](const Sequence& q) { return query_tiles(q, a.num_heads); },
        [&](int total) { return total - 1 - block; }, shared);
    return {at.sequence, at.offset, at.sequence >= 0 ? 1 : 0, 0, 0};
  }
  int begin = 0, length = 0, per_part = 0;
  const Located at = locate(
      a.batch, [](const Sequence& q) { return position_tiles(q); },
      [&](int total) {
        per_part = max(s.min_tiles, div_up(total, s.num_parts));
        begin = block / s.group * per_part;
        length = max(0, min(per_part, total - begin));
        return begin;
      },
      shared);
  return {at.sequence, at.offset, length, block % s.group, per_part};
}

// The next item, if there is one.
__device__ __forceinline__ bool next_item(const Attention& a, const Schedule& s, Walk& walk,
                                          Item& item, Left& left) {
  const int block = static_cast<int>(blockIdx.x);
  while (walk.left > 0) {
    const Sequence q = a.batch.sequences[walk.sequence];
    item.block_table = q.block_table;
    item.first_row = q.first_row;
    item.first_position = q.first_position;
    item.context = q.first_position + q.num_rows;
    item.slot = -1;
    if (s.mode == Mode::kFixed) {
      const int row = walk.offset - q.first_row;
      item.first_query = row * a.num_heads + walk.query_tile * kQueries;
      item.end_query = min(item.first_query + kQueries, (row + 1) * a.num_heads);
      const int split = block % kSplits;
      item.first_tile = split * kStretch;
      const int tiles = div_up(q.first_position + row + 1, kTile);
      const int rounds = tiles / (kStretch * kSplits);
      const int rest = tiles - rounds * (kStretch * kSplits) - item.first_tile;
      item.num_tiles = rounds * kStretch + max(0, min(kStretch, rest));
      item.slot = block;
      walk.left = 0;
      return true;
    }
    if (s.mode == Mode::kWhole) {
      item.first_query = walk.offset * kQueries;
      item.end_query = min(item.first_query + kQueries, q.num_rows * a.num_heads);
      const int last_row = (item.end_query - 1) / a.num_heads;
      item.first_tile = 0;
      item.num_tiles = div_up(q.first_position + last_row + 1, kTile);
      walk.left = 0;
      return true;
    }
    const int tiles = position_tiles(q);
    if (tiles == 0) {
      ++walk.sequence;
      continue;
    }
    const bool begins = walk.offset == 0;
    item.first_tile = walk.offset;
    item.num_tiles = min(walk.left, tiles - walk.offset);
    const bool ends = item.first_tile + item.num_tiles == tiles;
    item.first_query = walk.query_tile * kQueries;
    item.end_query = min(item.first_query + kQueries, q.num_rows * a.num_heads);
    walk.left -= item.num_tiles;
    const int sequence = walk.sequence;
    ++walk.sequence;
    walk.offset = 0;
    if (item.first_query >= item.end_query) continue;  // this sequence has fewer query tiles
    if (!begins) {
      item.slot = 2 * block;
    } else if (!ends) {
      item.slot = 2 * block + 1;
      left.sequence = sequence;
      left.num_slots = 1 + div_up(tiles - item.num_tiles, walk.per_part);
    }
    return true;
  }
  return false;
}

}  // namespace eyrie::ops::gpu::mla
