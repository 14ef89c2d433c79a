// The kernels of every format of the table at odd shapes, within a tolerance; fused, sliced and
// grouped weights; the same bits in any company and on any instruction set; the memory they take.
#include <gmock/gmock.h>

#include <deque>

#include "ops/weight_test_support.h"

namespace eyrie::ops {
namespace {

using formats::WeightFormat;

class KernelShapes : public EveryIsa {
 protected:
  Backend cpu_{cpu_ops(), 2};
  Backend one_{cpu_ops(), 1};
  Backend reference_{reference_ops()};
};
INSTANTIATE_TEST_SUITE_P(Isa, KernelShapes, testing::ValuesIn(cpu::available_isas()), isa_name);

// ---- odd shapes ---------------------------------------------------------------------------------

// max |error| / max |result|. Sums are float32 in k order against float64; rounded activations are
// the same in both backends, so emulation adds nothing.
struct Tolerance {
  const WeightFormat* format;
  double error;
};
const Tolerance kTolerances[] = {{&formats::kF32, 2e-6},      {&formats::kBF16, 2e-6},
                                 {&formats::kF16, 2e-6},      {&formats::kFp8, 2e-6},
                                 {&formats::kFp8Block, 2e-6}, {&formats::kMxfp4, 2e-6},
                                 {&formats::kNvfp4, 2e-6},    {&formats::kInt4G32, 2e-6}};

double tolerance_of(const WeightFormat* format) {
  for (const Tolerance& row : kTolerances) {
    if (row.format == format) return row.error;
  }
  ADD_FAILURE() << format->name << " has no row in the table";
  return 0;
}

TEST_P(KernelShapes, OddShapesStayWithinTheTable) {
  for (const WeightFormat* format : formats::all_formats()) {
    std::vector<int64_t> widths;
    if (format->fits(1)) {
      widths = {1, 37, 127, 128, 129, 385};  // no step, no block
    } else {
      widths = {format->block_in, 3 * format->block_in, 17 * format->block_in};
    }
    for (const int64_t in : widths) {
      for (const int64_t out : {1, 31, 32, 33, 100}) {
        const Owned weight = encoded(*format, out, in, 1);
        for (const int64_t rows : {0, 1, 3, 13}) {
          for (const auto activation : {ActivationQuantization::kOff, ActivationQuantization::kAuto,
                                        ActivationQuantization::kEmulate}) {
            const Matrix x = Matrix::random(rows, in, 2, in + 3);
            const Matrix got = multiply(cpu_, weight, x, activation);
            const Matrix want = multiply(reference_, weight, x, activation);
            ASSERT_LE(normalised_error(got, want), tolerance_of(format))
                << format->name << " [" << rows << ", " << in << "] → " << out;
          }
        }
      }
    }
  }
}

// The parts of a fused group keep their own second-level, row and block scales; groups of several
// formats work too.
TEST_P(KernelShapes, FusedPartsKeepTheirScales) {
  for (const WeightFormat* format : formats::all_formats()) {
    std::deque<Owned> parts;
    std::vector<formats::Weight> weights;
    for (const int64_t out : {33, 1, 70}) {
      Owned& part = parts.emplace_back(encoded(*format, out, 256, static_cast<uint32_t>(out)));
      part.weight.global_scale *= static_cast<float>(out);  // only nvfp4 looks at it
      weights.push_back(part.weight);
    }
    const Matrix x = Matrix::random(5, 256, 3);
    EXPECT_LE(normalised_error(multiply(cpu_, weights, x), multiply(reference_, weights, x)),
              tolerance_of(format))
        << format->name;
    for (const WeightFormat* other : formats::all_formats()) {
      const Owned beside = encoded(*other, 40, 256, 9);
      const formats::Weight mixed[] = {weights[0], beside.weight, weights[2]};
      EXPECT_LE(normalised_error(multiply(cpu_, mixed, x), multiply(reference_, mixed, x)), 2e-6)
          << format->name << " beside " << other->name;
    }
  }
}

// Rows that begin inside a block of rows, as the heads of kv_b_proj do.
TEST_P(KernelShapes, SlicesOfRows) {
  for (const WeightFormat* format : formats::all_formats()) {
    const Owned all = encoded(*format, 300, 256, 4);
    const formats::Weight slice = formats::weight_rows(all.weight, 100, 157);
    const Matrix x = Matrix::random(2, 256, 5);
    const Matrix whole = multiply(cpu_, all, x), part = multiply(cpu_, {&slice, 1}, x);
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t o = 0; o < 157; ++o) ASSERT_EQ(part.at(r, o), whole.at(r, 100 + o));
    }
  }
}

// ---- experts, company, memory -------------------------------------------------------------------

