// Rotation, cache writes and attention against the reference, through the table: the bundled
// model's shapes and Kimi's, one row a sequence, verification's few and a prompt's many, both
// caches. What no sequence has written is NaN in every cache.
#include <cstdlib>

#include "formats/weight.h"
#include "ops/gpu/gpu_test_support.h"
#include "ops/weight_test_support.h"

namespace eyrie::ops::gpu {
namespace {

// A PagedBatch whose tables and sequences lie on the device.
class DeviceBatch {
 public:
  explicit DeviceBatch(const PagedBatch& host, const std::vector<int>& lengths, int block_size)
      : sequences_({}) {
    std::vector<SequenceRows> sequences(host.sequences().begin(), host.sequences().end());
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int32_t* const table = sequences[i].block_table;
      const int num_blocks = (lengths[i] + block_size - 1) / block_size;
      tables_.emplace_back(std::vector<int32_t>(table, table + num_blocks));
      sequences[i].block_table = tables_.back().data();
      if (sequences[i].num_rows > max_rows_) max_rows_ = sequences[i].num_rows;
    }
    sequences_ = DeviceArray<SequenceRows>(sequences);
  }
  std::span<const SequenceRows> sequences() const { return sequences_.span(); }
  int32_t max_rows() const { return max_rows_; }

 private:
  std::vector<DeviceArray<int32_t>> tables_;
  DeviceArray<SequenceRows> sequences_;
  int32_t max_rows_ = 0;
};

// A cache of either type, on the host and on the device.
class BothCaches {
 public:
  BothCaches(const PagedBatch& batch, int64_t width, int block_size, uint32_t seed, bool is_fp8)
      : bf16_(is_fp8 ? std::vector<bf16>{} : batch.fill(width, seed)),
        fp8_(is_fp8 ? batch.fill_fp8(width, seed, kScale) : std::vector<uint8_t>{}),
        bf16_gpu_(bf16_),
        fp8_gpu_(fp8_),
        shape_{batch.num_slots(), width},
        block_size_(block_size),
        is_fp8_(is_fp8) {}

  CacheView host() { return is_fp8_ ? view(fp8_.data()) : view(bf16_.data()); }
  CacheView device() const { return is_fp8_ ? view(fp8_gpu_.data()) : view(bf16_gpu_.data()); }
  // As numbers, [slots, width].
  Matrix host_values() const { return values(bf16_, fp8_); }
  Matrix device_values() const { return values(bf16_gpu_.to_host(), fp8_gpu_.to_host()); }

 private:
  static constexpr float kScale = 0.05f;
  CacheView view(void* data) const {
    const DType dtype = is_fp8_ ? DType::kF8E4M3 : DType::kBF16;
    return {.data = Tensor(data, dtype, {shape_[0], shape_[1]}),
            .block_size = block_size_,
            .scale = is_fp8_ ? kScale : 1.0f};
  }
  Matrix values(const std::vector<bf16>& wide, const std::vector<uint8_t>& codes) const {
    Matrix m(shape_[0], shape_[1]);
    for (int64_t i = 0; i < shape_[0] * shape_[1]; ++i) {
      const auto at = static_cast<size_t>(i);
      m.at(i / shape_[1], i % shape_[1]) =
          is_fp8_ ? formats::decode_fp8_e4m3(codes[at]) * kScale : to_float(wide[at]);
    }
    return m;
  }

  std::vector<bf16> bf16_;
  std::vector<uint8_t> fp8_;
  DeviceArray<bf16> bf16_gpu_;
  DeviceArray<uint8_t> fp8_gpu_;
  int64_t shape_[2];
  int block_size_;
  bool is_fp8_;
};

const char* cache_name(bool is_fp8) { return is_fp8 ? "fp8 cache" : "bf16 cache"; }

// The kernels that are chosen here, and the generic ones.
class AttentionTest : public GpuTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    ::setenv("EYRIE_GPU_KERNELS", GetParam(), 1);
    GpuTest::SetUp();
  }
  void TearDown() override {
    GpuTest::TearDown();
    ::unsetenv("EYRIE_GPU_KERNELS");
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, AttentionTest, testing::Values("best", "generic"),
                         [](const auto& kernels) { return std::string(kernels.param); });

