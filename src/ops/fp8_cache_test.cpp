// The FP8 KV cache: codes as published, every code read exactly, rounding as the reference rounds,
// faults that stay faults, and the numeric contract of ops.h as for a bfloat16 cache.
#include <bit>

#include "ops/test_support.h"

namespace eyrie::ops {
namespace {

constexpr double kTolerance = 1e-5;  // as in conformance_test.cpp

class Fp8Cache : public EveryIsa {
 protected:
  Backend cpu_{cpu_ops(), 1};
  Backend three_{cpu_ops(), 3};
  Backend reference_{reference_ops()};
};
INSTANTIATE_TEST_SUITE_P(Isa, Fp8Cache, testing::ValuesIn(cpu::available_isas()), isa_name);

// What cache_write stores for one row.
std::vector<uint8_t> stored(const Backend& backend, const std::vector<float>& row, float scale) {
  const PagedBatch batch({1}, {1}, 16, 1);
  const auto width = static_cast<int64_t>(row.size());
  std::vector<uint8_t> cache(static_cast<size_t>(batch.num_slots() * width), 0xff);
  cache_write(backend.ctx(), {.cache = batch.view(cache, width, scale),
                              .x = Tensor::of(row.data(), {1, width}),
                              .sequences = batch.sequences()});
  const int64_t slot = batch.sequences()[0].block_table[0] * int64_t{16};
  const auto first = cache.begin() + slot * width;
  return {first, first + width};
}

TEST_P(Fp8Cache, CodesAreThePublishedOnes) {
  const std::vector<float> x = {0.8f, -3.2f, 12.5f, 0.01f};
  for (const Backend* backend : {&cpu_, &reference_}) {
    EXPECT_EQ(stored(*backend, x, 1.0f), (std::vector<uint8_t>{0x35, 0xC5, 0x54, 0x05}));
    EXPECT_EQ(stored(*backend, x, 12.5f / 448), (std::vector<uint8_t>{0x5E, 0xEE, 0x7E, 0x2B}));
  }
}

// Every code, every boundary between two codes and its neighbours, and what is out of range.
TEST_P(Fp8Cache, RoundsLikeTheReference) {
  std::vector<float> x = {0.0f,           -0.0f,  448.0f,   449.0f,    464.0f,
                          1e30f,          -1e30f, INFINITY, -INFINITY, std::nanf(""),
                          -std::nanf(""), 1e-40f, 0x1p-10f, -0x1p-11f, 3e38f};
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const float low = formats::decode_fp8_e4m3(code), high = formats::decode_fp8_e4m3(code + 1);
    const float middle = (low + high) / 2;
    for (const float value :
         {low, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, high)})
      x.insert(x.end(), {value, -value});
  }
  for (const float scale : {1.0f, 0.0279f, 3.0f}) {
    const std::vector<uint8_t> got = stored(cpu_, x, scale), want = stored(reference_, x, scale);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(got[i], want[i]) << x[i] << " / " << scale;
      // An infinity is a fault, not the largest number.
      ASSERT_EQ((got[i] & 0x7f) == 0x7f, !std::isfinite(x[i] / scale)) << x[i] << " / " << scale;
    }
  }
}

// One position: its weight is 1, so the output is the value itself.
Matrix read_back(const Backend& backend, const std::vector<uint8_t>& row, float scale) {
  const PagedBatch batch({1}, {1}, 16, 1);
  const auto width = static_cast<int64_t>(row.size());
  std::vector<uint8_t> cache(static_cast<size_t>(batch.num_slots() * width), 0xff);
  const int64_t slot = batch.sequences()[0].block_table[0] * int64_t{16};
  std::copy(row.begin(), row.end(), cache.begin() + slot * width);
  const Matrix q = Matrix::random(1, width, 1);
  Matrix out(1, width);
  gqa_attention(backend.ctx(), {.out = out.tensor().split_last(1, width),
                                .q = q.tensor().split_last(1, width),
                                .k_cache = batch.view(cache, width, scale),
                                .v_cache = batch.view(cache, width, scale),
                                .sequences = batch.sequences(),
                                .num_kv_heads = 1,
                                .scale = 1.0f});
  return out;
}

