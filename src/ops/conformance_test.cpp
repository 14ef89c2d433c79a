// Every op of the cpu backend against the reference, on every instruction set, on odd sizes.
#include <bit>

#include "ops/test_support.h"

namespace eyrie::ops {
namespace {

constexpr double kTolerance = 1e-5;  // float32 sums against float64 sums

class Conformance : public EveryIsa {
 protected:
  Backend cpu_{cpu_ops(), 2};
  Backend reference_{reference_ops()};
};
INSTANTIATE_TEST_SUITE_P(Isa, Conformance, testing::ValuesIn(cpu::available_isas()), isa_name);

struct LinearShape {
  int64_t rows, in, out;
};
// 0 and 1; tiles of rows full, short and mixed; outputs and inputs that fill no panel and no step.
const LinearShape kLinearShapes[] = {{0, 64, 32},  {1, 32, 1},    {1, 256, 768}, {2, 96, 33},
                                     {3, 160, 31}, {5, 64, 100},  {7, 256, 160}, {12, 128, 64},
                                     {13, 96, 17}, {17, 224, 65}, {64, 256, 96}, {25, 1056, 130}};

TEST_P(Conformance, LinearInEveryFormat) {
  for (const formats::WeightFormat* format : formats::all_formats()) {
    if (format->encode_row == nullptr) continue;
    for (const LinearShape& s : kLinearShapes) {
      for (const auto activation :
           {ActivationQuantization::kOff, ActivationQuantization::kEmulate}) {
        const EncodedWeight weight(*format, s.out, s.in, 1);
        const Matrix x = Matrix::random(s.rows, s.in, 2, s.in + 3);
        const PreparedWeight mine = prepared(cpu_, weight, activation);
        const PreparedWeight oracle = prepared(reference_, weight, activation);
        Matrix got(s.rows, s.out, s.out + 5), want(s.rows, s.out);
        linear(cpu_.ctx(), {.out = got.tensor(), .x = x.tensor(), .weight = &mine});
        linear(reference_.ctx(), {.out = want.tensor(), .x = x.tensor(), .weight = &oracle});
        EXPECT_LE(normalised_error(got, want), kTolerance)
            << format->name << " [" << s.rows << ", " << s.in << "] → " << s.out;
      }
    }
  }
}

TEST_P(Conformance, LinearWithInputsOfNoStep) {
  for (const formats::WeightFormat* format : {&formats::kF32, &formats::kBF16, &formats::kFp8}) {
    const EncodedWeight weight(*format, 40, 37, 1);
    const Matrix x = Matrix::random(9, 37, 2);
    const PreparedWeight mine = prepared(cpu_, weight), oracle = prepared(reference_, weight);
    Matrix got(9, 40), want(9, 40);
    linear(cpu_.ctx(), {.out = got.tensor(), .x = x.tensor(), .weight = &mine});
    linear(reference_.ctx(), {.out = want.tensor(), .x = x.tensor(), .weight = &oracle});
    EXPECT_LE(normalised_error(got, want), kTolerance) << format->name;
  }
}

TEST_P(Conformance, FusedWeightsAreTheirRowsInOrder) {
  const EncodedWeight a(formats::kFp8, 33, 64, 1), b(formats::kFp8, 70, 64, 2);
  const formats::Weight both[] = {a.weight, b.weight};
  const PreparedWeight fused = prepare(cpu_.ctx(), both);
  const PreparedWeight first = prepared(cpu_, a), second = prepared(cpu_, b);
  const Matrix x = Matrix::random(4, 64, 3);
  Matrix got(4, 103), want(4, 103);
  linear(cpu_.ctx(), {.out = got.tensor(), .x = x.tensor(), .weight = &fused});
  linear(cpu_.ctx(), {.out = want.tensor().columns(0, 33), .x = x.tensor(), .weight = &first});
  linear(cpu_.ctx(), {.out = want.tensor().columns(33, 70), .x = x.tensor(), .weight = &second});
  EXPECT_TRUE(same_bits(got, want));
}

TEST_P(Conformance, HeadLinear) {
  for (const LinearShape& s :
       {LinearShape{1, 64, 128}, {3, 32, 40}, {29, 128, 64}, {200, 32, 33}}) {
    const int64_t heads = 4;
    std::vector<EncodedWeight> weights;
    std::vector<PreparedWeight> mine, oracle;
    for (uint32_t h = 0; h < heads; ++h) {
      weights.emplace_back(formats::kBF16, s.out, s.in, h);
      mine.push_back(prepared(cpu_, weights.back()));
      oracle.push_back(prepared(reference_, weights.back()));
    }
    const Matrix x = Matrix::random(s.rows, heads * (s.in + 8), 7);  // each head has 8 more columns
    const Tensor view = x.tensor().split_last(heads, s.in + 8).columns(0, s.in);
    Matrix got(s.rows, heads * s.out), want(s.rows, heads * s.out);
    head_linear(cpu_.ctx(),
                {.out = got.tensor().split_last(heads, s.out), .x = view, .weights = mine});
    head_linear(reference_.ctx(),
                {.out = want.tensor().split_last(heads, s.out), .x = view, .weights = oracle});
    EXPECT_LE(normalised_error(got, want), kTolerance) << s.rows;
  }
}

TEST_P(Conformance, Experts) {
  const int64_t hidden = 96, width = 64, num_experts = 7, top_k = 3;
  for (const formats::WeightFormat* format : {&formats::kBF16, &formats::kMxfp4}) {
    std::vector<EncodedWeight> up, down;
    std::vector<PreparedWeight> up_cpu, down_cpu, up_ref, down_ref;
    for (uint32_t e = 0; e < num_experts; ++e) {
      up.emplace_back(*format, 2 * width, hidden, 2 * e);
      down.emplace_back(*format, hidden, width, 2 * e + 1);
      up_cpu.push_back(prepared(cpu_, up.back()));
      down_cpu.push_back(prepared(cpu_, down.back()));
      up_ref.push_back(prepared(reference_, up.back()));
      down_ref.push_back(prepared(reference_, down.back()));
    }
    for (int64_t rows : {0, 1, 5, 150}) {
      const Matrix x = Matrix::random(rows, hidden, 3);
      const Matrix weights = Matrix::random(rows, top_k, 4);
      std::vector<int32_t> ids(static_cast<size_t>(rows * top_k) + 1);
      for (size_t i = 0; i < ids.size(); ++i) {  // uneven; some experts idle, expert 0 crowded
        ids[i] = static_cast<int32_t>(i % top_k == 0 ? 0 : 1 + (i * i) % 4);
      }
      Matrix got(rows, hidden), want(rows, hidden);
      ExpertsArgs args{.out = got.tensor(),
                       .x = x.tensor(),
                       .ids = Tensor::of(ids.data(), {rows, top_k}),
                       .weights = weights.tensor(),
                       .gate_up = up_cpu,
                       .down = down_cpu};
      experts(cpu_.ctx(), args);
      args.out = want.tensor();
      args.gate_up = up_ref;
      args.down = down_ref;
      experts(reference_.ctx(), args);
      EXPECT_LE(normalised_error(got, want), kTolerance) << format->name << " " << rows;
    }
  }
}

TEST_P(Conformance, MlaAttention) {
  struct Case {
    std::vector<int> lengths, rows;
    int64_t heads, latent, rope;
  };
  const Case cases[] = {{{1}, {1}, 4, 128, 32},
                        {{40, 1, 17, 100}, {1, 1, 7, 33}, 4, 128, 32},
                        {{16, 33}, {16, 33}, 3, 24, 10},
                        {{70, 5}, {2, 5}, 16, 40, 6}};
  for (const Case& c : cases) {
    const PagedBatch batch(c.lengths, c.rows, 16, 9);
    const int64_t width = c.latent + c.rope;
    const std::vector<bf16> cache = batch.fill(width, 5);
    const Matrix q = Matrix::random(batch.num_rows(), c.heads * c.latent, 6);
    const Matrix rope = Matrix::random(batch.num_rows(), c.heads * (c.rope + 4), 7);
    Matrix got(batch.num_rows(), c.heads * c.latent), want(batch.num_rows(), c.heads * c.latent);
    MlaAttentionArgs args{
        .out = got.tensor().split_last(c.heads, c.latent),
        .q_latent = q.tensor().split_last(c.heads, c.latent),
        .q_rope = rope.tensor().split_last(c.heads, c.rope + 4).columns(4, c.rope),
        .cache = batch.view(cache, width),
        .sequences = batch.sequences(),
        .scale = 0.1f};
    mla_attention(cpu_.ctx(), args);
    args.out = want.tensor().split_last(c.heads, c.latent);
    mla_attention(reference_.ctx(), args);
    EXPECT_LE(normalised_error(got, want), kTolerance) << c.heads;
  }
}

TEST_P(Conformance, GqaAttention) {
  struct Case {
    std::vector<int> lengths, rows;
    int64_t heads, kv_heads, dim;
  };
  const Case cases[] = {
      {{1}, {1}, 4, 4, 64}, {{35, 64, 3}, {1, 20, 3}, 8, 2, 64}, {{90}, {90}, 6, 2, 20}};
  for (const Case& c : cases) {
    const PagedBatch batch(c.lengths, c.rows, 32, 9);
    const int64_t width = c.kv_heads * c.dim;
    const std::vector<bf16> keys = batch.fill(width, 5), values = batch.fill(width, 50);
    const Matrix q = Matrix::random(batch.num_rows(), c.heads * c.dim, 6);
    Matrix got(batch.num_rows(), c.heads * c.dim), want(batch.num_rows(), c.heads * c.dim);
    GqaAttentionArgs args{.out = got.tensor().split_last(c.heads, c.dim),
                          .q = q.tensor().split_last(c.heads, c.dim),
                          .k_cache = batch.view(keys, width),
                          .v_cache = batch.view(values, width),
                          .sequences = batch.sequences(),
                          .num_kv_heads = static_cast<int32_t>(c.kv_heads),
                          .scale = 0.125f};
    gqa_attention(cpu_.ctx(), args);
    args.out = want.tensor().split_last(c.heads, c.dim);
    gqa_attention(reference_.ctx(), args);
    EXPECT_LE(normalised_error(got, want), kTolerance) << c.heads;
  }
}

TEST_P(Conformance, CacheWriteRoundsLikeTheReference) {
  const PagedBatch batch({20, 3}, {9, 3}, 16, 1);
  const int64_t width = 37;
  Matrix x = Matrix::random(batch.num_rows(), width, 2, width + 2);
  x.at(0, 0) = std::nanf("");
  x.at(0, 36) = std::nanf("");
  x.at(0, 7) = std::bit_cast<float>(0x7f800001u);  // a NaN that rounding would make infinite
  x.at(1, 1) = INFINITY;
  x.at(2, 2) = 1.00390625f;  // halfway: to even
  std::vector<bf16> got = batch.fill(width, 3), want = got;
  cache_write(cpu_.ctx(),
              {.cache = batch.view(got, width), .x = x.tensor(), .sequences = batch.sequences()});
  cache_write(reference_.ctx(),
              {.cache = batch.view(want, width), .x = x.tensor(), .sequences = batch.sequences()});
  EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(bf16)), 0);
}

