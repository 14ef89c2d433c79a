// Experts against the reference: sorted, multiplied, summed; with shared experts of the routed
// ones' format and of another.
#include <random>

#include "ops/gpu/gpu_test_support.h"
#include "ops/weight_test_support.h"

namespace eyrie::ops::gpu {
namespace {

struct Case {
  const formats::WeightFormat* format;
  int64_t tokens, num_experts, top_k, hidden, width;
  const formats::WeightFormat* shared;  // nullptr: none
};

// One set of experts for both backends.
struct Experts {
  std::vector<Owned> owned;
  std::vector<PreparedWeight> gate_up, down;
  PreparedWeight shared_gate_up, shared_down;

  Experts(const Ctx& ctx, const Case& c) {
    owned.reserve(static_cast<size_t>(3 * c.num_experts + 3));
    const auto add = [&](const formats::WeightFormat& format, int64_t out, int64_t in) {
      owned.push_back(encoded(format, out, in, static_cast<uint32_t>(owned.size())));
      return owned.back().weight;
    };
    const auto gate_and_up = [&](const formats::WeightFormat& format, int64_t width) {
      const formats::Weight gate = add(format, width, c.hidden);
      const std::vector<formats::Weight> parts = {gate, add(format, width, c.hidden)};
      return ops::prepare(ctx, parts);
    };
    const auto single = [&](const formats::WeightFormat& format, int64_t out, int64_t in) {
      const formats::Weight weight = add(format, out, in);
      return ops::prepare(ctx, {&weight, 1});
    };
    for (int64_t e = 0; e < c.num_experts; ++e) {
      gate_up.push_back(gate_and_up(*c.format, c.width));
      down.push_back(single(*c.format, c.hidden, c.width));
    }
    if (c.shared == nullptr) return;
    shared_gate_up = gate_and_up(*c.shared, c.width);
    shared_down = single(*c.shared, c.hidden, c.width);
  }
};

class GpuExpertsTest : public GpuTest {
 protected:
  static void check(const Case& c, bool deterministic, DType out_type) {
    std::mt19937 generator(7);
    std::vector<int32_t> ids;
    Matrix weights(c.tokens, c.top_k);
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t s = 0; s < c.top_k; ++s) {
        // The first expert is everybody's favourite, so that some have many tokens.
        const auto drawn = static_cast<int32_t>(generator() % static_cast<uint32_t>(c.num_experts));
        ids.push_back(generator() % 3 == 0 ? 0 : drawn);
        weights.at(t, s) = 0.1F + static_cast<float>(generator() % 100) / 100;
      }
    }
    const Matrix x = rounded(Matrix::random(c.tokens, c.hidden, 3), DType::kBF16);
    const auto args = [&](Experts& e, Tensor out, Tensor x_tensor, int32_t* id, Tensor w) {
      return ExpertsArgs{.out = out,
                         .x = x_tensor,
                         .ids = Tensor::of(id, {c.tokens, c.top_k}),
                         .weights = w,
                         .gate_up = e.gate_up,
                         .down = e.down,
                         .shared_gate_up = c.shared == nullptr ? nullptr : &e.shared_gate_up,
                         .shared_down = c.shared == nullptr ? nullptr : &e.shared_down};
    };
    Experts host(reference().ctx(), c);
    Matrix want(c.tokens, c.hidden);
    ops::experts(reference().ctx(),
                 args(host, want.tensor(), x.tensor(), ids.data(), weights.tensor()));

    Ctx context = ctx();
    context.deterministic = deterministic;
    Experts device(context, c);
    const WeightStack gate_up = ops::stack(context, std::move(device.gate_up));
    const WeightStack down = ops::stack(context, std::move(device.down));
    const DeviceMatrix x_device(x, DType::kBF16), out(c.tokens, c.hidden, out_type, c.hidden + 8);
    const DeviceMatrix weights_device(weights, DType::kF32);
    const DeviceArray<int32_t> ids_device(ids);
    ExpertsArgs a =
        args(device, out.tensor(), x_device.tensor(), ids_device.data(), weights_device.tensor());
    a.gate_up = gate_up;
    a.down = down;
    ops::experts(context, a);
    SCOPED_TRACE(testing::Message() << c.format->name << " x " << c.tokens);
    // SiLU's product and each expert's output are bf16 on the way.
    expect_close("experts " + std::string(c.format->name), out.to_host(), want,
                 c.format == &formats::kInt4G32 ? 1.6e-2 : 1e-2);
  }
};