// Queries, keys and sums are rounded to bfloat16 on the way where tensor cores multiply.
constexpr double kAttentionTolerance = 1e-2;

struct MlaCase {
  std::vector<int> lengths, rows;
  int64_t heads, latent, rope;
  int block_size = 16;
};
const MlaCase kMlaCases[] = {
    {{1}, {1}, 4, 128, 32},
    {{40, 1, 17, 100}, {1, 1, 7, 33}, 4, 128, 32},
    {{1100, 64, 513, 700}, {1, 1, 7, 90}, 4, 128, 32},
    {{70, 5}, {2, 5}, 3, 24, 10, 32},
    {{1}, {1}, 64, 512, 64},
    {{1500, 64, 65, 7}, {1, 1, 1, 1}, 64, 512, 64, 64},
    {{900, 130, 33}, {7, 7, 7}, 64, 512, 64, 64},
    {{200, 66}, {70, 66}, 16, 512, 64, 32},
};

class MlaInputs {
 public:
  MlaInputs(const MlaCase& c, bool is_fp8)
      : batch(c.lengths, c.rows, c.block_size, 9),
        on_device(batch, c.lengths, c.block_size),
        caches(batch, c.latent + c.rope, c.block_size, 5, is_fp8),
        q(rounded(Matrix::random(batch.num_rows(), c.heads * c.latent, 6), DType::kBF16)),
        rope(rounded(Matrix::random(batch.num_rows(), c.heads * (c.rope + 8), 7), DType::kBF16)),
        q_gpu(q, DType::kBF16),
        rope_gpu(rope, DType::kBF16) {}

  PagedBatch batch;
  DeviceBatch on_device;
  BothCaches caches;
  Matrix q, rope;
  DeviceMatrix q_gpu, rope_gpu;
};

MlaAttentionArgs mla_args(const MlaCase& c, const Tensor& out, const Tensor& q, const Tensor& rope,
                          const CacheView& cache, std::span<const SequenceRows> sequences) {
  return {.out = out.split_last(c.heads, c.latent),
          .q_latent = q.split_last(c.heads, c.latent),
          .q_rope = rope.split_last(c.heads, c.rope + 8).columns(8, c.rope),
          .cache = cache,
          .sequences = sequences,
          .scale = 0.1f};
}

TEST_P(AttentionTest, MlaIsTheReferences) {
  for (const bool is_fp8 : {false, true}) {
    for (const MlaCase& c : kMlaCases) {
      MlaInputs in(c, is_fp8);
      const DeviceMatrix got(in.batch.num_rows(), c.heads * c.latent, DType::kBF16);
      MlaAttentionArgs args = mla_args(c, got.tensor(), in.q_gpu.tensor(), in.rope_gpu.tensor(),
                                       in.caches.device(), in.on_device.sequences());
      args.max_rows = in.on_device.max_rows();
      ops::mla_attention(ctx(), args);
      Matrix want(in.batch.num_rows(), c.heads * c.latent);
      ops::mla_attention(reference().ctx(),
                         mla_args(c, want.tensor(), in.q.tensor(), in.rope.tensor(),
                                  in.caches.host(), in.batch.sequences()));
      expect_close(fmt::format("mla_attention {} {} {}", GetParam(), cache_name(is_fp8),
                               c.latent == 512 ? "kimi" : "small"),
                   got.to_host(), want, kAttentionTolerance);
    }
  }
}

