// The numeric contract at the top of ops.h, bit for bit: a row's result does not depend on other
// rows, threads, chunks or where cache blocks lie; and targets with fused multiply-add agree.
#include "base/threads.h"
#include "ops/test_support.h"

namespace eyrie::ops {
namespace {

class Invariance : public EveryIsa {
 protected:
  Backend one_{cpu_ops(), 1};
  Backend three_{cpu_ops(), 3};
};
INSTANTIATE_TEST_SUITE_P(Isa, Invariance, testing::ValuesIn(cpu::available_isas()), isa_name);

Matrix row_of(const Matrix& m, int64_t row) {
  Matrix out(1, m.columns());
  for (int64_t c = 0; c < m.columns(); ++c) out.at(0, c) = m.at(row, c);
  return out;
}

TEST_P(Invariance, LinearRowAloneIsTheRowInAnyBatch) {
  for (const auto& [format, activation] :
       {std::pair{&formats::kF32, ActivationQuantization::kEmulate},
        {&formats::kBF16, ActivationQuantization::kEmulate},
        {&formats::kFp8, ActivationQuantization::kEmulate},
        {&formats::kMxfp4, ActivationQuantization::kEmulate},
        {&formats::kBF16, ActivationQuantization::kAuto},
        {&formats::kMxfp4, ActivationQuantization::kAuto},
        {&formats::kNvfp4, ActivationQuantization::kAuto},
        {&formats::kInt4G32, ActivationQuantization::kAuto}}) {
    const EncodedWeight weight(*format, 720, 256, 1);
    const PreparedWeight w = prepared(one_, weight, activation);
    const Matrix x = Matrix::random(64, 256, 2);
    Matrix all(64, 720), threaded(64, 720);
    linear(one_.ctx(), {.out = all.tensor(), .x = x.tensor(), .weight = &w});
    linear(three_.ctx(), {.out = threaded.tensor(), .x = x.tensor(), .weight = &w});
    EXPECT_TRUE(same_bits(all, threaded)) << format->name;
    for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 17, 31}) {
      for (int64_t first : {int64_t{0}, 64 - rows}) {
        Matrix part(rows, 720);
        linear(one_.ctx(), {.out = part.tensor(), .x = x.tensor().rows(first, rows), .weight = &w});
        for (int64_t r = 0; r < rows; ++r) {
          ASSERT_TRUE(same_bits(part, r, all, first + r)) << format->name << " " << rows;
        }
      }
    }
  }
}

TEST_P(Invariance, ExpertsRowAloneIsTheRowInAnyBatch) {
  const int64_t hidden = 256, width = 96, num_experts = 16, top_k = 4, rows = 64;
  std::vector<EncodedWeight> up, down;
  std::vector<PreparedWeight> gate_ups, downs;
  for (uint32_t e = 0; e < num_experts; ++e) {
    up.emplace_back(formats::kMxfp4, 2 * width, hidden, 2 * e);
    down.emplace_back(formats::kMxfp4, hidden, width, 2 * e + 1);
    gate_ups.push_back(prepared(one_, up.back(), ActivationQuantization::kEmulate));
    downs.push_back(prepared(one_, down.back(), ActivationQuantization::kEmulate));
  }
  const Matrix x = Matrix::random(rows, hidden, 3), weights = Matrix::random(rows, top_k, 4);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t s = 0; s < top_k; ++s) {
      ids.push_back(static_cast<int32_t>(t < 40 ? s : (t * 5 + s * 3) % num_experts));
    }
  }
  const auto run = [&](const Backend& backend, int64_t first, int64_t count) {
    Matrix out(count, hidden);
    experts(backend.ctx(), {.out = out.tensor(),
                            .x = x.tensor().rows(first, count),
                            .ids = Tensor::of(ids.data(), {rows, top_k}).rows(first, count),
                            .weights = weights.tensor().rows(first, count),
                            .gate_up = gate_ups,
                            .down = downs});
    return out;
  };
  const Matrix all = run(one_, 0, rows);
  EXPECT_TRUE(same_bits(all, run(three_, 0, rows)));
  for (int64_t t : {0, 1, 39, 40, 63}) EXPECT_TRUE(same_bits(run(three_, t, 1), 0, all, t)) << t;
}

