// Values at the edges: ties, NaN, infinities, codes at the ends of their range; and wrong shapes.
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "ops/test_support.h"

namespace eyrie::ops {
namespace {

class Edge : public EveryIsa {
 protected:
  Backend cpu_{cpu_ops(), 1};
};
INSTANTIATE_TEST_SUITE_P(Isa, Edge, testing::ValuesIn(cpu::available_isas()), isa_name);

int32_t argmax_of(const Backend& backend, std::vector<float> logits) {
  int32_t id = -2;
  argmax(backend.ctx(),
         {.ids = {&id, 1},
          .logits = Tensor::of(logits.data(), {1, static_cast<int64_t>(logits.size())})});
  return id;
}

TEST_P(Edge, ArgmaxTakesTheLowestOfEqualsAndRefusesNan) {
  for (const size_t size : {1u, 5u, 16u, 33u, 100u}) {
    EXPECT_EQ(argmax_of(cpu_, std::vector<float>(size, -1.0f)), 0);
    for (size_t i = 0; i < size; ++i) {
      std::vector<float> logits(size, -3.0f);
      for (size_t j = i; j < size; j += 3) logits[j] = 2.0f;
      EXPECT_EQ(argmax_of(cpu_, logits), static_cast<int32_t>(i));
      logits[i] = std::nanf("");
      EXPECT_EQ(argmax_of(cpu_, logits), -1) << i << " of " << size;
    }
  }
  EXPECT_EQ(argmax_of(cpu_, {-INFINITY, -INFINITY}), 0);
  EXPECT_EQ(argmax_of(cpu_, {0.0f, INFINITY, 1.0f}), 1);
}

TEST_P(Edge, SiluOfLargeAndStrangeValues) {
  const std::vector<float> gates = {0.0f,    -0.0f, 1.0f,   -1.0f,    87.0f, -87.0f, 200.0f,
                                    -200.0f, 1e30f, -1e30f, INFINITY, 20.0f, -20.0f, 1e-30f};
  const auto width = static_cast<int64_t>(gates.size());
  Matrix gate_up(1, 2 * width), out(1, width);
  for (int64_t i = 0; i < width; ++i) {
    gate_up.at(0, i) = gates[static_cast<size_t>(i)];
    gate_up.at(0, width + i) = 1.0f;
  }
  silu_mul(cpu_.ctx(), {.out = out.tensor(), .gate_up = gate_up.tensor()});
  for (int64_t i = 0; i < width; ++i) {
    const double g = gates[static_cast<size_t>(i)];
    const double want = g / (1.0 + std::exp(-g));
    if (std::isinf(want)) {
      EXPECT_EQ(out.at(0, i), want);
    } else {
      EXPECT_NEAR(out.at(0, i), want, std::fabs(want) * 1e-6 + 1e-36) << g;
    }
  }
  gate_up.at(0, 3) = std::nanf("");
  silu_mul(cpu_.ctx(), {.out = out.tensor(), .gate_up = gate_up.tensor()});
  EXPECT_TRUE(std::isnan(out.at(0, 3)));
}

// Every E4M3 code and every E2M1 code, through a linear layer that picks one column.
TEST_P(Edge, EveryCodeDecodesExactly) {
  std::vector<uint8_t> fp8(256);
  std::vector<float> scales(256, 0.25f);
  for (size_t i = 0; i < 256; ++i) fp8[i] = static_cast<uint8_t>((i & 0x7f) == 0x7f ? 0 : i);
  const formats::Weight weight8{.format = &formats::kFp8,
                                .out = 256,
                                .in = 1,
                                .data = Tensor(fp8.data(), DType::kF8E4M3, {256, 1}),
                                .scales = Tensor::of(scales.data(), {256, 1})};
  const PreparedWeight w8 = prepare(cpu_.ctx(), {&weight8, 1});
  Matrix one(1, 1), out8(1, 256);
  one.at(0, 0) = 1.0f;
  linear(cpu_.ctx(), {.out = out8.tensor(), .x = one.tensor(), .weight = &w8});
  for (size_t i = 0; i < 256; ++i) {
    EXPECT_EQ(out8.at(0, static_cast<int64_t>(i)), formats::decode_fp8_e4m3(fp8[i]) * 0.25f) << i;
  }

  std::vector<uint8_t> fp4(16), e8m0(16);  // row i: code i in column 0, zeros behind it
  std::vector<uint8_t> packed(16 * 16);
  for (size_t i = 0; i < 16; ++i) {
    packed[i * 16] = static_cast<uint8_t>(i);
    e8m0[i] = static_cast<uint8_t>(110 + i);
  }
  const formats::Weight weight4{.format = &formats::kMxfp4,
                                .out = 16,
                                .in = 32,
                                .data = Tensor::of(packed.data(), {16, 16}),
                                .scales = Tensor::of(e8m0.data(), {16, 1})};
  const PreparedWeight w4 = prepare(cpu_.ctx(), {&weight4, 1});
  Matrix x(1, 32), out4(1, 16);
  for (int64_t c = 0; c < 32; ++c) x.at(0, c) = 1.0f;
  linear(cpu_.ctx(), {.out = out4.tensor(), .x = x.tensor(), .weight = &w4});
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(out4.at(0, static_cast<int64_t>(i)),
              formats::decode_fp4_e2m1(static_cast<uint8_t>(i)) * formats::decode_e8m0(e8m0[i]))
        << i;
  }
}

// Activation rounding against the scalar codecs, including ties, zeros and values beyond the range.
TEST_P(Edge, ActivationsRoundLikeTheFormat) {
  Matrix x = Matrix::random(5, 64, 1);
  for (int64_t c = 0; c < 64; ++c) {
    x.at(1, c) = 0.0f;
    x.at(2, c) = static_cast<float>(c - 32) * 0.25f;  // full of ties
    x.at(3, c) *= std::exp2(static_cast<float>(c % 40) - 30.0f);
  }
  x.at(0, 0) = 448.0f * 3;
  std::vector<float> identity(64 * 64, 0.0f);
  for (size_t i = 0; i < 64; ++i) identity[i * 65] = 1.0f;
  Backend reference(reference_ops());
  for (const formats::WeightFormat* format : {&formats::kFp8, &formats::kMxfp4}) {
    const auto bytes = static_cast<size_t>(format->data_columns(64));
    std::vector<std::byte> data(64 * bytes), scales(64 * 8);
    const size_t scale_bytes =
        static_cast<size_t>(format->scale_columns(64)) * dtype_bytes(format->scale_dtype);
    for (size_t i = 0; i < 64; ++i) {
      format->encode_row({identity.data() + i * 64, 64}, {data.data() + i * bytes, bytes},
                         {scales.data() + i * scale_bytes, scale_bytes});
    }
    const formats::Weight weight{
        .format = format,
        .out = 64,
        .in = 64,
        .data = Tensor(data.data(), format->data_dtype, {64, format->data_columns(64)}),
        .scales = Tensor(scales.data(), format->scale_dtype, {64, format->scale_columns(64)})};
    const PreparedWeight mine = prepare(cpu_.ctx(), {&weight, 1}, ActivationQuantization::kEmulate);
    const PreparedWeight oracle =
        prepare(reference.ctx(), {&weight, 1}, ActivationQuantization::kEmulate);
    Matrix got(5, 64), want(5, 64);
    linear(cpu_.ctx(), {.out = got.tensor(), .x = x.tensor(), .weight = &mine});
    linear(reference.ctx(), {.out = want.tensor(), .x = x.tensor(), .weight = &oracle});
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t c = 0; c < 64; ++c) {
        EXPECT_NEAR(got.at(r, c), want.at(r, c), std::fabs(want.at(r, c)) * 1e-6)
            << format->name << " " << r << "," << c;
      }
    }
  }
}