TEST_P(Fp8Cache, EveryCodeIsReadExactly) {
  for (const size_t width : {254, 250, 8}) {  // vectors only, and with a tail of single columns
    std::vector<uint8_t> codes;
    for (int code = 0; code < 256; ++code) {
      if ((code & 0x7f) != 0x7f) codes.push_back(static_cast<uint8_t>(code));
    }
    std::reverse(codes.begin(), codes.end());
    codes.resize(width);
    for (const float scale : {1.0f, 0.25f}) {  // powers of two: exact
      const Matrix out = read_back(cpu_, codes, scale);
      for (size_t i = 0; i < width; ++i) {
        ASSERT_EQ(out.at(0, static_cast<int64_t>(i)), formats::decode_fp8_e4m3(codes[i]) * scale)
            << int{codes[i]};
      }
    }
  }
}

TEST_P(Fp8Cache, ANanCodePoisonsTheRow) {
  for (const size_t width : {64, 37}) {
    for (const size_t place : {size_t{0}, size_t{17}, width - 1}) {
      for (const uint8_t nan : {0x7f, 0xff}) {
        std::vector<uint8_t> codes(width, 0x38);
        codes[place] = nan;
        for (const Backend* backend : {&cpu_, &reference_}) {
          const Matrix out = read_back(*backend, codes, 1.0f);
          for (size_t i = 0; i < width; ++i) {
            ASSERT_TRUE(std::isnan(out.at(0, static_cast<int64_t>(i)))) << width << " " << place;
          }
        }
      }
    }
  }
}

TEST_P(Fp8Cache, MlaAttentionIsTheReferences) {
  struct Case {
    std::vector<int> lengths, rows;
    int64_t heads, latent, rope;
  };
  const Case cases[] = {{{1}, {1}, 4, 128, 32},
                        {{40, 1, 17, 100}, {1, 1, 7, 33}, 4, 128, 32},
                        {{16, 33}, {16, 33}, 3, 24, 10},
                        {{70, 5}, {2, 5}, 16, 40, 7}};
  for (const Case& c : cases) {
    for (const float scale : {1.0f, 0.01f}) {
      const PagedBatch batch(c.lengths, c.rows, 16, 9);
      const int64_t width = c.latent + c.rope;
      const std::vector<uint8_t> cache = batch.fill_fp8(width, 5, scale);
      const Matrix q = Matrix::random(batch.num_rows(), c.heads * c.latent, 6);
      const Matrix rope = Matrix::random(batch.num_rows(), c.heads * c.rope, 7);
      Matrix got(batch.num_rows(), c.heads * c.latent), want(batch.num_rows(), c.heads * c.latent);
      MlaAttentionArgs args{.out = got.tensor().split_last(c.heads, c.latent),
                            .q_latent = q.tensor().split_last(c.heads, c.latent),
                            .q_rope = rope.tensor().split_last(c.heads, c.rope),
                            .cache = batch.view(cache, width, scale),
                            .sequences = batch.sequences(),
                            .scale = 0.1f};
      mla_attention(cpu_.ctx(), args);
      args.out = want.tensor().split_last(c.heads, c.latent);
      mla_attention(reference_.ctx(), args);
      EXPECT_LE(normalised_error(got, want), kTolerance) << c.heads << " " << scale;
    }
  }
}