struct AttentionRun {
  int64_t heads, latent, rope;
  Matrix q, q_rope;  // of all positions
};

// The last `rows` positions of a sequence of `length`, `chunk` rows a call.
Matrix attend_in_chunks(const Backend& backend, const AttentionRun& run, int length, int rows,
                        int chunk, uint32_t placement) {
  const PagedBatch batch({length}, {rows}, 32, placement);
  const int64_t width = run.latent + run.rope;
  const std::vector<bf16> cache = batch.fill(width, 5);
  const int first = length - rows;
  Matrix out(rows, run.heads * run.latent);
  for (int begin = 0; begin < rows; begin += chunk) {
    const int count = std::min(chunk, rows - begin);
    SequenceRows sequence = batch.sequences()[0];
    sequence.first_row = 0;
    sequence.num_rows = count;
    sequence.first_position = first + begin;
    mla_attention(
        backend.ctx(),
        {.out = out.tensor().rows(begin, count).split_last(run.heads, run.latent),
         .q_latent = run.q.tensor().rows(first + begin, count).split_last(run.heads, run.latent),
         .q_rope = run.q_rope.tensor().rows(first + begin, count).split_last(run.heads, run.rope),
         .cache = batch.view(cache, width),
         .sequences = {&sequence, 1},
         .scale = 0.1f});
  }
  return out;
}

TEST_P(Invariance, AttentionDoesNotDependOnChunksBlocksOrThreads) {
  const int length = 150;
  for (int64_t heads : {4, 16}) {
    const AttentionRun run{.heads = heads,
                           .latent = 128,
                           .rope = 32,
                           .q = Matrix::random(length, heads * 128, 1),
                           .q_rope = Matrix::random(length, heads * 32, 2)};
    const Matrix whole = attend_in_chunks(one_, run, length, length, length, 1);
    EXPECT_TRUE(same_bits(whole, attend_in_chunks(three_, run, length, length, length, 1)));
    EXPECT_TRUE(same_bits(whole, attend_in_chunks(one_, run, length, length, length, 77)));
    for (int chunk : {1, 7, 16, 37}) {
      EXPECT_TRUE(same_bits(whole, attend_in_chunks(three_, run, length, length, chunk, 3)))
          << chunk;
    }
    const Matrix tail = attend_in_chunks(one_, run, length, 7, 7, 4);
    for (int64_t r = 0; r < 7; ++r) EXPECT_TRUE(same_bits(tail, r, whole, length - 7 + r));
  }
}

TEST_P(Invariance, GqaRowAloneIsTheRowInABatch) {
  const int64_t heads = 8, kv_heads = 2, dim = 64, width = kv_heads * dim;
  const PagedBatch batch({45, 80}, {45, 33}, 16, 1);
  const std::vector<bf16> keys = batch.fill(width, 5), values = batch.fill(width, 50);
  const Matrix q = Matrix::random(batch.num_rows(), heads * dim, 6);
  const auto run = [&](const Backend& backend, std::span<const SequenceRows> sequences,
                       int64_t first, int64_t count) {
    Matrix out(count, heads * dim);
    gqa_attention(backend.ctx(), {.out = out.tensor().split_last(heads, dim),
                                  .q = q.tensor().rows(first, count).split_last(heads, dim),
                                  .k_cache = batch.view(keys, width),
                                  .v_cache = batch.view(values, width),
                                  .sequences = sequences,
                                  .num_kv_heads = kv_heads,
                                  .scale = 0.125f});
    return out;
  };
  const Matrix all = run(three_, batch.sequences(), 0, batch.num_rows());
  for (const SequenceRows& s : batch.sequences()) {
    for (int32_t i : {0, 1, 15, 16, 32}) {
      const SequenceRows alone{.first_row = 0,
                               .num_rows = 1,
                               .first_position = s.first_position + i,
                               .block_table = s.block_table};
      const Matrix row = run(one_, {&alone, 1}, s.first_row + i, 1);
      EXPECT_TRUE(same_bits(row, 0, all, s.first_row + i));
    }
  }
}