// Sequences alone and among others: bit for bit the same.
void expect_mla_depends_on_its_sequence_only(const Ctx& ctx, const MlaCase& c, bool is_fp8) {
  MlaInputs in(c, is_fp8);
  const DeviceMatrix together(in.batch.num_rows(), c.heads * c.latent, DType::kBF16);
  ops::mla_attention(ctx, mla_args(c, together.tensor(), in.q_gpu.tensor(), in.rope_gpu.tensor(),
                                   in.caches.device(), in.on_device.sequences()));
  const Matrix all = together.to_host();
  for (size_t i = 0; i < c.lengths.size(); ++i) {
    const SequenceRows& host = in.batch.sequences()[i];
    std::vector<SequenceRows> one = {SequenceRows{.first_row = 0,
                                                  .num_rows = host.num_rows,
                                                  .first_position = host.first_position,
                                                  .block_table = nullptr}};
    const int num_blocks = (c.lengths[i] + c.block_size - 1) / c.block_size;
    const DeviceArray<int32_t> table(
        std::vector<int32_t>(host.block_table, host.block_table + num_blocks));
    one[0].block_table = table.data();
    const DeviceArray<SequenceRows> one_gpu(one);
    const DeviceMatrix alone(host.num_rows, c.heads * c.latent, DType::kBF16);
    ops::mla_attention(
        ctx, mla_args(c, alone.tensor(), in.q_gpu.tensor().rows(host.first_row, host.num_rows),
                      in.rope_gpu.tensor().rows(host.first_row, host.num_rows), in.caches.device(),
                      one_gpu.span()));
    const Matrix got = alone.to_host();
    for (int64_t r = 0; r < host.num_rows; ++r) {
      EXPECT_TRUE(same_bits(got, r, all, host.first_row + r)) << "sequence " << i << " row " << r;
    }
  }
}

TEST_P(AttentionTest, DeterministicMlaDependsOnItsSequenceOnly) {
  Ctx deterministic = ctx();
  deterministic.deterministic = true;
  expect_mla_depends_on_its_sequence_only(
      deterministic, {{1300, 64, 700, 9, 90}, {1, 1, 7, 2, 40}, 64, 512, 64, 64}, false);
}

TEST_P(AttentionTest, MlaOfSmallShapesDependsOnItsSequenceOnly) {
  if (GetParam() == std::string_view("generic")) {
    GTEST_SKIP() << "the generic kernel divides positions by the batch";
  }
  for (const bool is_fp8 : {false, true}) {
    expect_mla_depends_on_its_sequence_only(
        ctx(), {{1300, 64, 700, 9, 90, 513}, {1, 1, 7, 2, 40, 300}, 4, 128, 32, 32}, is_fp8);
  }
}

// A graph that was recorded for more sequences and rows than there are.
TEST_P(AttentionTest, RowsAndSequencesThatFillABatchChangeNothing) {
  const MlaCase c{{300, 65}, {1, 7}, 64, 512, 64, 64};
  MlaInputs in(c, true);
  std::vector<SequenceRows> padded(4);
  copy_to_host(padded.data(), in.on_device.sequences().data(), 2 * sizeof(SequenceRows), nullptr);
  synchronize(nullptr);
  const DeviceArray<SequenceRows> padded_gpu(padded);
  const int64_t rows = in.batch.num_rows();
  Matrix q(rows + 5, c.heads * c.latent), rope(rows + 5, c.heads * (c.rope + 8));  // NaN at the end
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < q.columns(); ++i) q.at(r, i) = in.q.at(r, i);
    for (int64_t i = 0; i < rope.columns(); ++i) rope.at(r, i) = in.rope.at(r, i);
  }
  const DeviceMatrix q_gpu(q, DType::kBF16), rope_gpu(rope, DType::kBF16);
  const DeviceMatrix got(rows + 5, q.columns(), DType::kBF16);
  MlaAttentionArgs args = mla_args(c, got.tensor(), q_gpu.tensor(), rope_gpu.tensor(),
                                   in.caches.device(), padded_gpu.span());
  args.max_rows = 7;
  const Graph graph = Graph::record(ctx().stream, [&] { ops::mla_attention(ctx(), args); });
  graph.launch(ctx().stream);
  graph.launch(ctx().stream);
  const Matrix all = got.to_host();
  Matrix first(rows, q.columns()), want(rows, q.columns());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < q.columns(); ++i) first.at(r, i) = all.at(r, i);
  }
  ops::mla_attention(reference().ctx(), mla_args(c, want.tensor(), in.q.tensor(), in.rope.tensor(),
                                                 in.caches.host(), in.batch.sequences()));
  expect_close(fmt::format("mla_attention {} recorded", GetParam()), first, want,
               kAttentionTolerance);
}

