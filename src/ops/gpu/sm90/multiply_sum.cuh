// What empties the stages of multiply.cuh's kernel: the consumers' products, the meeting of their
// sums and what is written.
#pragma once

#include "ops/gpu/sm80/copy.cuh"
#include "ops/gpu/sm80/mma.cuh"
#include "ops/gpu/sm90/async.cuh"
#include "ops/gpu/sm90/multiply_codes.cuh"
#include "ops/gpu/sm90/multiply_shape.cuh"

namespace eyrie::ops::gpu::sm90 {

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
          mma<false>(acc[rt][nt], {a[rt][0].x, a[rt][1].x, a[rt][0].y, a[rt][1].y}, b.x, b.y);
          mma<false>(acc[rt][nt], {a[rt][0].z, a[rt][1].z, a[rt][0].w, a[rt][1].w}, b.z, b.w);
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
          mma<false>(c, {a[rt][0][0], a[rt][1][0], a[rt][0][1], a[rt][1][1]}, b.x, b.y);
          mma<false>(c, {a[rt][0][2], a[rt][1][2], a[rt][0][3], a[rt][1][3]}, b.z, b.w);
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
  const Multiply& m = p.m[task.which];
  const int g = lane / 4, t = lane % 4;
  const float scale = layout_scale(C::kLayout);
  const auto scale_of = [&](int64_t row) {
    return task.row_scale == nullptr ? scale : task.row_scale[row] * scale;
  };
  const auto put = [&](int64_t row, int i, float value) {
    const int token = nt * 8 + 2 * t + (i & 1);
    if (token >= task.count) return;
    const int64_t at = task.index * m.out_matrix_stride + (task.begin + token) * m.out_stride + row;
    if (m.out_is_f32) {
      static_cast<float*>(m.out)[at] = value;
    } else {
      static_cast<bf16*>(m.out)[at] = from_float<bf16>(value);
    }
  };
  if (m.paired) {
    const int64_t outputs = m.rows / 2;
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
    if (row < m.rows) put(row, i, first[i] * scale_of(row));
    const int64_t other = row + C::kWm * kRowTile;
    if (other < m.rows) put(other, i, second[i] * scale_of(other));
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
  __device__ void run(const Task& task) {
    const Share share = share_of<C>(p, task.which);
    const int inputs = static_cast<int>(p.m[task.which].inputs) - wk() * C::kKu;
    float acc[kRt][kNt][4];
#pragma unroll
    for (int i = 0; i < kRt * kNt * 4; ++i) acc[i / (kNt * 4)][i / 4 % kNt][i % 4] = 0.0f;
    for (int ks = share.begin; ks < share.end; ++ks) {
      wait_barrier(ring.barrier(ring.full), ring.parity);
      const uint32_t stage = ring.stage();
      const int left = inputs - ks * C::kKs;
      if (left >= C::kKu) {
        consume<C, kNt, true>(stage, wm(), wk(), lane, C::kBlocks, acc);
      } else if (left > 0) {
        consume<C, kNt, false>(stage, wm(), wk(), lane, left / 32, acc);
      }
      arrive(ring.barrier(ring.empty));  // every lane: racecheck follows threads, not warps
      ring.advance();
    }
    finish<kNt>(task, acc);
  }

  // Partial sums of the kWk warps meet in the first of them.
  template <int kNt>
  __device__ void finish(const Task& task, float (&acc)[kRt][kNt][4]) {
    constexpr int kGroup = C::kWk * 32;
    // The sums of a split task are written where stages were: all warps have read them by then.
    if (p.splits > 1) sync_threads(1 + C::kWm, kConsumers * 32);
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
      if constexpr (C::kWk > 1) sync_threads(1 + wm(), kGroup);
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
      if constexpr (C::kWk > 1) sync_threads(1 + wm(), kGroup);
    }
    if (p.splits > 1) join_splits<kNt>(task);
    if (p.num_products == 2 && task.which == 0 && wk() == 0) {
      __syncwarp();
      if (lane == 0) {
        __threadfence();
        atomicAdd(p.tiles_done + task.index, 1);
      }
    }
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

}  // namespace eyrie::ops::gpu::sm90