TEST_P(Conformance, RowOps) {
  for (int64_t rows : {0, 1, 3, 300}) {
    for (int64_t width : {1, 15, 16, 96, 257}) {
      const Matrix x = Matrix::random(rows, width, 1, width + 1);
      const Matrix weight = Matrix::random(1, width, 2);
      const Matrix gate_up = Matrix::random(rows, 2 * width, 3);
      Matrix got(rows, width, width + 2), want(rows, width);

      RmsNormArgs norm{.out = got.tensor(),
                       .x = x.tensor(),
                       .weight = Tensor::of(weight.tensor().data<float>(), {width}),
                       .eps = 1e-5f};
      rms_norm(cpu_.ctx(), norm);
      norm.out = want.tensor();
      rms_norm(reference_.ctx(), norm);
      EXPECT_LE(normalised_error(got, want), 1e-6);

      silu_mul(cpu_.ctx(), {.out = got.tensor(), .gate_up = gate_up.tensor()});
      silu_mul(reference_.ctx(), {.out = want.tensor(), .gate_up = gate_up.tensor()});
      EXPECT_LE(normalised_error(got, want), 1e-6);

      add(cpu_.ctx(), {.residual = got.tensor(), .x = x.tensor()});
      add(reference_.ctx(), {.residual = want.tensor(), .x = x.tensor()});
      EXPECT_LE(normalised_error(got, want), 1e-6);

      std::vector<int32_t> got_ids(static_cast<size_t>(rows)), want_ids(got_ids);
      argmax(cpu_.ctx(), {.ids = got_ids, .logits = x.tensor()});
      argmax(reference_.ctx(), {.ids = want_ids, .logits = x.tensor()});
      EXPECT_EQ(got_ids, want_ids);
    }
  }
}