TEST_P(Edge, NanInACacheShowsInTheRowsThatSeeIt) {
  const PagedBatch batch({20}, {20}, 16, 1);
  std::vector<bf16> cache = batch.fill(24, 2);
  const int32_t block = batch.sequences()[0].block_table[0];
  cache[static_cast<size_t>((int64_t{block} * 16 + 10) * 24)] = bf16{0x7fc0};  // position 10
  const Matrix q = Matrix::random(20, 16, 3), rope = Matrix::random(20, 8, 4);
  Matrix out(20, 16);
  mla_attention(cpu_.ctx(), {.out = out.tensor().split_last(1, 16),
                             .q_latent = q.tensor().split_last(1, 16),
                             .q_rope = rope.tensor().split_last(1, 8),
                             .cache = batch.view(cache, 24),
                             .sequences = batch.sequences(),
                             .scale = 0.1f});
  for (int64_t r = 0; r < 20; ++r) EXPECT_EQ(std::isnan(out.at(r, 0)), r >= 10) << r;
}

TEST_P(Edge, WarmOpsDoNotAllocate) {
  ThreadPool pool(2);
  Arena arena(1024);
  const Ctx ctx{.table = &cpu_ops(), .pool = &pool, .arena = &arena};
  const EncodedWeight weight(formats::kFp8, 300, 256, 1);
  const PreparedWeight w = prepare(ctx, {&weight.weight, 1}, ActivationQuantization::kEmulate);
  const Matrix x = Matrix::random(40, 256, 2);
  Matrix out(40, 300);
  for (int round = 0; round < 5; ++round) {
    arena.reset();
    const int before = arena.num_growths();
    linear(ctx, {.out = out.tensor(), .x = x.tensor(), .weight = &w});
    if (round >= 2) {
      EXPECT_EQ(arena.num_growths(), before);
    }
  }
}