TEST_F(GpuExpertsTest, AgreeWithTheReferenceInEveryFormat) {
  for (const formats::WeightFormat* format :
       {&formats::kBF16, &formats::kMxfp4, &formats::kNvfp4, &formats::kInt4G32, &formats::kFp8,
        &formats::kFp8Block}) {
    for (const int64_t tokens : {1, 5, 20, 150}) {
      check({format, tokens, 16, 4, 256, 96, format}, false, DType::kBF16);
    }
    check({format, 33, 16, 4, 256, 96, nullptr}, true, DType::kF32);
  }
}

// Enough tasks that blocks draw several, so that those of down wait for their tile's gate and up.
TEST_F(GpuExpertsTest, ManyTasks) {
  for (const bool deterministic : {false, true}) {
    for (const int64_t tokens : {1, 8, 64, 300}) {
      check({&formats::kMxfp4, tokens, 24, 4, 512, 256, &formats::kMxfp4}, deterministic,
            DType::kBF16);
    }
  }
  check({&formats::kBF16, 64, 24, 4, 256, 256, nullptr}, false, DType::kBF16);
}

// More than a million elements a matrix: tiles are as wide as the batch asks for.
TEST_F(GpuExpertsTest, LargeOnesAgreeWithTheReference) {
  for (const formats::WeightFormat* format : {&formats::kBF16, &formats::kMxfp4}) {
    for (const int64_t tokens : {3, 150}) {
      check({format, tokens, 2, 2, 1024, 544, format}, false, DType::kBF16);
    }
  }
}

// More inputs than a block's stages hold, and blocks for every number of tokens.
TEST_F(GpuExpertsTest, StagesAreFilledAgain) {
  for (const int64_t tokens : {1, 3, 20}) {
    check({&formats::kMxfp4, tokens, 2, 2, 4096, 160, &formats::kMxfp4}, false, DType::kBF16);
  }
}

TEST_F(GpuExpertsTest, SharedExpertsMayBeOfAnotherFormat) {
  for (const int64_t tokens : {1, 20}) {
    check({&formats::kMxfp4, tokens, 8, 2, 256, 96, &formats::kBF16}, false, DType::kBF16);
  }
}

TEST_F(GpuExpertsTest, NoTokensAreNoWork) {
  check({&formats::kMxfp4, 0, 8, 2, 256, 96, nullptr}, false, DType::kBF16);
}

TEST_F(GpuExpertsTest, SmallOnesNeverMixRows) {
  constexpr int64_t kTokens = 150, kTopK = 4;
  const Case c{&formats::kBF16, kTokens, 16, kTopK, 256, 96, &formats::kBF16};
  Experts device(ctx(), c);
  const WeightStack gate_up = ops::stack(ctx(), std::move(device.gate_up));
  const WeightStack down = ops::stack(ctx(), std::move(device.down));
  const DeviceMatrix x(Matrix::random(kTokens, 256, 3), DType::kBF16);
  const DeviceMatrix weights(Matrix::random(kTokens, kTopK, 4), DType::kF32);
  std::vector<int32_t> host_ids;
  for (int32_t i = 0; i < kTokens * kTopK; ++i) host_ids.push_back(i % 4 == 0 ? 0 : i % 16);
  const DeviceArray<int32_t> ids(host_ids);
  const auto rows = [&](int64_t first, int64_t count) {
    const DeviceMatrix out(count, 256, DType::kF32);
    const Tensor all_ids = Tensor::of(ids.data(), {kTokens, kTopK});
    ops::experts(ctx(), {.out = out.tensor(),
                         .x = x.tensor().rows(first, count),
                         .ids = all_ids.rows(first, count),
                         .weights = weights.tensor().rows(first, count),
                         .gate_up = gate_up,
                         .down = down,
                         .shared_gate_up = &device.shared_gate_up,
                         .shared_down = &device.shared_down});
    return out.to_host();
  };
  const Matrix all = rows(0, kTokens);
  for (const int64_t count : {1, 7, 33}) {
    const Matrix some = rows(64, count);
    for (int64_t r = 0; r < count; ++r) {
      EXPECT_TRUE(same_bits(some, r, all, 64 + r)) << "row " << r << " of " << count;
    }
  }
}