TEST_P(Conformance, RopeAtEveryPosition) {
  const int64_t heads = 3, dim = 36;
  std::vector<double> inv_freq;
  for (int64_t i = 0; i < dim / 2; ++i) {
    inv_freq.push_back(std::pow(50000.0, -2.0 * static_cast<double>(i) / dim));
  }
  const std::vector<int32_t> positions = {0, 1, 2, 100, 4095, 65537, 262143};
  const auto rows = static_cast<int64_t>(positions.size());
  for (RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
    Matrix got = Matrix::random(rows, heads * (dim + 5), 1), want = got;
    RopeArgs args{.x = got.tensor().split_last(heads, dim + 5).columns(5, dim),
                  .positions = positions,
                  .inv_freq = inv_freq,
                  .magnitude = 1.25f,
                  .style = style};
    rope(cpu_.ctx(), args);
    args.x = want.tensor().split_last(heads, dim + 5).columns(5, dim);
    rope(reference_.ctx(), args);
    EXPECT_LE(normalised_error(got, want), 3e-7);
  }
}

TEST_P(Conformance, Route) {
  struct Case {
    int64_t experts, top_k;
    int32_t n_group, topk_group;
    bool norm;
  };
  for (const Case& c :
       {Case{16, 4, 1, 1, true}, {17, 1, 1, 1, false}, {64, 6, 8, 3, true}, {384, 8, 1, 1, true}}) {
    const int64_t rows = 40;
    Matrix logits = Matrix::random(rows, c.experts, 1);
    for (int64_t e = 0; e < c.experts; ++e) logits.at(3, e) = 0.5f;  // all equal: lowest ids win
    Matrix bias = Matrix::random(1, c.experts, 2);
    for (int64_t e = 0; e < c.experts; ++e) bias.at(0, e) *= 0.01f;
    if (c.experts == 16) bias = Matrix::random(1, 16, 2), bias.at(0, 5) = bias.at(0, 9) = 3.0f;
    Matrix got(rows, c.top_k), want(rows, c.top_k);
    std::vector<int32_t> got_ids(static_cast<size_t>(rows * c.top_k)), want_ids(got_ids);
    RouteArgs args{.ids = Tensor::of(got_ids.data(), {rows, c.top_k}),
                   .weights = got.tensor(),
                   .logits = logits.tensor(),
                   .bias = Tensor::of(bias.tensor().data<float>(), {c.experts}),
                   .n_group = c.n_group,
                   .topk_group = c.topk_group,
                   .norm_topk_prob = c.norm,
                   .routed_scaling_factor = 2.827f};
    route(cpu_.ctx(), args);
    args.ids = Tensor::of(want_ids.data(), {rows, c.top_k});
    args.weights = want.tensor();
    route(reference_.ctx(), args);
    EXPECT_EQ(got_ids, want_ids) << c.experts;
    EXPECT_LE(normalised_error(got, want), 2e-6) << c.experts;
  }
}

TEST_P(Conformance, Embedding) {
  for (const formats::WeightFormat* format : formats::all_formats()) {
    if (format->encode_row == nullptr) continue;
    const EncodedWeight table(*format, 50, 96, 1);
    const std::vector<int32_t> ids = {49, 0, 7, 7};
    Matrix got(4, 96), want(4, 96);
    embedding(cpu_.ctx(), {.out = got.tensor(), .table = &table.weight, .ids = ids});
    embedding(reference_.ctx(), {.out = want.tensor(), .table = &table.weight, .ids = ids});
    EXPECT_TRUE(same_bits(got, want)) << format->name;
  }
}

}  // namespace
}  // namespace eyrie::ops
