// On the bundled pair, quantized as the demo does it: greedy and seeded answers are bit-identical
// over {no draft, BF16 draft, FP8 draft} × {alone, with 15 others} × {chunk 16, 256, whole} ×
// {prefix cache cold, warm, off}, for the BF16 target and for the one with MXFP4 experts.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/testing.h"
#include "quantize/quantize.h"
#include "runtime/step_calibration.h"
#include "runtime/testing.h"
#include "sched/draft_sizer.h"
#include "sched/testing.h"
#include "tokenizer/tokenizer.h"

namespace eyrie::runtime {
namespace {

using testing::Answer;
using testing::Request;
using testing::ServingLoop;

constexpr const char* kTarget = "models/kimi-k2.5-nano";
constexpr const char* kDraft = "models/kimi-k2.5-nano-eagle3";
constexpr const char* kPrompts = "data/prompts/nano-mix.jsonl";
constexpr int32_t kBlockSize = 16;
constexpr int32_t kNumBlocks = 1024;
constexpr int32_t kWhole = 4096;  // a budget no prompt here reaches

// The pair as quantized by our own quantizer, made once.
const model::testing::TempFolder& quantized() {
  static const model::testing::TempFolder folder;
  static const bool made = [] {
    quantize::Options target;
    target.input = kTarget;
    target.output = folder.path() + "/target-mxfp4";
    target.recipe = formats::find_recipe(formats::kMxfp4);
    quantize::quantize(target);
    quantize::Options draft;
    draft.input = kDraft;
    draft.output = folder.path() + "/draft-fp8";
    draft.recipe = formats::find_recipe(formats::kFp8);
    quantize::quantize(draft);
    return true;
  }();
  (void)made;
  return folder;
}

// A crowd of 16 from the benchmark's prompts; the first is the one that is compared.
std::vector<Request> crowd(const SamplingParams& first) {
  const Tokenizer tokenizer = Tokenizer::load(kTarget);
  std::ifstream file(kPrompts);
  std::vector<Request> requests;
  for (std::string line; requests.size() < 16 && std::getline(file, line);) {
    const auto prompt = nlohmann::json::parse(line).at("prompt").get<std::string>();
    Request request{tokenizer.encode(prompt, AllowSpecial::kAll), first};
    if (!requests.empty()) {
      request.prompt.resize(std::min(request.prompt.size(), size_t{64}));
      request.params.max_tokens = 4 + static_cast<int32_t>(requests.size()) * 2;
      request.params.seed = requests.size();
      request.params.temperature = requests.size() % 2 == 0 ? 0.0 : 0.8;
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

struct Case {
  const char* name;
  bool mxfp4;
  bool sampled;
};

class NanoExactnessTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    for (const char* folder : {kTarget, kDraft}) {
      const std::string weights = std::string(folder) + "/model.safetensors";
      if (!std::filesystem::exists(weights)) GTEST_SKIP() << weights << " is not there";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Cases, NanoExactnessTest,
                         ::testing::Values(Case{"bf16_greedy", false, false},
                                           Case{"bf16_seeded", false, true},
                                           Case{"mxfp4_greedy", true, false},
                                           Case{"mxfp4_seeded", true, true}),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(NanoExactnessTest, SameTextHoweverItIsServed) {
  SamplingParams params;
  params.temperature = GetParam().sampled ? 0.8 : 0.0;
  params.top_p = GetParam().sampled ? 0.95 : 1.0;
  params.seed = 20261130;
  params.max_tokens = 48;
  params.ignore_eos = true;
  const std::vector<Request> requests = crowd(params);
  ASSERT_EQ(requests.size(), 16u);

  std::vector<TokenId> expected;
  for (const std::string draft : {"", "bf16", "fp8"}) {
    RunnerConfig config;
    config.model = GetParam().mxfp4 ? quantized().path() + "/target-mxfp4" : kTarget;
    config.activation = ops::ActivationQuantization::kAuto;  // as `eyrie serve` has it
    if (draft == "bf16") config.draft = kDraft;
    if (draft == "fp8") config.draft = quantized().path() + "/draft-fp8";
    Runner runner(config);
    runner.allocate_kv(kNumBlocks, kBlockSize);
    runner.kv().poison();
    int64_t num_accepted = 0, num_rejected = 0;
    for (const int32_t chunk : {kWhole, 256, 16}) {
      for (const bool prefix_cache : {true, false}) {
        SCOPED_TRACE(
            fmt::format("draft '{}', chunk {}, prefix cache {}", draft, chunk, prefix_cache));
        sched::SchedulerConfig scheduler;
        scheduler.max_num_seqs = 16;
        scheduler.max_num_batched_tokens = chunk;
        scheduler.max_model_len = 2304;
        scheduler.block_size = kBlockSize;
        scheduler.num_blocks = kNumBlocks;
        scheduler.num_speculative_tokens = draft.empty() ? 0 : 6;
        scheduler.enable_prefix_caching = prefix_cache;
        ServingLoop loop(runner, scheduler);
        const Answer alone = loop.serve({requests[0]})[0];
        if (expected.empty()) expected = alone.tokens;
        ASSERT_EQ(alone.tokens.size(), 48u);
        ASSERT_EQ(alone.tokens, expected) << "alone, cold";
        if (prefix_cache) {
          const Answer warm = loop.serve({requests[0]})[0];
          ASSERT_EQ(warm.tokens, expected) << "alone, warm";
          EXPECT_GT(warm.num_cached_tokens, 0);
        }
        ASSERT_EQ(loop.serve(requests)[0].tokens, expected) << "with 15 others";
        num_accepted += loop.num_accepted();
        num_rejected += loop.num_rejected();
      }
    }
    if (draft.empty()) continue;
    // Both outcomes of verification were seen.
    EXPECT_GT(num_accepted, 100);
    EXPECT_GT(num_rejected, 100);
  }
}

// The same text whatever number of drafts is chosen: at random, or by the sizer on its own
// measurements of this machine, and with drafts looked up in the text.
TEST_P(NanoExactnessTest, SameTextWhateverNumberOfDraftsIsChosen) {
  SamplingParams params;
  params.temperature = GetParam().sampled ? 0.8 : 0.0;
  params.seed = 20261130;
  params.max_tokens = 48;
  params.ignore_eos = true;
  const std::vector<Request> requests = crowd(params);

  std::vector<std::vector<TokenId>> expected;
  for (const std::string who : {"", "eagle3", "ngram"}) {
    RunnerConfig config;
    config.model = GetParam().mxfp4 ? quantized().path() + "/target-mxfp4" : kTarget;
    if (who == "eagle3") config.draft = kDraft;
    if (who == "ngram") config.ngram = NgramConfig{.min_length = 1, .max_length = 3};
    Runner runner(config);
    runner.allocate_kv(kNumBlocks, kBlockSize);
    runner.kv().poison();
    const int32_t num_drafts = who.empty() ? 0 : 6;
    sched::testing::RandomDrafts random(7);
    sched::DraftSizer sizer(
        {.num_speculative_tokens = std::max(1, num_drafts),
         .costs = calibrate_steps(
             runner, {.num_speculative_tokens = std::max(1, num_drafts), .max_num_seqs = 16})});
    for (sched::DraftPolicy* policy :
         {static_cast<sched::DraftPolicy*>(&random), static_cast<sched::DraftPolicy*>(&sizer)}) {
      for (const int32_t chunk : {kWhole, 16}) {
        SCOPED_TRACE(
            fmt::format("'{}', chunk {}, {}", who, chunk, policy == &random ? "random" : "sized"));
        sched::SchedulerConfig scheduler;
        scheduler.max_num_seqs = 16;
        scheduler.max_num_batched_tokens = chunk;
        scheduler.max_model_len = 2304;
        scheduler.block_size = kBlockSize;
        scheduler.num_blocks = kNumBlocks;
        scheduler.num_speculative_tokens = num_drafts;
        scheduler.draft_keeps_kv = !config.draft.empty();
        ServingLoop loop(runner, scheduler);
        if (num_drafts > 0) loop.set_draft_policy(policy);
        for (const char* cache : {"cold", "warm"}) {
          std::vector<std::vector<TokenId>> texts;
          for (const Answer& answer : loop.serve(requests)) texts.push_back(answer.tokens);
          if (expected.empty()) expected = texts;
          ASSERT_EQ(texts, expected) << cache;
        }
        if (policy == &random && who == "eagle3") {
          EXPECT_GT(loop.num_accepted(), 20);
        }
      }
      if (who.empty()) break;
    }
  }
}

}  // namespace
}  // namespace eyrie::runtime
