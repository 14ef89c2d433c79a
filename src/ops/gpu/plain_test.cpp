// The plain ops against the reference: both types of activations, widths that fill packs and that
// do not, strided rows.
#include "ops/gpu/gpu_test_support.h"

namespace eyrie::ops::gpu {
namespace {

using PlainTest = GpuTest;

struct Shape {
  int64_t rows, width, pad;  // rows lie `pad` elements further apart than they are wide
};
// 0 and 1; one pack; aligned and not; one block's packs, more than that, and more than registers
// hold.
const Shape kShapes[] = {{0, 64, 0},    {1, 1, 0},     {3, 8, 0},     {2, 37, 3},    {5, 256, 8},
                         {4, 1536, 0},  {7, 2112, 40}, {64, 7168, 0}, {2, 7168, 64}, {1, 8200, 0},
                         {2, 12288, 4}, {1, 33000, 0}, {300, 512, 64}};

TEST_F(PlainTest, RmsNorm) {
  for (const DType in : kActivationTypes) {
    for (const DType to : kActivationTypes) {
      for (const Shape& s : kShapes) {
        const Matrix x = rounded(Matrix::random(s.rows, s.width, 1), in);
        const Matrix weight = Matrix::random(1, s.width, 2);
        const DeviceMatrix x_gpu(x, in, s.width + s.pad), weight_gpu(weight, DType::kF32);
        const DeviceMatrix got(s.rows, s.width, to, s.width + 2 * s.pad);
        Matrix want(s.rows, s.width);
        ops::rms_norm(ctx(), {.out = got.tensor(),
                              .x = x_gpu.tensor(),
                              .weight = weight_gpu.tensor().reshape({s.width}),
                              .eps = 1e-5f});
        ops::rms_norm(reference().ctx(), {.out = want.tensor(),
                                          .x = x.tensor(),
                                          .weight = weight.tensor().reshape({s.width}),
                                          .eps = 1e-5f});
        expect_close("rms_norm", got.to_host(), want, to);
      }
    }
  }
}

TEST_F(PlainTest, RmsNormInPlace) {
  for (const int64_t width : {int64_t{37}, int64_t{512}}) {
    const Matrix x = Matrix::random(6, width, 1), weight = Matrix::random(1, width, 2);
    const DeviceMatrix x_gpu(x, DType::kF32), weight_gpu(weight, DType::kF32);
    Matrix want(6, width);
    const Tensor w = weight_gpu.tensor().reshape({width});
    ops::rms_norm(ctx(), {.out = x_gpu.tensor(), .x = x_gpu.tensor(), .weight = w, .eps = 1e-6f});
    ops::rms_norm(reference().ctx(), {.out = want.tensor(),
                                      .x = x.tensor(),
                                      .weight = weight.tensor().reshape({width}),
                                      .eps = 1e-6f});
    expect_close("rms_norm in place", x_gpu.to_host(), want, DType::kF32);
  }
}

TEST_F(PlainTest, AddRmsNorm) {
  for (const DType in : kActivationTypes) {
    for (const DType to : kActivationTypes) {
      for (const Shape& s : kShapes) {
        const Matrix x = rounded(Matrix::random(s.rows, s.width, 1), in);
        const Matrix residual = Matrix::random(s.rows, s.width, 3);
        const Matrix weight = Matrix::random(1, s.width, 2);
        const DeviceMatrix x_gpu(x, in, s.width + s.pad), weight_gpu(weight, DType::kF32);
        const DeviceMatrix residual_gpu(residual, DType::kF32);
        const DeviceMatrix got(s.rows, s.width, to);
        Matrix want(s.rows, s.width), want_residual = residual;
        ops::add_rms_norm(ctx(), {.residual = residual_gpu.tensor(),
                                  .x = x_gpu.tensor(),
                                  .weight = weight_gpu.tensor().reshape({s.width}),
                                  .eps = 1e-5f,
                                  .out = got.tensor()});
        ops::add(reference().ctx(), {.residual = want_residual.tensor(), .x = x.tensor()});
        ops::rms_norm(reference().ctx(), {.out = want.tensor(),
                                          .x = want_residual.tensor(),
                                          .weight = weight.tensor().reshape({s.width}),
                                          .eps = 1e-5f});
        expect_close("add_rms_norm", got.to_host(), want, to);
        EXPECT_TRUE(same_bits(residual_gpu.to_host(), want_residual));
      }
    }
  }
}

TEST_F(PlainTest, AddAndScale) {
  for (const DType residual_type : kActivationTypes) {
    for (const DType type : kActivationTypes) {
      for (const Shape& s : kShapes) {
        const Matrix x = rounded(Matrix::random(s.rows, s.width, 1), type);
        const Matrix residual = rounded(Matrix::random(s.rows, s.width, 3), residual_type);
        const DeviceMatrix x_gpu(x, type, s.width + s.pad);
        const DeviceMatrix residual_gpu(residual, residual_type, s.width + s.pad);
        ops::add(ctx(), {.residual = residual_gpu.tensor(), .x = x_gpu.tensor()});
        Matrix want = residual;
        ops::add(reference().ctx(), {.residual = want.tensor(), .x = x.tensor()});
        EXPECT_TRUE(same_bits(residual_gpu.to_host(), rounded(want, residual_type))) << s.width;
        if (residual_type != DType::kF32) continue;
        ops::scale_rows(ctx(), {.x = residual_gpu.tensor(), .factor = 0.5f});
        Matrix half = want;
        for (int64_t r = 0; r < s.rows; ++r) {
          for (int64_t c = 0; c < s.width; ++c) half.at(r, c) *= 0.5f;
        }
        EXPECT_TRUE(same_bits(residual_gpu.to_host(), half)) << s.width;
      }
    }
  }
}

TEST_F(PlainTest, CopyAndGatherRoundAsTheHostDoes) {
  for (const DType from : kActivationTypes) {
    for (const DType to : kActivationTypes) {
      for (const Shape& s : kShapes) {
        const Matrix x = rounded(Matrix::random(s.rows, s.width, 1), from);
        const DeviceMatrix x_gpu(x, from, s.width + s.pad);
        const DeviceMatrix copied(s.rows, s.width, to, s.width + 8);
        ops::copy_rows(ctx(), {.out = copied.tensor(), .x = x_gpu.tensor()});
        EXPECT_TRUE(same_bits(copied.to_host(), rounded(x, to))) << s.width;
        if (s.rows == 0 || from != to) continue;
        std::vector<int32_t> rows;
        for (int64_t i = 0; i < 9; ++i) rows.push_back(static_cast<int32_t>(i * 5 % s.rows));
        const DeviceArray<int32_t> rows_gpu(rows);
        const DeviceMatrix gathered(9, s.width, to);
        ops::gather_rows(ctx(),
                         {.out = gathered.tensor(), .x = x_gpu.tensor(), .rows = rows_gpu.span()});
        const Matrix got = gathered.to_host(), all = rounded(x, to);
        for (int64_t i = 0; i < 9; ++i) EXPECT_TRUE(same_bits(got, i, all, rows[size_t(i)]));
      }
    }
  }
}

TEST_F(PlainTest, EmbeddingOfEveryPlainFormat) {
  for (const formats::WeightFormat* format : {&formats::kBF16, &formats::kF32, &formats::kF16}) {
    for (const int64_t width : {int64_t{30}, int64_t{256}}) {
      const EncodedWeight table(*format, 100, width, 4);
      const PlacedWeight placed = ops::place(ctx(), table.weight);
      const std::vector<int32_t> ids{0, 99, 7, 7, 64};
      const DeviceArray<int32_t> ids_gpu(ids);
      for (const DType to : kActivationTypes) {
        const DeviceMatrix got(5, width, to);
        Matrix want(5, width);
        ops::embedding(ctx(), {.out = got.tensor(), .table = &placed.view, .ids = ids_gpu.span()});
        ops::embedding(reference().ctx(),
                       {.out = want.tensor(), .table = &table.weight, .ids = ids});
        EXPECT_TRUE(same_bits(got.to_host(), rounded(want, to))) << format->name;
      }
    }
  }
}

// -1 is a draft's numeric fault or a row that fills a batch.
TEST_F(PlainTest, AnIdThatIsNoTokenReadsTheFirstRow) {
  const EncodedWeight table(formats::kBF16, 10, 64, 4);
  const PlacedWeight placed = ops::place(ctx(), table.weight);
  const DeviceArray<int32_t> ids({3, -1, 10});
  const DeviceMatrix out(3, 64, DType::kF32);
  ops::embedding(ctx(), {.out = out.tensor(), .table = &placed.view, .ids = ids.span()});
  const DeviceArray<int32_t> first({3, 0, 0});
  const DeviceMatrix want(3, 64, DType::kF32);
  ops::embedding(ctx(), {.out = want.tensor(), .table = &placed.view, .ids = first.span()});
  EXPECT_TRUE(same_bits(out.to_host(), want.to_host()));
}

TEST_F(PlainTest, GatheringARowThatIsNotThereGivesNaN) {
  const DeviceMatrix x(Matrix::random(4, 64, 1), DType::kF32), out(3, 64, DType::kF32);
  const DeviceArray<int32_t> rows({3, 4, -1});
  ops::gather_rows(ctx(), {.out = out.tensor(), .x = x.tensor(), .rows = rows.span()});
  const Matrix got = out.to_host();
  EXPECT_FALSE(std::isnan(got.at(0, 5)));
  for (int64_t c = 0; c < 64; ++c) {
    EXPECT_TRUE(std::isnan(got.at(1, c)) && std::isnan(got.at(2, c)));
  }
}

TEST_F(PlainTest, SiluMul) {
  for (const DType in : kActivationTypes) {
    for (const DType to : kActivationTypes) {
      for (const Shape& s : kShapes) {
        Matrix gate_up = Matrix::random(s.rows, 2 * s.width, 1);
        if (s.rows > 0) gate_up.at(0, 0) = -200.0f;  // the exponential is infinite
        gate_up = rounded(gate_up, in);
        const DeviceMatrix gate_up_gpu(gate_up, in, 2 * s.width + s.pad);
        const DeviceMatrix got(s.rows, s.width, to);
        Matrix want(s.rows, s.width);
        ops::silu_mul(ctx(), {.out = got.tensor(), .gate_up = gate_up_gpu.tensor()});
        ops::silu_mul(reference().ctx(), {.out = want.tensor(), .gate_up = gate_up.tensor()});
        expect_close("silu_mul", got.to_host(), want, to);
      }
    }
  }
}

}  // namespace
}  // namespace eyrie::ops::gpu
