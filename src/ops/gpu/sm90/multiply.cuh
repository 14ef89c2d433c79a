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
// - An expert's two products can be one launch, the tasks of the second behind those of the first
//   (Problem in multiply_shape.cuh): neither the tail of the first nor the start of the second
//   leaves multiprocessors idle.
//
// So a row's result depends on the matrix and its own activations only, never on other rows.
//
// Inputs are permuted within 32: lane t of a group of four takes 8·t … 8·t + 7, the first four in
// the first mma and the others in the second; weights and activations alike, so that sums do not
// change and everything is read 16 bytes at a time. Rows of activations are kKs·2 + 64 bytes apart
// in shared memory: 8 lanes (2 rows x 4) then touch all banks once.
#pragma once

#include "ops/gpu/sm90/multiply_load.cuh"
#include "ops/gpu/sm90/multiply_sum.cuh"

namespace eyrie::ops::gpu::sm90 {

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    multiply_kernel(const __grid_constant__ Problem p) {
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
      init_barrier(ring.full + s * 8, C::kFullArrivals);
      init_barrier(ring.empty + s * 8, C::kEmptyArrivals);
      init_barrier(ring.posted + s * 8, 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();

  if (warp >= kConsumers) {
    if (warp == kConsumers) {
      Leader<C> leader{p, ring, lane, {}, nullptr, 0, 0, 0, false, 0};
      lead(leader);
    } else {
      follow<C>(p, ring, warp - kConsumers - 1, lane);
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
    wait_barrier(consumer.ring.barrier(ring.full), consumer.ring.parity);
    const Task task = ring.tasks[consumer.ring.slot];
    if (task.count < 0) break;
    if (task.count <= 8) {
      consumer.template run<1>(task);
    } else if (C::kMaxNt == 2 || (C::kMaxNt > 2 && task.count <= 16)) {
      consumer.template run<(C::kMaxNt < 2 ? C::kMaxNt : 2)>(task);
    } else if (C::kMaxNt == 4 || (C::kMaxNt > 4 && task.count <= 32)) {
      consumer.template run<(C::kMaxNt < 4 ? C::kMaxNt : 4)>(task);
    } else {
      consumer.template run<C::kMaxNt>(task);
    }
  }
}

// ---- launching ----------------------------------------------------------------------------------

int num_multiprocessors();
// How many clusters of `splits` blocks of this kernel run at a time.
int max_clusters(const void* kernel, int threads, int shared_bytes, int splits);

template <typename C>
int32_t row_tasks_of(const Multiply& m) {
  const int64_t rows = m.paired ? m.rows / 2 : m.rows;
  const int64_t rows_per_task = (m.paired ? C::kWm : C::kTiles) * kRowTile;
  return static_cast<int32_t>((rows + rows_per_task - 1) / rows_per_task);
}

template <typename C>
void launch_config(const Multiply& m, const Chained* then, void* stream) {
  static const bool allowed = [] {
    allow_shared_memory("allowing shared memory to multiply", multiply_kernel<C>, C::kSharedBytes);
    return true;
  }();
  static_cast<void>(allowed);
  Problem p{};
  p.m[0] = m;
  p.row_tasks[0] = row_tasks_of<C>(m);
  p.num_products = 1;
  if (then != nullptr) {
    p.m[1] = then->m;
    p.row_tasks[1] = row_tasks_of<C>(then->m);
    p.num_products = 2;
    p.tiles_done = then->tiles_done;
  }
  p.splits = 1;
  const int slots = num_multiprocessors() * C::kBlocksPerSm;
  int64_t blocks = slots;
  if (m.tiles == nullptr) {
    if (p.m[0].tile_tokens > C::kMaxNt * 8) p.m[0].tile_tokens = C::kMaxNt * 8;
    p.token_tiles =
        static_cast<int32_t>((m.num_tokens + p.m[0].tile_tokens - 1) / p.m[0].tile_tokens);
    const int64_t num_tasks = m.num_matrices * p.row_tasks[0] * p.token_tiles;
    // Splits depend on the matrix alone, so that sums have one order for any number of tokens.
    const int64_t stages = (m.inputs + C::kKs - 1) / C::kKs;
    const int64_t matrix_tasks = m.num_matrices * p.row_tasks[0];
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
  const LaunchTrace trace("multiply", m.rows, m.inputs, m.num_tokens, stream);
  check_runtime(cudaLaunchKernelEx(&config, multiply_kernel<C>, static_cast<const Problem>(p)),
                "multiply");
}

// The kernel for tasks of up to kNt · 8 tokens. Up to 8, blocks are short, so that there are enough
// of them for a token alone; more share the tokens' activations among more rows: most of them where
// tiles of many matrices are drawn, half as many where one matrix has to keep all multiprocessors
// busy. Two blocks a multiprocessor decode while the other waits.
template <Layout kLayout, int kNt>
void launch_for(const Multiply& m, const Chained* then, void* stream) {
  constexpr int kUnit = unit_inputs(kLayout);
  constexpr int kBlocks = kNt <= 2 ? 2 : 1;
  if constexpr (kLayout == Layout::kBF16 && kNt == 8) {
    launch_config<Config<kLayout, 8, kUnit, 4, 2, 1>>(m, then, stream);
  } else if constexpr (kLayout == Layout::kBF16) {
    launch_config<Config<kLayout, kNt, 32, 2, 4, 2>>(m, then, stream);
  } else if constexpr (kNt == 1) {
    launch_config<Config<kLayout, 1, kUnit, 2, 4, 2>>(m, then, stream);
  } else if (m.tiles == nullptr) {
    launch_config<Config<kLayout, kNt, kUnit, 4, 2, kBlocks>>(m, then, stream);
  } else {
    launch_config<Config<kLayout, kNt, kUnit, 8, 1, kBlocks>>(m, then, stream);
  }
}

template <Layout kLayout>
void launch_layout(const Multiply& m, const Chained* then, void* stream) {
  const int64_t largest =
      m.tiles != nullptr || m.tile_tokens < m.num_tokens ? m.tile_tokens : m.num_tokens;
  if (m.fixed_order || (largest > 8 && largest <= 16)) {
    launch_for<kLayout, 2>(m, then, stream);
  } else if (largest <= 8) {
    launch_for<kLayout, 1>(m, then, stream);
  } else if (largest <= 32) {
    launch_for<kLayout, 4>(m, then, stream);
  } else {
    launch_for<kLayout, 8>(m, then, stream);
  }
}

}  // namespace eyrie::ops::gpu::sm90