TEST_P(KernelShapes, Experts) {
  constexpr int64_t kHidden = 96, kWidth = 64, kTopK = 3;
  constexpr uint32_t kExperts = 7;
  for (const WeightFormat* format : formats::all_formats()) {
    std::deque<Owned> memory;
    std::vector<PreparedWeight> up_cpu, down_cpu, up_ref, down_ref;
    for (uint32_t e = 0; e < kExperts; ++e) {
      const auto add = [&](int64_t out, int64_t in, uint32_t seed, auto& mine, auto& oracle) {
        const formats::Weight& w = memory.emplace_back(encoded(*format, out, in, seed)).weight;
        mine.push_back(prepare(cpu_.ctx(), {&w, 1}));
        oracle.push_back(prepare(reference_.ctx(), {&w, 1}));
      };
      add(2 * kWidth, kHidden, 2 * e, up_cpu, up_ref);
      add(kHidden, kWidth, 2 * e + 1, down_cpu, down_ref);
    }
    for (const int64_t rows : {0, 1, 5, 150}) {
      const Matrix x = Matrix::random(rows, kHidden, 3), weights = Matrix::random(rows, kTopK, 4);
      std::vector<int32_t> ids(static_cast<size_t>(rows * kTopK) + 1);
      for (size_t i = 0; i < ids.size(); ++i) {  // uneven; some experts idle, expert 0 crowded
        ids[i] = static_cast<int32_t>(i % kTopK == 0 ? 0 : 1 + (i * i) % 4);
      }
      Matrix got(rows, kHidden), want(rows, kHidden);
      ExpertsArgs args{.out = got.tensor(),
                       .x = x.tensor(),
                       .ids = Tensor::of(ids.data(), {rows, kTopK}),
                       .weights = weights.tensor(),
                       .gate_up = up_cpu,
                       .down = down_cpu};
      experts(cpu_.ctx(), args);
      args.out = want.tensor();
      args.gate_up = up_ref;
      args.down = down_ref;
      experts(reference_.ctx(), args);
      EXPECT_LE(normalised_error(got, want), 2 * tolerance_of(format)) << format->name << rows;
    }
  }
}

TEST_P(KernelShapes, RowAloneIsTheRowInAnyBatch) {
  for (const WeightFormat* format : formats::all_formats()) {
    const Owned weight = encoded(*format, 720, 256, 1);
    const PreparedWeight w =
        prepare(one_.ctx(), {&weight.weight, 1}, ActivationQuantization::kEmulate);
    const Matrix x = Matrix::random(40, 256, 2);
    Matrix all(40, 720), threaded(40, 720);
    linear(one_.ctx(), {.out = all.tensor(), .x = x.tensor(), .weight = &w});
    linear(cpu_.ctx(), {.out = threaded.tensor(), .x = x.tensor(), .weight = &w});
    EXPECT_TRUE(same_bits(all, threaded)) << format->name;
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 17}) {
      const int64_t first = 40 - rows;
      Matrix part(rows, 720);
      linear(one_.ctx(), {.out = part.tensor(), .x = x.tensor().rows(first, rows), .weight = &w});
      for (int64_t r = 0; r < rows; ++r) {
        ASSERT_TRUE(same_bits(part, r, all, first + r)) << format->name << " " << rows;
      }
    }
  }
}

TEST(KernelShapesTest, Avx2AndAvx512GiveTheSameBits) {
  const std::vector<std::string> isas = cpu::available_isas();
  if (std::find(isas.begin(), isas.end(), "AVX3") == isas.end()) {
    GTEST_SKIP() << "this machine has no AVX-512 to compare AVX2 with";
  }
  const Backend backend(cpu_ops(), 2);
  for (const WeightFormat* format : formats::all_formats()) {
    const Owned weight = encoded(*format, 200, 160, 1);
    const Matrix x = Matrix::random(13, 160, 2);
    cpu::use_isa("AVX2");
    const Matrix narrow = multiply(backend, weight, x, ActivationQuantization::kEmulate);
    cpu::use_isa("AVX3");
    const Matrix wide = multiply(backend, weight, x, ActivationQuantization::kEmulate);
    EXPECT_TRUE(same_bits(narrow, wide)) << format->name;
  }
  cpu::use_isa(isas.front());
}

// What a kernel reads is what the file holds, but for fp8-block's scales: a panel repeats a block's
// for each of its columns.
TEST(KernelShapesTest, PanelsTakeTheFilesBytes) {
  const Backend backend(cpu_ops());
  for (const WeightFormat* format : formats::all_formats()) {
    EXPECT_THAT(kernel_name(*format), testing::StartsWith(std::string(format->name) + " panels"));
    const Owned weight = encoded(*format, 512, 2048, 1);
    const auto panels = static_cast<double>(prepare(backend.ctx(), {&weight.weight, 1}).bytes());
    const auto file = static_cast<double>(formats::weight_bytes(weight.weight));
    EXPECT_GE(panels, file) << format->name;
    EXPECT_LE(panels, file * (format == &formats::kFp8Block ? 1.04 : 1.005)) << format->name;
    const auto int8 = ActivationQuantization::kAuto;
    const auto other =
        static_cast<double>(prepare(backend.ctx(), {&weight.weight, 1}, int8).bytes());
    EXPECT_LE(other, panels * 1.005) << format->name;
  }
}

}  // namespace
}  // namespace eyrie::ops