TEST_P(Invariance, RowOpsDoNotDependOnThreads) {
  const Matrix x = Matrix::random(500, 514, 1), weight = Matrix::random(1, 514, 2);
  Matrix a(500, 514), b(500, 514), c(500, 257), d(500, 257);
  const Tensor w = Tensor::of(weight.tensor().data<float>(), {514});
  rms_norm(one_.ctx(), {.out = a.tensor(), .x = x.tensor(), .weight = w, .eps = 1e-5f});
  rms_norm(three_.ctx(), {.out = b.tensor(), .x = x.tensor(), .weight = w, .eps = 1e-5f});
  EXPECT_TRUE(same_bits(a, b));
  silu_mul(one_.ctx(), {.out = c.tensor(), .gate_up = x.tensor()});
  silu_mul(three_.ctx(), {.out = d.tensor(), .gate_up = x.tensor()});
  EXPECT_TRUE(same_bits(c, d));
  const Matrix alone = row_of(x, 499);
  Matrix e(1, 514);
  rms_norm(one_.ctx(), {.out = e.tensor(), .x = alone.tensor(), .weight = w, .eps = 1e-5f});
  EXPECT_TRUE(same_bits(e, 0, a, 499));
}

// The same bits from 8 and from 16 lanes: lanes are outputs, partial sums are 16 on both.
TEST(IsaAgreement, Avx2AndWiderGiveTheSameBits) {
  const std::vector<std::string> isas = cpu::available_isas();
  const auto avx2 = std::find(isas.begin(), isas.end(), "AVX2");
  if (avx2 == isas.begin() || avx2 == isas.end()) {
    GTEST_SKIP() << "this machine has nothing wider than AVX2 to compare it with";
  }
  Backend backend(cpu_ops(), 2);
  const auto run = [&](std::string_view isa) {
    cpu::use_isa(isa);
    std::vector<Matrix> results;
    for (const formats::WeightFormat* format :
         {&formats::kF32, &formats::kBF16, &formats::kFp8, &formats::kMxfp4, &formats::kNvfp4,
          &formats::kInt4G32}) {
      const EncodedWeight weight(*format, 200, 160, 1);
      const Matrix x = Matrix::random(13, 160, 2);
      for (const auto activation :
           {ActivationQuantization::kEmulate, ActivationQuantization::kAuto}) {
        const PreparedWeight w = prepared(backend, weight, activation);
        results.emplace_back(13, 200);
        linear(backend.ctx(), {.out = results.back().tensor(), .x = x.tensor(), .weight = &w});
      }
      results.emplace_back(13, 100);
      silu_mul(backend.ctx(),
               {.out = results.back().tensor(), .gate_up = results[results.size() - 2].tensor()});
    }
    const Matrix x = Matrix::random(3, 250, 2), weight = Matrix::random(1, 250, 3);
    results.emplace_back(3, 250);
    rms_norm(backend.ctx(), {.out = results.back().tensor(),
                             .x = x.tensor(),
                             .weight = Tensor::of(weight.tensor().data<float>(), {250}),
                             .eps = 1e-6f});
    const AttentionRun attention{.heads = 4,
                                 .latent = 72,
                                 .rope = 20,
                                 .q = Matrix::random(60, 4 * 72, 1),
                                 .q_rope = Matrix::random(60, 4 * 20, 2)};
    results.push_back(attend_in_chunks(backend, attention, 60, 60, 60, 1));
    return results;
  };
  const std::vector<Matrix> narrow = run("AVX2");
  for (auto isa = isas.begin(); isa != avx2; ++isa) {
    const std::vector<Matrix> wide = run(*isa);
    for (size_t i = 0; i < wide.size(); ++i) {
      EXPECT_TRUE(same_bits(narrow[i], wide[i])) << *isa << " " << i;
    }
  }
  cpu::use_isa(isas.front());
}

}  // namespace
}  // namespace eyrie::ops