TEST(EdgeDeathTest, WrongShapesPrintTheOperands) {
  Backend backend(cpu_ops());
  const EncodedWeight weight(formats::kBF16, 8, 16, 1);
  const PreparedWeight w = prepared(backend, weight);
  const Matrix x(2, 15), out(2, 8);
  EXPECT_DEATH(linear(backend.ctx(), {.out = out.tensor(), .x = x.tensor(), .weight = &w}),
               "linear: out \\[2, 8\\] F32 x \\[2, 15\\] F32 weight \\[8, 16\\]");
}

// In a fresh process, because the variable is read once.
TEST(IsaDeathTest, TheEnvironmentForcesALowerOne) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::string lowest = cpu::available_isas().back();
  const auto report = [&] {
    setenv("EYRIE_CPU_ISA", lowest.c_str(), 1);
    std::fprintf(stderr, "runs on %s", std::string(cpu_isa()).c_str());
    std::exit(cpu_isa() == lowest ? 0 : 1);
  };
  EXPECT_EXIT(report(), testing::ExitedWithCode(0), "runs on " + lowest);
}

TEST(Isa, AnUnknownNameIsOneClearErrorAndChangesNothing) {
  const std::string before(cpu_isa());
  try {
    cpu::use_isa("AVX9");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(cpu::available_isas().front()), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(cpu_isa(), before);
}

TEST(Prepare, RefusesNanWeights) {
  Backend backend(cpu_ops());
  uint8_t code = 0x7f;
  float scale = 1.0f;
  const formats::Weight weight{.format = &formats::kFp8,
                               .out = 1,
                               .in = 1,
                               .data = Tensor(&code, DType::kF8E4M3, {1, 1}),
                               .scales = Tensor::of(&scale, {1, 1})};
  EXPECT_THROW(prepare(backend.ctx(), {&weight, 1}), Error);
}

}  // namespace
}  // namespace eyrie::ops
