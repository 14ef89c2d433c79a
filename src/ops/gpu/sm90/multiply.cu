#include <map>
#include <mutex>
#include <utility>

#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_linear.h"
#include "ops/gpu/sm90/launch_layouts.h"

namespace eyrie::ops::gpu {

namespace sm90 {

int num_multiprocessors() {
  static const int count = [] {
    int device = 0, n = 0;
    check_runtime(cudaGetDevice(&device), "asking for the device");
    check_runtime(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device),
                  "asking for multiprocessors");
    return n;
  }();
  return count;
}

int max_clusters(const void* kernel, int threads, int shared_bytes, int splits) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int> known;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = known.try_emplace({kernel, splits}, 0);
  if (is_new) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(splits);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(splits));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.attrs = &cluster;
    config.numAttrs = 1;
    check_runtime(cudaOccupancyMaxActiveClusters(&entry->second, kernel, &config),
                  "asking how many clusters fit");
  }
  return entry->second;
}

}  // namespace sm90

bool can_multiply_sm90(const Multiply& m) {
  static const bool is_hopper = [] {
    int device = 0, major = 0;
    check_runtime(cudaGetDevice(&device), "asking for the device");
    check_runtime(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                  "asking for the compute capability");
    return major == 9;
  }();
  const bool x_is_aligned = reinterpret_cast<uintptr_t>(m.x) % 16 == 0 && m.x_stride % 8 == 0 &&
                            m.x_matrix_stride % 8 == 0;
  return is_hopper && x_is_aligned && m.inputs > 0 && m.inputs % 32 == 0 &&
         (m.layout != Layout::kBF16 || m.stride % 8 == 0) &&
         (!m.paired || m.rows % (2 * kRowGroup) == 0);
}

namespace {

void launch_layout(const Multiply& m, const Chained* then, void* stream) {
  switch (m.layout) {
    case Layout::kBF16:
      return sm90::launch_bf16(m, then, stream);
    case Layout::kMxfp4:
      return sm90::launch_mxfp4(m, then, stream);
    case Layout::kNvfp4:
      return sm90::launch_nvfp4(m, then, stream);
    case Layout::kInt4:
      return sm90::launch_int4(m, then, stream);
    case Layout::kFp8:
      return sm90::launch_fp8(m, then, stream);
    case Layout::kFp8Block:
      return sm90::launch_fp8_block(m, then, stream);
  }
}

}  // namespace

void launch_multiply_sm90(const Multiply& m, void* stream) { launch_layout(m, nullptr, stream); }
void launch_chain_sm90(const Multiply& first, const Chained& second, void* stream) {
  launch_layout(first, &second, stream);
}

}  // namespace eyrie::ops::gpu