TEST_P(AttentionTest, GqaIsTheReferences) {
  struct Case {
    std::vector<int> lengths, rows;
    int64_t heads, kv_heads, dim;
  };
  const Case cases[] = {{{1}, {1}, 4, 4, 64},
                        {{35, 64, 3}, {1, 20, 3}, 8, 2, 64},
                        {{90}, {90}, 6, 2, 20},
                        {{700, 33, 64}, {1, 7, 2}, 64, 64, 128},
                        {{400, 70}, {1, 64}, 64, 8, 128}};
  for (const bool is_fp8 : {false, true}) {
    for (const Case& c : cases) {
      const PagedBatch batch(c.lengths, c.rows, 32, 9);
      const DeviceBatch on_device(batch, c.lengths, 32);
      const int64_t width = c.kv_heads * c.dim;
      BothCaches keys(batch, width, 32, 5, is_fp8), values(batch, width, 32, 50, is_fp8);
      const Matrix q = rounded(Matrix::random(batch.num_rows(), c.heads * c.dim, 6), DType::kBF16);
      const DeviceMatrix q_gpu(q, DType::kBF16);
      const DeviceMatrix got(batch.num_rows(), c.heads * c.dim, DType::kBF16);
      Matrix want(batch.num_rows(), c.heads * c.dim);
      ops::gqa_attention(ctx(), {.out = got.tensor().split_last(c.heads, c.dim),
                                 .q = q_gpu.tensor().split_last(c.heads, c.dim),
                                 .k_cache = keys.device(),
                                 .v_cache = values.device(),
                                 .sequences = on_device.sequences(),
                                 .num_kv_heads = static_cast<int32_t>(c.kv_heads),
                                 .scale = 0.125f,
                                 .max_rows = on_device.max_rows()});
      ops::gqa_attention(reference().ctx(), {.out = want.tensor().split_last(c.heads, c.dim),
                                             .q = q.tensor().split_last(c.heads, c.dim),
                                             .k_cache = keys.host(),
                                             .v_cache = values.host(),
                                             .sequences = batch.sequences(),
                                             .num_kv_heads = static_cast<int32_t>(c.kv_heads),
                                             .scale = 0.125f});
      expect_close(fmt::format("gqa_attention {} {}", GetParam(), cache_name(is_fp8)),
                   got.to_host(), want, kAttentionTolerance);
    }
  }
}

// ---- rotation and writes ------------------------------------------------------------------------

using WriteTest = GpuTest;

std::vector<double> frequencies(int64_t half) {
  std::vector<double> inv_freq;
  for (int64_t i = 0; i < half; ++i)
    inv_freq.push_back(std::pow(50000.0, -double(i) / double(half)));
  return inv_freq;
}

TEST_F(WriteTest, RopeAtLongPositions) {
  for (const DType type : kActivationTypes) {
    for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
      for (const int64_t half : {int64_t{5}, int64_t{16}, int64_t{32}, int64_t{64}}) {
        const int64_t rows = 6, heads = 3, pad = 8;
        const std::vector<int32_t> positions = {0, 1, 77, 4095, 131071, 262143};
        const std::vector<double> inv_freq = frequencies(half);
        const DeviceArray<int32_t> positions_gpu(positions);
        const DeviceArray<double> inv_freq_gpu(inv_freq);
        Matrix x = rounded(Matrix::random(rows, heads * (2 * half + pad), 1), type);
        const DeviceMatrix x_gpu(x, type);
        const auto part = [&](const Tensor& t) {
          return t.split_last(heads, 2 * half + pad).columns(pad, 2 * half);
        };
        ops::rope(ctx(), {.x = part(x_gpu.tensor()),
                          .positions = positions_gpu.span(),
                          .inv_freq = inv_freq_gpu.span(),
                          .magnitude = 1.3f,
                          .style = style});
        ops::rope(reference().ctx(), {.x = part(x.tensor()),
                                      .positions = positions,
                                      .inv_freq = inv_freq,
                                      .magnitude = 1.3f,
                                      .style = style});
        expect_close("rope", x_gpu.to_host(), x, type);
      }
    }
  }
}