TEST_F(GpuExpertsTest, RowsWithoutExpertsAreZero) {
  const Case c{&formats::kMxfp4, 3, 4, 2, 256, 96, nullptr};
  Experts device(ctx(), c);
  const WeightStack gate_up = ops::stack(ctx(), std::move(device.gate_up));
  const WeightStack down = ops::stack(ctx(), std::move(device.down));
  const DeviceMatrix x(Matrix::random(3, 256, 3), DType::kBF16), out(3, 256, DType::kF32);
  const DeviceMatrix weights(Matrix(3, 2), DType::kF32);
  const DeviceArray<int32_t> ids({-1, -1, 1, 2, -1, -1});
  ops::experts(ctx(), {.out = out.tensor(),
                       .x = x.tensor(),
                       .ids = Tensor::of(ids.data(), {3, 2}),
                       .weights = weights.tensor(),
                       .gate_up = gate_up,
                       .down = down});
  const Matrix got = out.to_host();
  for (const int64_t row : {0, 2}) {
    for (int64_t i = 0; i < 256; ++i) EXPECT_EQ(got.at(row, i), 0.0F);
  }
}

// Router and experts as one op, against the same ops one by one, which other tests hold against the
// reference. The choice of experts is the same; so is all that is summed in the
// same order.
TEST_F(GpuExpertsTest, MoeIsRouterAndExperts) {
  const auto check_all = [](Case c) {
    Experts device(ctx(), c);
    const WeightStack gate_up = ops::stack(ctx(), std::move(device.gate_up));
    const WeightStack down = ops::stack(ctx(), std::move(device.down));
    const Owned gate = encoded(formats::kBF16, c.num_experts, c.hidden, 99);
    const PreparedWeight router = ops::prepare(ctx(), {&gate.weight, 1});
    for (const int64_t tokens : {1, 7, 20, 32, 33, 300}) {
      c.tokens = tokens;
      SCOPED_TRACE(testing::Message() << tokens << " tokens of " << c.num_experts << " experts");
      const Matrix x = rounded(Matrix::random(c.tokens, c.hidden, 3), DType::kBF16);
      const DeviceMatrix x_device(x, DType::kBF16),
          bias(Matrix::random(1, c.num_experts, 5), DType::kF32);
      const int32_t num_valid = static_cast<int32_t>(c.tokens - c.tokens / 5);
      const DeviceArray<int32_t> valid({num_valid});
      struct Outputs {
        DeviceMatrix out, logits, weights;
        DeviceArray<int32_t> ids;
      };
      const auto run = [&](bool as_one) {
        Outputs o{
            DeviceMatrix(c.tokens, c.hidden, DType::kBF16),
            DeviceMatrix(c.tokens, c.num_experts, DType::kF32),
            DeviceMatrix(c.tokens, c.top_k, DType::kF32),
            DeviceArray<int32_t>(std::vector<int32_t>(static_cast<size_t>(c.tokens * c.top_k)))};
        const Tensor ids = Tensor::of(o.ids.data(), {c.tokens, c.top_k});
        const MoeArgs args{
            .gate = {.out = o.logits.tensor(), .x = x_device.tensor(), .weight = &router},
            .route = {.ids = ids,
                      .weights = o.weights.tensor(),
                      .logits = o.logits.tensor(),
                      .bias = bias.tensor().reshape({c.num_experts}),
                      .routed_scaling_factor = 2.5F,
                      .num_valid = valid.data()},
            .experts = {.out = o.out.tensor(),
                        .x = x_device.tensor(),
                        .ids = ids,
                        .weights = o.weights.tensor(),
                        .gate_up = gate_up,
                        .down = down,
                        .shared_gate_up = &device.shared_gate_up,
                        .shared_down = &device.shared_down}};
        if (as_one) {
          ops::moe(ctx(), args);
        } else {
          ops::linear(ctx(), args.gate);
          ops::route(ctx(), args.route);
          ops::experts(ctx(), args.experts);
        }
        check_device();
        return o;
      };
      const Outputs got = run(true), want = run(false);
      EXPECT_EQ(got.ids.to_host(), want.ids.to_host());
      expect_close("moe weights", got.weights.to_host(), want.weights.to_host(), 1e-6);
      expect_close("moe out", got.out.to_host(), want.out.to_host(), 1e-6);
    }
  };
  check_all({&formats::kMxfp4, 0, 384, 8, 256, 64, &formats::kMxfp4});
  check_all({&formats::kMxfp4, 0, 30, 3, 256, 64, &formats::kMxfp4});
}

}  // namespace
}  // namespace eyrie::ops::gpu
