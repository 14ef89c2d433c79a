// argmax against the reference, and sampling against the race as runtime/sampler.cpp runs it on the
// host, with the noise of base/rng.h.
#include "base/rng.h"
#include "ops/gpu/gpu_test_support.h"

namespace eyrie::ops::gpu {
namespace {

using SampleTest = GpuTest;

const int64_t kWidths[] = {1, 3, 256, 1023, 1025, 32001, 163840};

TEST_F(SampleTest, ArgmaxIsTheReferences) {
  for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{65}}) {
    for (const int64_t width : kWidths) {
      if (rows * width > 4'000'000) continue;
      Matrix logits = Matrix::random(rows, width, 7);
      for (int64_t r = 0; r < rows; ++r) {  // ties, of zeros of both signs too
        if (r % 5 == 1) {
          for (int64_t c = 0; c < width; ++c) logits.at(r, c) = c % 2 == 0 ? -0.0f : 0.0f;
        } else if (r % 5 == 2) {
          logits.at(r, width - 1) = logits.at(r, width / 2) = 90.0f;
        } else if (r % 5 == 3) {
          logits.at(r, width / 3) = std::nanf("");
        } else if (r % 5 == 4) {
          for (int64_t c = 0; c < width; ++c) logits.at(r, c) = -INFINITY;
        }
      }
      const DeviceMatrix logits_gpu(logits, DType::kF32, width + (width % 4 == 0 ? 4 : 1));
      const DeviceArray<int32_t> ids(std::vector<int32_t>(static_cast<size_t>(rows), -9));
      std::vector<int32_t> want(static_cast<size_t>(rows));
      ops::argmax(ctx(), {.ids = ids.span(), .logits = logits_gpu.tensor()});
      ops::argmax(reference().ctx(), {.ids = want, .logits = logits.tensor()});
      EXPECT_EQ(ids.to_host(), want) << rows << " x " << width;
    }
  }
}

// The host's race over a whole row; `gap` is how far the second best was, relative.
int32_t host_race(const Matrix& logits, int64_t row, const SampleRow& params,
                  std::span<const int32_t> id_map, double* gap) {
  const NoiseStream stream(params.seed);
  const double inverse = 1.0 / std::max(static_cast<double>(params.temperature), 0.01);
  double max = -INFINITY;
  for (int64_t t = 0; t < logits.columns(); ++t) max = std::max(max, double{logits.at(row, t)});
  double best = -1, second = -1;
  int32_t choice = -1;
  for (int64_t t = 0; t < logits.columns(); ++t) {
    const auto id = static_cast<uint32_t>(id_map.empty() ? t : id_map[static_cast<size_t>(t)]);
    const double x = (logits.at(row, t) - max) * inverse;
    double score = std::exp(static_cast<double>(static_cast<float>(x)));
    if (params.temperature >= 1e-5f) {
      const uint32_t word = stream.block(static_cast<uint64_t>(params.position), id >> 2)[id & 3];
      score /= -std::log((static_cast<double>(word) + 0.5) * 0x1.0p-32);
    }
    if (score > best) {
      second = best;
      best = score;
      choice = static_cast<int32_t>(id);
    } else {
      second = std::max(second, score);
    }
  }
  *gap = (best - second) / best;
  return choice;
}

TEST_F(SampleTest, DrawsWhatTheHostDraws) {
  int64_t drawn = 0, different_from_argmax = 0;
  for (const bool mapped : {false, true}) {
    for (const int64_t width : {int64_t{3}, int64_t{1022}, int64_t{32000}}) {
      const int64_t rows = 40;
      Matrix logits = Matrix::random(rows, width, 3);
      std::vector<SampleRow> params;
      for (int64_t r = 0; r < rows; ++r) {
        const float spread = r % 4 == 0 ? 0.0f : static_cast<float>(r % 4) * 2.0f;
        for (int64_t c = 0; c < width; ++c) logits.at(r, c) *= spread;
        const float temperature = r % 7 == 0 ? 0.0f : r % 7 == 1 ? 0.004f : 0.3f * float(r % 7);
        params.push_back({.seed = 0x9876543210ull * static_cast<uint64_t>(r + 1),
                          .position = (int64_t{1} << 33) * (r % 2) + 17 * r,
                          .temperature = temperature});
      }
      std::vector<int32_t> id_map;
      for (int32_t c = 0; mapped && c < width; ++c) id_map.push_back(c * 5 + (c * 7) % 3);
      const DeviceMatrix logits_gpu(logits, DType::kF32);
      const DeviceArray<SampleRow> params_gpu(params);
      const DeviceArray<int32_t> map_gpu(id_map);
      const DeviceArray<int32_t> ids(std::vector<int32_t>(static_cast<size_t>(rows * 3), -9));
      ops::sample(ctx(), {.ids = ids.span().first(static_cast<size_t>((rows - 1) * 3 + 1)),
                          .logits = logits_gpu.tensor(),
                          .rows = params_gpu.span(),
                          .id_map = map_gpu.span(),
                          .ids_stride = 3});
      const std::vector<int32_t> got = ids.to_host();
      for (int64_t r = 0; r < rows; ++r) {
        double gap = 0;
        const SampleRow& p = params[static_cast<size_t>(r)];
        const int32_t want = host_race(logits, r, p, id_map, &gap);
        EXPECT_EQ(got[static_cast<size_t>(3 * r + 1)], -9) << "written between ids";
        // Two tokens that float32 cannot tell apart may change places; equal logits may not.
        if (gap < 1e-5 && p.temperature >= 1e-5f) continue;
        EXPECT_EQ(got[static_cast<size_t>(3 * r)], want)
            << "row " << r << " width " << width << " temperature " << p.temperature;
        SampleRow greedy = p;
        greedy.temperature = 0;
        ++drawn;
        different_from_argmax += want != host_race(logits, r, greedy, id_map, &gap);
      }
    }
  }
  EXPECT_GT(drawn, 200);
  EXPECT_GT(different_from_argmax, 100);  // or the noise was not tested
}

TEST_F(SampleTest, NumbersThatAreNoneAreFaults) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    for (const float temperature : {0.0f, 1.0f}) {
      Matrix logits = Matrix::random(2, 5000, 1);
      logits.at(1, 4321) = bad;
      const DeviceMatrix logits_gpu(logits, DType::kF32);
      const DeviceArray<SampleRow> params(
          std::vector<SampleRow>(2, {.seed = 1, .position = 2, .temperature = temperature}));
      const DeviceArray<int32_t> ids({-9, -9});
      ops::sample(
          ctx(),
          {.ids = ids.span(), .logits = logits_gpu.tensor(), .rows = params.span(), .id_map = {}});
      EXPECT_GE(ids.to_host()[0], 0);
      EXPECT_EQ(ids.to_host()[1], -1);
    }
  }
}

}  // namespace
}  // namespace eyrie::ops::gpu
