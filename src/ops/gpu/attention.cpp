#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string_view>

#include "base/check.h"
#include "ops/gpu/backend.h"
#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_attention.h"
#include "ops/gpu/linear.h"

// Glue of attention: rotation, cache writes, and the choice of the kernel that attends.
namespace eyrie::ops::gpu {
namespace {

static_assert(sizeof(Sequence) == sizeof(SequenceRows) &&
              offsetof(Sequence, num_rows) == offsetof(SequenceRows, num_rows) &&
              offsetof(Sequence, first_position) == offsetof(SequenceRows, first_position) &&
              offsetof(Sequence, block_table) == offsetof(SequenceRows, block_table));

struct Processors {
  int count;
  int compute_capability;
};
// Of the device the program uses; those of a node are alike.
Processors processors() {
  static const Processors instance = [] {
    int device = 0, count = 0, major = 0, minor = 0;
    check_runtime(GPU(GetDevice)(&device), "GetDevice");
#if defined(EYRIE_HIP)
    constexpr auto kCount = hipDeviceAttributeMultiprocessorCount;
    constexpr auto kMajor = hipDeviceAttributeComputeCapabilityMajor;
    constexpr auto kMinor = hipDeviceAttributeComputeCapabilityMinor;
#else
    constexpr auto kCount = cudaDevAttrMultiProcessorCount;
    constexpr auto kMajor = cudaDevAttrComputeCapabilityMajor;
    constexpr auto kMinor = cudaDevAttrComputeCapabilityMinor;
#endif
    check_runtime(GPU(DeviceGetAttribute)(&count, kCount, device), "DeviceGetAttribute");
    check_runtime(GPU(DeviceGetAttribute)(&major, kMajor, device), "DeviceGetAttribute");
    check_runtime(GPU(DeviceGetAttribute)(&minor, kMinor, device), "DeviceGetAttribute");
    return Processors{.count = count, .compute_capability = major * 10 + minor};
  }();
  return instance;
}

// EYRIE_GPU_KERNELS=generic: the kernels that every device has.
[[maybe_unused]] bool is_generic_forced() {
  const char* value = std::getenv("EYRIE_GPU_KERNELS");
  return value != nullptr && std::string_view(value) == "generic";
}

const AttentionKernel& kernel_for(const Attention& a) {
#if !defined(EYRIE_HIP)
  if (!is_generic_forced()) {
    for (const AttentionKernel* kernel : {&mla_sm90(), &attention_sm80()}) {
      if (kernel->can_run(a, processors().compute_capability)) return *kernel;
    }
  }
#endif
  CHECK(generic_attention().can_run(a, processors().compute_capability),
        "no attention kernel takes keys of {} + {} columns and values of {}", a.dim0, a.dim1,
        a.dim_v);
  return generic_attention();
}

Type type_of(const Tensor& t) {
  CHECK(t.dtype() == DType::kF32 || t.dtype() == DType::kBF16, "activations of {}",
        t.shape_string());
  return t.dtype() == DType::kF32 ? Type::kF32 : Type::kBF16;
}
Heads heads_of(const Tensor& t) { return {t.raw(), t.stride(0), t.stride(1), type_of(t)}; }
Rows rows_of(const Tensor& t) { return {t.raw(), t.stride(0), type_of(t)}; }

Cache cache_of(const CacheView& cache) {
  return {.data = cache.data.raw(),
          .width = cache.data.dim(1),
          .block_size = cache.block_size,
          .scale = cache.scale,
          .is_fp8 = cache.data.dtype() == DType::kF8E4M3};
}

Batch batch_of(std::span<const SequenceRows> sequences, int64_t num_rows, int32_t max_rows) {
  const auto rows = static_cast<int32_t>(num_rows);
  return {.sequences = reinterpret_cast<const Sequence*>(sequences.data()),
          .num_sequences = static_cast<int32_t>(sequences.size()),
          .num_rows = rows,
          .max_rows = max_rows > 0 ? std::min(max_rows, rows) : rows};
}

constexpr int32_t kMaxPairs = 256;  // what the kernels hold of a row's angles

template <typename Args>
Rotation rotation_of(const Args& a) {
  const auto half = static_cast<int32_t>(a.inv_freq.size());
  CHECK(half <= kMaxPairs, "rope: {} pairs, of at most {}", half, kMaxPairs);
  return {.positions = a.positions.data(),
          .inv_freq = a.inv_freq.data(),
          .half = half,
          .magnitude = a.magnitude,
          .is_interleaved = a.style == RopeStyle::kInterleaved};
}

void attend(const Ctx& ctx, Attention a) {
  if (a.batch.num_rows == 0 || a.batch.num_sequences == 0) return;
  a.is_deterministic = ctx.deterministic;
  const AttentionKernel& kernel = kernel_for(a);
  const int num_processors = processors().count;
  const ArenaScope scratch(*ctx.arena);
  if (const size_t bytes = kernel.scratch_bytes(a, num_processors); bytes > 0) {
    a.scratch = ctx.arena->allocate(bytes);
  }
  kernel.launch(a, num_processors, ctx.stream);
}

}  // namespace

void rope(const Ctx& ctx, const RopeArgs& a) {
  launch_rope({.x = heads_of(a.x),
               .num_rows = a.x.dim(0),
               .num_heads = static_cast<int32_t>(a.x.dim(1)),
               .rotation = rotation_of(a)},
              ctx.stream);
}

void cache_write(const Ctx& ctx, const CacheWriteArgs& a) {
  launch_cache_write({.cache = cache_of(a.cache),
                      .x = rows_of(a.x),
                      .batch = batch_of(a.sequences, a.x.dim(0), 0)},
                     ctx.stream);
}

void mla_cache_write(const Ctx& ctx, const MlaCacheWriteArgs& a) {
  const int64_t latent = a.norm_weight.dim(0), q_width = a.q.dim(1);
  CHECK(latent <= kMaxNormed && q_width <= kMaxNormed, "mla_cache_write: rows of {} and {}, of {}",
        latent, q_width, kMaxNormed);
  launch_mla_cache_write({.cache = cache_of(a.cache),
                          .kv = rows_of(a.kv),
                          .norm_weight = a.norm_weight.data<float>(),
                          .eps = a.eps,
                          .latent = static_cast<int32_t>(latent),
                          .rotation = rotation_of(a),
                          .batch = batch_of(a.sequences, a.kv.dim(0), 0),
                          .q = rows_of(a.q),
                          .q_norm_weight = a.q_norm_weight.data<float>(),
                          .q_eps = a.q_eps,
                          .q_width = static_cast<int32_t>(q_width)},
                         ctx.stream);
}

void mla_queries(const Ctx& ctx, const MlaQueriesArgs& a) {
  const int64_t width = 2 * static_cast<int64_t>(a.inv_freq.size());
  const int64_t nope = a.q.dim(2) - width;
  const Rope turned{.x = heads_of(a.q.columns(nope, width)),
                    .num_rows = a.q.dim(0),
                    .num_heads = static_cast<int32_t>(a.q.dim(1)),
                    .rotation = rotation_of(a)};
  const HeadLinearArgs product{.out = a.q_latent, .x = a.q.columns(0, nope), .weights = a.weights};
  if (multiply_heads(ctx, product, turned)) return;
  launch_rope(turned, ctx.stream);
  gpu::head_linear(ctx, product);
}

void mla_attention(const Ctx& ctx, const MlaAttentionArgs& a) {
  const Cache cache = cache_of(a.cache);
  const auto latent = static_cast<int32_t>(a.q_latent.dim(2));
  attend(ctx, {.out = heads_of(a.out),
               .q0 = heads_of(a.q_latent),
               .q1 = heads_of(a.q_rope),
               .keys = cache,
               .values = cache,
               .shared_values = true,
               .batch = batch_of(a.sequences, a.out.dim(0), a.max_rows),
               .num_heads = static_cast<int32_t>(a.out.dim(1)),
               .num_kv_heads = 1,
               .kv_stride = 0,
               .dim0 = latent,
               .dim1 = static_cast<int32_t>(a.q_rope.dim(2)),
               .dim_v = latent,
               .scale = a.scale,
               .is_deterministic = false,
               .scratch = nullptr});
}

void gqa_attention(const Ctx& ctx, const GqaAttentionArgs& a) {
  const auto dim = static_cast<int32_t>(a.q.dim(2));
  const Heads q = heads_of(a.q);
  attend(ctx, {.out = heads_of(a.out),
               .q0 = q,
               .q1 = q,
               .keys = cache_of(a.k_cache),
               .values = cache_of(a.v_cache),
               .shared_values = false,
               .batch = batch_of(a.sequences, a.out.dim(0), a.max_rows),
               .num_heads = static_cast<int32_t>(a.out.dim(1)),
               .num_kv_heads = a.num_kv_heads,
               .kv_stride = dim,
               .dim0 = dim,
               .dim1 = 0,
               .dim_v = dim,
               .scale = a.scale,
               .is_deterministic = false,
               .scratch = nullptr});
}

}  // namespace eyrie::ops::gpu