TEST_F(WriteTest, CacheWriteStoresTheReferencesCodes) {
  for (const bool is_fp8 : {false, true}) {
    for (const DType type : kActivationTypes) {
      for (const int64_t width : {int64_t{37}, int64_t{160}, int64_t{576}, int64_t{1024}}) {
        const std::vector<int> lengths = {20, 3, 40}, rows = {9, 3, 1};
        const PagedBatch batch(lengths, rows, 16, 1);
        const DeviceBatch on_device(batch, lengths, 16);
        BothCaches caches(batch, width, 16, 3, is_fp8);
        Matrix x = rounded(Matrix::random(batch.num_rows(), width, 2), type);
        x.at(0, 0) = std::nanf("");
        x.at(1, 1) = INFINITY;
        x.at(2, 2) = 1e30f;
        x = rounded(x, type);
        const DeviceMatrix x_gpu(x, type, width + 8);
        ops::cache_write(
            ctx(),
            {.cache = caches.device(), .x = x_gpu.tensor(), .sequences = on_device.sequences()});
        ops::cache_write(reference().ctx(),
                         {.cache = caches.host(), .x = x.tensor(), .sequences = batch.sequences()});
        const Matrix got = caches.device_values(), want = caches.host_values();
        for (int64_t s = 0; s < want.rows(); ++s) {
          for (int64_t i = 0; i < width; ++i) {
            if (std::isnan(want.at(s, i))) {
              ASSERT_TRUE(std::isnan(got.at(s, i))) << s << ", " << i;
            } else {
              ASSERT_EQ(got.at(s, i), want.at(s, i)) << s << ", " << i << cache_name(is_fp8);
            }
          }
        }
      }
    }
  }
}

std::vector<int32_t> positions_of(const PagedBatch& batch) {
  std::vector<int32_t> positions;
  for (const SequenceRows& s : batch.sequences()) {
    for (int32_t r = 0; r < s.num_rows; ++r) positions.push_back(s.first_position + r);
  }
  return positions;
}

TEST_F(WriteTest, MlaCacheWriteIsNormsRotationAndWrite) {
  struct Case {
    int64_t q_width, latent, rope;
  };
  for (const bool is_fp8 : {false, true}) {
    for (const DType type : kActivationTypes) {
      for (const Case& c : {Case{192, 128, 32}, {1536, 512, 64}, {33, 24, 10}}) {
        const std::vector<int> lengths = {300, 5, 77}, rows = {2, 5, 1};
        const PagedBatch batch(lengths, rows, 32, 1);
        const DeviceBatch on_device(batch, lengths, 32);
        const int64_t width = c.latent + c.rope, num_rows = batch.num_rows();
        BothCaches caches(batch, width, 32, 3, is_fp8);
        // Side by side, as one product writes them.
        Matrix both = rounded(Matrix::random(num_rows, c.q_width + width, 2), type);
        const Matrix weight = Matrix::random(1, c.latent, 8),
                     q_weight = Matrix::random(1, c.q_width, 9);
        const std::vector<int32_t> positions = positions_of(batch);
        const std::vector<double> inv_freq = frequencies(c.rope / 2);
        const DeviceMatrix both_gpu(both, type, c.q_width + width + 8),
            weight_gpu(weight, DType::kF32), q_weight_gpu(q_weight, DType::kF32);
        const DeviceArray<int32_t> positions_gpu(positions);
        const DeviceArray<double> inv_freq_gpu(inv_freq);
        const auto args = [&](const CacheView& cache, const Tensor& x, const Tensor& w,
                              const Tensor& q_w, std::span<const int32_t> p,
                              std::span<const double> f, std::span<const SequenceRows> s) {
          return MlaCacheWriteArgs{.cache = cache,
                                   .kv = x.columns(c.q_width, width),
                                   .norm_weight = w.reshape({c.latent}),
                                   .eps = 1e-6f,
                                   .positions = p,
                                   .inv_freq = f,
                                   .magnitude = 1.0f,
                                   .style = RopeStyle::kInterleaved,
                                   .sequences = s,
                                   .q = x.columns(0, c.q_width),
                                   .q_norm_weight = q_w.reshape({c.q_width}),
                                   .q_eps = 1e-6f};
        };
        ops::mla_cache_write(ctx(), args(caches.device(), both_gpu.tensor(), weight_gpu.tensor(),
                                         q_weight_gpu.tensor(), positions_gpu.span(),
                                         inv_freq_gpu.span(), on_device.sequences()));
        ops::mla_cache_write(reference().ctx(),
                             args(caches.host(), both.tensor(), weight.tensor(), q_weight.tensor(),
                                  positions, inv_freq, batch.sequences()));
        expect_close("mla_cache_write q and kv", both_gpu.to_host(), both, type);
        // Only what the batch's rows wrote: the rest is compared as it was.
        Matrix got = caches.device_values(), want = caches.host_values();
        for (int64_t s = 0; s < want.rows(); ++s) {
          for (int64_t i = 0; i < width; ++i) {
            ASSERT_EQ(std::isnan(got.at(s, i)), std::isnan(want.at(s, i))) << s << ", " << i;
            if (std::isnan(want.at(s, i))) got.at(s, i) = want.at(s, i) = 0.0f;
          }
        }
        // A code apart where a value lies between two.
        expect_close(fmt::format("mla_cache_write {}", cache_name(is_fp8)), got, want,
                     is_fp8 ? 1e-1 : 8e-3);
      }
    }
  }
}

