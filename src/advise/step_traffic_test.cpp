#include "advise/step_traffic.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/threads.h"

namespace eyrie::advise {
namespace {

// Kimi-K2.5 in MXFP4, as published figures count it: reference bytes of a step from the parameter
// arithmetic of its config (MXFP4 is 4.25 bits, everything else bfloat16).
ModelTraffic kimi() {
  const double attention = 61 * 101.122e6, expert = 3 * 7168.0 * 2048;
  const auto mxfp4 = [](double p) { return Part{p, p * 4.25 / 8}; };
  const auto bf16 = [](double p) { return Part{p, p * 2}; };
  ModelTraffic t;
  t.attention = bf16(attention);
  t.router = bf16(60 * 384 * 7168.0);
  t.dense = mxfp4(3 * 7168.0 * 18432);
  t.shared = mxfp4(60 * expert);
  t.routed = mxfp4(60 * 384 * expert);
  t.head = bf16(163840 * 7168.0);
  t.num_layers = 61;
  t.num_experts = 384;
  t.experts_per_token = 8;
  t.kv_bytes_per_position = 61 * 576;
  return t;
}

double part(const StepRead& read, const std::string& name) {
  for (const auto& [key, bytes] : read.parts) {
    if (key == name) return bytes;
  }
  return -1;
}

// One token meets eight experts, ever more tokens meet all of them.
TEST(StepTraffic, ExpectsDistinctExperts) {
  EXPECT_NEAR(expected_distinct(384, 8, 1), 8, 1e-9);
  EXPECT_NEAR(expected_distinct(384, 8, 4), 31, 0.1);      // the figures of the published model at
  EXPECT_NEAR(expected_distinct(384, 8, 16), 109.9, 0.1);  // C = 4, 16 and 64
  EXPECT_NEAR(expected_distinct(384, 8, 64), 284.1, 0.1);
  EXPECT_NEAR(expected_distinct(384, 8, 1e6), 384, 1e-9);
  EXPECT_EQ(expected_distinct(0, 0, 5), 0);
}

TEST(StepTraffic, ReadsWhatThePublishedArithmeticSays) {
  const StepRead read = step_read(kimi(), {.num_sequences = 16, .num_drafts = 0, .context = 1536});
  EXPECT_NEAR(part(read, "routed") / 1e9, 154.3, 0.3);
  EXPECT_NEAR(part(read, "attention") / 1e9, 12.34, 0.01);
  EXPECT_NEAR(part(read, "head") / 1e9, 2.349, 0.001);
  EXPECT_NEAR(part(read, "KV") / 1e9, 16 * 1536 * 35136 / 1e9, 1e-6);
  EXPECT_EQ(part(read, "draft"), -1);
  EXPECT_NEAR(read.bytes() / 1e9, 154.3 + 12.34 + 0.33 + 0.21 + 1.40 + 2.35 + 0.86, 0.2);
  // 31.7 G parameters are active for a token; attention's scores come on top.
  EXPECT_NEAR(read.flops / 16 / 2 / 1e9, 31.7, 0.3);
}

TEST(StepTraffic, TheSlowerOfReadingAndComputingIsTheLimit) {
  StepRead read;
  read.parts = {{"a", 4e9}};
  read.flops = 1e12;
  EXPECT_DOUBLE_EQ(read.seconds(4e12), 1e-3);
  EXPECT_DOUBLE_EQ(read.seconds(4e12, 1e15), 1e-3);
  EXPECT_DOUBLE_EQ(read.seconds(4e12, 1e14), 1e-2);
}

// A chain of K reads its layer and head K times and takes the verified rows in once.
TEST(StepTraffic, ADraftIsReadOnceAPass) {
  ModelTraffic model = kimi();
  model.draft_layer = {675e6, 1.35e9};
  model.draft_head = {1174e6, 2.35e9};
  model.draft_fc = {154e6, 0.308e9};
  model.draft_kv_bytes_per_position = 32768;
  const StepRead read = step_read(model, {.num_sequences = 4, .num_drafts = 6, .context = 1000});
  EXPECT_NEAR(read.distinct, expected_distinct(384, 8, 28), 1e-9);
  EXPECT_NEAR(part(read, "draft") / 1e9, 0.308 + 6 * 1.35, 1e-9);
  EXPECT_NEAR(part(read, "draft head") / 1e9, 6 * 2.35, 1e-9);
  EXPECT_NEAR(part(read, "draft KV"), 6.0 * 4 * 1000 * 32768, 1);
  EXPECT_EQ(part(step_read(model, {.num_sequences = 4, .context = 1}), "draft"), -1);
}

// The parts of a loaded model are all its weights.
TEST(StepTraffic, CountsALoadedModelWhole) {
  auto files = checkpoint::Checkpoint::open("models/kimi-k2.5-nano");
  ThreadPool pool(1);
  Arena arena;
  const ops::Ctx ctx{.table = &ops::reference_ops(), .pool = &pool, .arena = &arena};
  const auto config = model::ModelConfig::parse(files.config());
  const auto target = model::KimiK25::load(ctx, files, config);
  const ModelTraffic t = traffic_of(target, nullptr);
  double bytes = 0;
  for (const Part* p : {&t.attention, &t.router, &t.dense, &t.shared, &t.routed, &t.head}) {
    EXPECT_GT(p->bytes, 0);
    EXPECT_DOUBLE_EQ(p->bytes, 2 * p->parameters);  // all of nano is bfloat16
    bytes += p->bytes;
  }
  EXPECT_DOUBLE_EQ(bytes, static_cast<double>(target.weight_bytes()));
  EXPECT_EQ(t.num_experts, config.n_routed_experts);

  auto draft_files = checkpoint::Checkpoint::open("models/kimi-k2.5-nano-eagle3");
  const auto draft = model::Eagle3::load(ctx, draft_files,
                                         model::Eagle3Config::parse(draft_files.config()), target);
  const ModelTraffic both = traffic_of(target, &draft);
  EXPECT_DOUBLE_EQ(both.draft_layer.bytes + both.draft_head.bytes + both.draft_fc.bytes,
                   static_cast<double>(draft.weight_bytes()));
  EXPECT_GT(both.draft_fc.bytes, 0);
  EXPECT_DOUBLE_EQ(both.head.bytes, t.head.bytes);
}

}  // namespace
}  // namespace eyrie::advise