TEST_P(Fp8Cache, GqaAttentionIsTheReferences) {
  struct Case {
    std::vector<int> lengths, rows;
    int64_t heads, kv_heads, dim;
  };
  const Case cases[] = {
      {{1}, {1}, 4, 4, 64}, {{35, 64, 3}, {1, 20, 3}, 8, 2, 64}, {{90}, {90}, 6, 2, 20}};
  for (const Case& c : cases) {
    const PagedBatch batch(c.lengths, c.rows, 32, 9);
    const int64_t width = c.kv_heads * c.dim;
    const std::vector<uint8_t> keys = batch.fill_fp8(width, 5, 0.5f);
    const std::vector<uint8_t> values = batch.fill_fp8(width, 50, 0.03f);
    const Matrix q = Matrix::random(batch.num_rows(), c.heads * c.dim, 6);
    Matrix got(batch.num_rows(), c.heads * c.dim), want(batch.num_rows(), c.heads * c.dim);
    GqaAttentionArgs args{.out = got.tensor().split_last(c.heads, c.dim),
                          .q = q.tensor().split_last(c.heads, c.dim),
                          .k_cache = batch.view(keys, width, 0.5f),
                          .v_cache = batch.view(values, width, 0.03f),
                          .sequences = batch.sequences(),
                          .num_kv_heads = static_cast<int32_t>(c.kv_heads),
                          .scale = 0.125f};
    gqa_attention(cpu_.ctx(), args);
    args.out = want.tensor().split_last(c.heads, c.dim);
    gqa_attention(reference_.ctx(), args);
    EXPECT_LE(normalised_error(got, want), kTolerance) << c.heads;
  }
}

// All positions of one sequence, `chunk` rows a call, blocks placed by a seed.
Matrix attend(const Backend& backend, int length, int chunk, uint32_t placement) {
  constexpr int64_t kHeads = 16, kLatent = 128, kRope = 32;
  const PagedBatch batch({length}, {length}, 32, placement);
  const std::vector<uint8_t> cache = batch.fill_fp8(kLatent + kRope, 5, 0.7f);
  const Matrix q = Matrix::random(length, kHeads * kLatent, 1);
  const Matrix rope = Matrix::random(length, kHeads * kRope, 2);
  Matrix out(length, kHeads * kLatent);
  for (int begin = 0; begin < length; begin += chunk) {
    const int count = std::min(chunk, length - begin);
    const SequenceRows rows = {.first_row = 0,
                               .num_rows = count,
                               .first_position = begin,
                               .block_table = batch.sequences()[0].block_table};
    mla_attention(backend.ctx(),
                  {.out = out.tensor().rows(begin, count).split_last(kHeads, kLatent),
                   .q_latent = q.tensor().rows(begin, count).split_last(kHeads, kLatent),
                   .q_rope = rope.tensor().rows(begin, count).split_last(kHeads, kRope),
                   .cache = batch.view(cache, kLatent + kRope, 0.7f),
                   .sequences = {&rows, 1},
                   .scale = 0.1f});
  }
  return out;
}

TEST_P(Fp8Cache, AttentionDoesNotDependOnChunksBlocksOrThreads) {
  const Matrix whole = attend(cpu_, 150, 150, 1);
  EXPECT_TRUE(same_bits(whole, attend(three_, 150, 150, 77)));
  for (const int chunk : {1, 7, 16, 37}) {
    EXPECT_TRUE(same_bits(whole, attend(three_, 150, chunk, 3))) << chunk;
  }
}

TEST(Fp8CacheIsaAgreement, Avx2AndAvx512GiveTheSameBits) {
  const std::vector<std::string> isas = cpu::available_isas();
  if (std::find(isas.begin(), isas.end(), "AVX3") == isas.end()) {
    GTEST_SKIP() << "this machine has no AVX-512 to compare AVX2 with";
  }
  const Backend backend(cpu_ops(), 2);
  cpu::use_isa("AVX2");
  const Matrix narrow = attend(backend, 60, 60, 1);
  cpu::use_isa("AVX3");
  const Matrix wide = attend(backend, 60, 60, 1);
  cpu::use_isa(isas.front());
  EXPECT_TRUE(same_bits(narrow, wide));
}

}  // namespace
}  // namespace eyrie::ops