// Kimi's heads by the kernel of their own, any other by a product and a rotation.
TEST_F(WriteTest, MlaQueriesAreAProductAndARotation) {
  struct Case {
    int64_t heads, latent, nope, rope;
  };
  for (const Case& c : {Case{64, 512, 128, 64}, {5, 128, 32, 16}}) {
    std::vector<Owned> owned;
    std::vector<PreparedWeight> on_host, on_device;
    for (int64_t h = 0; h < c.heads; ++h) {
      owned.push_back(encoded(formats::kBF16, c.latent, c.nope, static_cast<uint32_t>(h)));
    }
    for (const Owned& o : owned) {
      on_host.push_back(ops::prepare(reference().ctx(), {&o.weight, 1}));
      on_device.push_back(ops::prepare(ctx(), {&o.weight, 1}));
    }
    const WeightStack stack = ops::stack(ctx(), std::move(on_device));
    const std::vector<double> inv_freq = frequencies(c.rope / 2);
    const DeviceArray<double> inv_freq_gpu(inv_freq);
    for (const int64_t num_rows : {1, 17, 64, 100}) {
      SCOPED_TRACE(testing::Message() << c.heads << " heads x " << num_rows);
      const Matrix q =
          rounded(Matrix::random(num_rows, c.heads * (c.nope + c.rope), 4), DType::kBF16);
      std::vector<int32_t> positions;
      for (int32_t t = 0; t < num_rows; ++t) positions.push_back(t * 977 % 5000);
      const DeviceArray<int32_t> positions_gpu(positions);
      const auto args = [&](const Tensor& to, const Tensor& q_of, const WeightSpan& weights,
                            std::span<const int32_t> p, std::span<const double> f) {
        return MlaQueriesArgs{.q_latent = to.split_last(c.heads, c.latent),
                              .q = q_of.split_last(c.heads, c.nope + c.rope),
                              .weights = weights,
                              .positions = p,
                              .inv_freq = f};
      };
      Matrix want(num_rows, c.heads * c.latent), want_q = q;
      ops::mla_queries(reference().ctx(),
                       args(want.tensor(), want_q.tensor(), on_host, positions, inv_freq));
      for (const bool deterministic : {false, true}) {
        const DeviceMatrix q_gpu(q, DType::kBF16), out(num_rows, c.heads * c.latent, DType::kBF16);
        Ctx context = ctx();
        context.deterministic = deterministic;
        ops::mla_queries(context, args(out.tensor(), q_gpu.tensor(), stack, positions_gpu.span(),
                                       inv_freq_gpu.span()));
        expect_close("mla_queries latent", out.to_host(), want, DType::kBF16);
        expect_close("mla_queries q", q_gpu.to_host(), want_q, DType::kBF16);
      }
    }
  }
}

}  // namespace
}  // namespace eyrie::ops::gpu
