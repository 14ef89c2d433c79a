// The runner under the real scheduler on the tiny pair of model/testing.h: what a user gets does
// not depend on drafts, company, chunks, the prefix cache or preemption, bit for bit.
#include "runtime/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "model/testing.h"
#include "model/testing_oracle.h"
#include "runtime/step_calibration.h"
#include "runtime/testing.h"
#include "sched/testing.h"

namespace eyrie::runtime {
namespace {

using model::testing::TempFolder;
using model::testing::TinyCheckpoint;
using testing::Answer;
using testing::Request;
using testing::ServingLoop;

constexpr int32_t kBlockSize = 16;
constexpr int32_t kNumBlocks = 256;

// As Quark leaves it: an FP8 KV cache declared, a scale in the first layer.
TinyCheckpoint with_kv_scales(TinyCheckpoint target) {
  target.config["quantization_config"] = {
      {"quant_method", "quark"},
      {"global_quant_config", {{"weight", nullptr}}},
      {"kv_cache_quant_config", {{"*kv_a_proj_with_mqa", nlohmann::json::object()}}}};
  target.tensors["language_model.model.layers.0.self_attn.kv_a_proj_with_mqa.output_scale"] = {
      .dtype = "F32", .shape = {1}, .values = {0.02F}};
  return target;
}

// The tiny pair on disk, and as a user quantizes it.
struct Pair {
  Pair() {
    target.write(folder.path() + "/target");
    target.encoded(formats::kMxfp4, {".mlp.experts."}).write(folder.path() + "/target-mxfp4");
    target.encoded(formats::kNvfp4, {"2.mlp.experts.", "3.mlp.experts."})
        .encoded(formats::kInt4G32, {"1.mlp.experts.", "shared_experts."})
        .encoded(formats::kFp8Block, {"self_attn."})
        .write(folder.path() + "/target-many-formats");
    with_kv_scales(target).write(folder.path() + "/target-kv-scales");
    draft.write(folder.path() + "/draft");
    draft.encoded(formats::kFp8, {"self_attn.", "mlp."}).write(folder.path() + "/draft-fp8");
  }
  TempFolder folder;
  TinyCheckpoint target = model::testing::tiny_target();
  TinyCheckpoint draft = model::testing::tiny_draft(target);
};

const Pair& pair() {
  static const Pair instance;
  return instance;
}

// Names of folders of the pair; an empty draft is none.
RunnerConfig config_of(const std::string& target, const std::string& draft) {
  RunnerConfig config;
  config.model = pair().folder.path() + "/" + target;
  if (!draft.empty()) config.draft = pair().folder.path() + "/" + draft;
  config.num_threads = 2;
  return config;
}

std::unique_ptr<Runner> make_runner(const std::string& target, const std::string& draft,
                                    int num_threads = 2,
                                    KvCacheDType kv_cache_dtype = KvCacheDType::kAuto) {
  RunnerConfig config = config_of(target, draft);
  config.kv_cache_dtype = kv_cache_dtype;
  config.num_threads = num_threads;
  auto runner = std::make_unique<Runner>(config);
  runner->allocate_kv(kNumBlocks, kBlockSize);
  runner->kv().poison();
  return runner;
}

std::unique_ptr<Runner> make_runner(bool with_draft, int num_threads = 2) {
  return make_runner("target", with_draft ? "draft" : "", num_threads);
}

// Activations of float32, as the oracle has them.
std::unique_ptr<Runner> make_precise_runner(bool with_draft) {
  RunnerConfig config = config_of("target", with_draft ? "draft" : "");
  config.activation = ops::ActivationQuantization::kOff;
  auto runner = std::make_unique<Runner>(config);
  runner->allocate_kv(kNumBlocks, kBlockSize);
  return runner;
}

sched::SchedulerConfig scheduler_config(int32_t num_drafts, int32_t budget = 256) {
  sched::SchedulerConfig config;
  config.max_num_seqs = 32;
  config.max_num_batched_tokens = budget;
  config.max_model_len = 512;
  config.block_size = kBlockSize;
  config.num_blocks = kNumBlocks;
  config.num_speculative_tokens = num_drafts;
  return config;
}

std::vector<TokenId> prompt_of(int seed, int length) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back((seed * 31 + i * i * 7 + i * 13) % 126 + 2);
  return prompt;
}

SamplingParams greedy(int32_t max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  return params;
}

SamplingParams sampled(int32_t max_tokens, uint64_t seed) {
  SamplingParams params = greedy(max_tokens);
  params.temperature = 0.9;
  params.top_p = 0.95;
  params.seed = seed;
  params.repetition_penalty = 1.05;
  params.presence_penalty = 0.1;
  return params;
}

// The request under test first, then 15 others of all sorts.
std::vector<Request> crowd(const Request& first) {
  std::vector<Request> requests = {first};
  for (int i = 1; i < 16; ++i) {
    const SamplingParams params =
        i % 3 == 0 ? sampled(10 + i, static_cast<uint64_t>(i)) : greedy(7 + 2 * i);
    requests.push_back({prompt_of(i, 1 + (i * 29) % 120), params});
  }
  return requests;
}

TEST(RunnerTest, FirstTokensAreTheOracles) {
  const auto runner = make_precise_runner(/*with_draft=*/false);
  ServingLoop loop(*runner, scheduler_config(0));
  std::vector<TokenId> ids = prompt_of(3, 21);
  const std::vector<TokenId> tokens = loop.serve({{ids, greedy(12)}})[0].tokens;
  ASSERT_EQ(tokens.size(), 12u);
  for (const TokenId token : tokens) {
    const auto logits =
        model::testing::oracle_target(pair().target, runner->model_config(), ids).logits.back();
    const auto best = std::max_element(logits.begin(), logits.end());
    ASSERT_EQ(token, best - logits.begin()) << "after " << ids.size() << " tokens";
    ids.push_back(token);
  }
}

struct Case {
  const char* name;
  const char* target;
  Request request;
  KvCacheDType kv_cache_dtype = KvCacheDType::kAuto;
};

class ExactnessTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Requests, ExactnessTest,
    ::testing::Values(
        Case{"greedy", "target", {prompt_of(40, 133), greedy(60)}},
        Case{"seeded", "target", {prompt_of(41, 133), sampled(60, 1234)}},
        Case{"one_token_prompt", "target", {prompt_of(42, 1), greedy(40)}},
        Case{"mxfp4_experts", "target-mxfp4", {prompt_of(43, 70), greedy(40)}},
        Case{"many_formats", "target-many-formats", {prompt_of(44, 70), greedy(40)}},
        Case{"fp8_cache", "target", {prompt_of(40, 133), greedy(60)}, KvCacheDType::kFp8},
        Case{
            "fp8_cache_scaled_seeded", "target-kv-scales", {prompt_of(41, 70), sampled(40, 1234)}}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(ExactnessTest, SameTextHoweverItIsServed) {
  const Request& request = GetParam().request;
  std::vector<TokenId> expected;
  int64_t num_accepted = 0, num_rejected = 0;
  for (const std::string draft : {"", "draft", "draft-fp8"}) {
    const auto runner = make_runner(GetParam().target, draft, 2, GetParam().kv_cache_dtype);
    for (const int32_t chunk : {256, 16, 7, 512}) {
      for (const bool prefix_cache : {true, false}) {
        SCOPED_TRACE(
            fmt::format("draft '{}', chunk {}, prefix cache {}", draft, chunk, prefix_cache));
        sched::SchedulerConfig config = scheduler_config(draft.empty() ? 0 : 6, chunk);
        config.enable_prefix_caching = prefix_cache;
        ServingLoop loop(*runner, config);
        const Answer alone = loop.serve({request})[0];
        if (expected.empty()) expected = alone.tokens;
        ASSERT_EQ(alone.tokens.size(), static_cast<size_t>(request.params.max_tokens));
        ASSERT_EQ(alone.tokens, expected) << "alone, cold";
        const Answer warm = loop.serve({request})[0];
        ASSERT_EQ(warm.tokens, expected) << "alone, warm";
        EXPECT_EQ(warm.num_cached_tokens > 0, prefix_cache && request.prompt.size() > 32);
        ASSERT_EQ(loop.serve(crowd(request))[0].tokens, expected) << "with 15 others";
        num_accepted += loop.num_accepted();
        num_rejected += loop.num_rejected();
      }
    }
  }
  // Both outcomes of verification were seen, or the test would prove little.
  EXPECT_GT(num_accepted, 200);
  EXPECT_GT(num_rejected, 200);
}

// Drafts of any number, pauses, resumptions, blocks that wait while others share them, and a
// backlog so small that it loses most of what it is given: whatever is chosen, the text is the
// same.
TEST_P(ExactnessTest, SameTextWhateverNumberOfDraftsIsChosen) {
  const Request& request = GetParam().request;
  const std::vector<Request> requests = crowd(request);
  std::vector<std::vector<TokenId>> expected;
  int64_t num_accepted = 0;
  for (const int32_t num_drafts : {0, 1, 6}) {
    for (const bool tiny_backlog : {false, true}) {
      RunnerConfig runner_config = config_of(GetParam().target, num_drafts > 0 ? "draft" : "");
      runner_config.kv_cache_dtype = GetParam().kv_cache_dtype;
      runner_config.max_backlog_bytes = tiny_backlog ? 1 : 1 << 30;  // for one block, or for all
      Runner runner(runner_config);
      runner.allocate_kv(kNumBlocks, kBlockSize);
      runner.kv().poison();
      for (const int32_t chunk : {256, 7}) {
        SCOPED_TRACE(
            fmt::format("{} drafts, tiny backlog {}, chunk {}", num_drafts, tiny_backlog, chunk));
        sched::testing::RandomDrafts policy(static_cast<uint64_t>(chunk + num_drafts));
        ServingLoop loop(runner, scheduler_config(num_drafts, chunk));
        loop.set_draft_policy(&policy);
        for (int round = 0; round < 2; ++round) {
          std::vector<std::vector<TokenId>> texts;
          for (const Answer& answer : loop.serve(requests)) texts.push_back(answer.tokens);
          if (expected.empty()) expected = texts;
          ASSERT_EQ(texts, expected) << "round " << round;
        }
        num_accepted += loop.num_accepted();
      }
      EXPECT_EQ(runner.num_lost_features() > 0, tiny_backlog && num_drafts > 0);
    }
  }
  EXPECT_GT(num_accepted, 200);
}

// What waited is taken in as if it had not: after a pause the draft proposes what it would have.
TEST(RunnerTest, APauseLosesNoDraft) {
  const Request request{prompt_of(9, 40), greedy(120)};
  // Pauses in the middle of the answer, and of the prompt, whose chunks wait.
  class Pause final : public sched::DraftPolicy {
   public:
    explicit Pause(bool pauses) : pauses_(pauses) {}
    void choose(std::span<sched::DraftSeat> seats) override {
      for (sched::DraftSeat& seat : seats) {
        const bool none = pauses_ && seat.num_remaining > 60;
        seat.num_drafts = none ? 0 : std::min(seat.max_drafts, seat.num_remaining > 60 ? 0 : 6);
      }
    }
    bool follows_always() const override { return !pauses_; }
    void note_verified(sched::DraftRecord&, int32_t num_drafts, int32_t num_accepted) override {
      log.push_back({num_drafts, num_accepted});
    }
    void note_finished(int32_t) override {}
    void note_step(const sched::StepTimes&, int32_t, bool) override {}
    std::vector<std::pair<int32_t, int32_t>> log;

   private:
    bool pauses_;
  };
  std::vector<std::vector<std::pair<int32_t, int32_t>>> logs;
  for (const bool pauses : {false, true}) {
    const auto runner = make_runner(/*with_draft=*/true);
    Pause policy(pauses);
    ServingLoop loop(*runner, scheduler_config(6, 16));
    loop.set_draft_policy(&policy);
    loop.serve({request});
    logs.push_back(policy.log);
  }
  EXPECT_GT(logs[0].size(), 10u);
  EXPECT_EQ(logs[0], logs[1]);
}

TEST(RunnerTest, PreemptionDoesNotChangeAnswers) {
  const std::vector<Request> requests = crowd({prompt_of(50, 90), greedy(80)});
  std::vector<std::vector<TokenId>> expected;
  for (const int32_t num_blocks : {kNumBlocks, 24}) {
    const auto runner = make_runner(/*with_draft=*/true);
    sched::SchedulerConfig config = scheduler_config(4);
    config.num_blocks = num_blocks;
    ServingLoop loop(*runner, config);
    int32_t num_preemptions = 0;
    std::vector<std::vector<TokenId>> texts;
    for (const Answer& answer : loop.serve(requests)) {
      texts.push_back(answer.tokens);
      num_preemptions += answer.num_preemptions;
    }
    if (expected.empty()) expected = texts;
    EXPECT_EQ(texts, expected);
    EXPECT_EQ(num_preemptions > 0, num_blocks == 24);
  }
}

TEST(RunnerTest, NumberOfThreadsDoesNotChangeAnswers) {
  const std::vector<Request> requests = crowd({prompt_of(7, 60), sampled(30, 5)});
  std::vector<Answer> expected;
  for (const int num_threads : {1, 3}) {
    const auto runner = make_runner(/*with_draft=*/true, num_threads);
    ServingLoop loop(*runner, scheduler_config(6));
    const std::vector<Answer> answers = loop.serve(requests);
    if (expected.empty()) expected = answers;
    EXPECT_EQ(answers, expected);
  }
}

// A long step's rows go through the target in passes; where they are cut is nobody's business.
TEST(RunnerTest, NumberOfRowsOfAPassDoesNotChangeAnswers) {
  const std::vector<Request> requests = crowd({prompt_of(9, 110), sampled(20, 3)});
  std::vector<Answer> expected;
  for (const int64_t rows_per_pass : {1 << 20, 1, 24, 97}) {
    RunnerConfig config = config_of("target-mxfp4", "draft");
    config.rows_per_pass = rows_per_pass;
    Runner runner(config);
    runner.allocate_kv(kNumBlocks, kBlockSize);
    runner.kv().poison();
    ServingLoop loop(runner, scheduler_config(3));
    const std::vector<Answer> answers = loop.serve(requests);
    if (expected.empty()) expected = answers;
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].tokens, expected[i].tokens) << rows_per_pass << " rows, request " << i;
    }
  }
}

TEST(RunnerTest, DraftsArriveSoonerAndFewerStepsAreMade) {
  const Request request{prompt_of(9, 40), greedy(120)};
  const auto without = make_runner(/*with_draft=*/false);
  ServingLoop(*without, scheduler_config(0)).serve({request});
  EXPECT_EQ(without->num_steps(), 120);
  const auto with = make_runner(/*with_draft=*/true);
  ServingLoop loop(*with, scheduler_config(6));
  loop.serve({request});
  EXPECT_LT(with->num_steps(), 80);
  EXPECT_GT(loop.acceptance_length(), 1.5);
}

// What the user sees about a token comes from the target alone.
TEST(RunnerTest, LogprobsAreTheSameWithDrafts) {
  Request request{prompt_of(11, 70), greedy(40)};
  request.params.logprobs = 3;
  request.params.prompt_logprobs = 2;
  std::vector<Answer> answers;
  for (const bool with_draft : {false, true}) {
    const auto runner = make_precise_runner(with_draft);
    ServingLoop loop(*runner, scheduler_config(with_draft ? 6 : 0, with_draft ? 32 : 256));
    answers.push_back(loop.serve({request})[0]);
  }
  EXPECT_EQ(answers[0].logprobs, answers[1].logprobs);
  EXPECT_EQ(answers[0].prompt_logprobs, answers[1].prompt_logprobs);
  ASSERT_EQ(answers[0].logprobs.size(), 40u);
  ASSERT_EQ(answers[0].prompt_logprobs.size(), 69u);

  const auto oracle = model::testing::oracle_target(
      pair().target, make_runner(false)->model_config(), request.prompt);
  for (size_t t = 0; t + 1 < request.prompt.size(); ++t) {
    const Logprobs& scored = answers[0].prompt_logprobs[t];
    ASSERT_EQ(scored.token.id, request.prompt[t + 1]);
    double total = 0;
    for (const double logit : oracle.logits[t]) total += std::exp(logit);
    const double expected =
        oracle.logits[t][static_cast<size_t>(scored.token.id)] - std::log(total);
    ASSERT_NEAR(scored.token.logprob, expected, 1e-3) << t;
    ASSERT_EQ(scored.top.size(), 2u);
  }
}

TEST(RunnerTest, ManyScoredPromptTokensInOneChunk) {
  Request request{prompt_of(12, 200), greedy(1)};
  request.params.prompt_logprobs = 0;
  const auto runner = make_runner(/*with_draft=*/true);
  ServingLoop loop(*runner, scheduler_config(3));
  const Answer answer = loop.serve({request})[0];
  ASSERT_EQ(answer.prompt_logprobs.size(), 199u);
  for (size_t t = 0; t < 199; ++t) {
    ASSERT_EQ(answer.prompt_logprobs[t].token.id, request.prompt[t + 1]);
  }
}

// A broken weight gives NaN logits: that request ends with a fault and no token; others go on.
TEST(RunnerTest, NanLogitsEndTheRequestThatMetThem) {
  TinyCheckpoint broken = pair().target;
  const std::string embed = "language_model.model.embed_tokens.weight";
  for (size_t i = 0; i < 64; ++i) broken.tensors[embed].values[5 * 64 + i] = std::nanf("");
  TempFolder folder;
  broken.write(folder.path());
  RunnerConfig config;
  config.model = folder.path();
  config.num_threads = 1;
  Runner runner(config);
  runner.allocate_kv(kNumBlocks, kBlockSize);
  ServingLoop loop(runner, scheduler_config(0));
  const std::vector<Answer> answers =
      loop.serve({{{2, 3, 5, 7}, greedy(8)}, {{2, 3, 4, 7}, greedy(8)}});
  EXPECT_TRUE(answers[0].numeric_fault);
  EXPECT_TRUE(answers[0].tokens.empty());
  EXPECT_FALSE(answers[1].numeric_fault);
}

// Batches of all shapes come and go: after one round nothing is allocated, neither scratch nor
// heap.
TEST(RunnerTest, AWarmStepAllocatesNothing) {
  const auto runner = make_runner(/*with_draft=*/true);
  const std::vector<Request> requests = crowd({prompt_of(13, 100), greedy(40)});
  sched::SchedulerConfig config = scheduler_config(6);
  config.enable_prefix_caching = false;  // every round plans the same steps
  for (int round = 0; round < 3; ++round) {
    const int num_growths = runner->arena().num_growths();
    ServingLoop loop(*runner, config);
    loop.watch_allocations(testing::num_heap_allocations);
    loop.serve(requests);
    if (round == 0) {
      EXPECT_GT(loop.num_allocations(), 0);  // the counter counts
      continue;
    }
    EXPECT_EQ(runner->arena().num_growths(), num_growths);
    EXPECT_EQ(loop.num_allocations(), 0);
  }
}

TEST(RunnerTest, ADraftOfAnotherTargetIsRefusedInOneSentence) {
  TinyCheckpoint other = pair().draft;
  other.config["target_hidden_size"] = 7168;
  TempFolder folder;
  other.write(folder.path());
  RunnerConfig config;
  config.model = pair().folder.path() + "/target";
  config.draft = folder.path();
  config.num_threads = 1;
  try {
    const Runner runner(config);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "draft " + folder.path() +
                  ": the draft reads hidden states of width 7168, but the target's hidden_size is "
                  "64");
  }
}

TEST(RunnerTest, DummyWeightsNeedOnlyConfigsAndTakeOverrides) {
  TempFolder folder;
  for (const auto& [name, config] :
       {std::pair{"target", pair().target.config}, std::pair{"draft", pair().draft.config}}) {
    const TinyCheckpoint only_config = {.config = config, .tensors = {}};
    only_config.write(folder.path() + "/" + name);
    std::filesystem::remove(folder.path() + "/" + name + "/model.safetensors");
  }
  RunnerConfig config;
  config.model = folder.path() + "/target";
  config.draft = folder.path() + "/draft";
  config.load_dummy = true;
  config.hf_overrides = {{"text_config", {{"num_hidden_layers", 3}}}};
  config.num_threads = 1;
  Runner runner(config);
  EXPECT_EQ(runner.model_config().num_hidden_layers, 3);
  EXPECT_EQ(runner.kv_bytes_per_token(), (3 * 40 + 2 * 64) * 2);
  runner.allocate_kv(kNumBlocks, kBlockSize);
  ServingLoop loop(runner, scheduler_config(3));
  const Answer answer = loop.serve({{prompt_of(1, 20), greedy(10)}})[0];
  EXPECT_EQ(answer.tokens.size(), 10u);
  EXPECT_FALSE(answer.numeric_fault);
}

// Look-up in the text, at any lengths: a draft from the text itself is verified like any other.
TEST(RunnerTest, DraftsLookedUpInTheTextDoNotChangeIt) {
  Request repeating{{}, greedy(300)};
  for (int i = 0; i < 60; ++i) repeating.prompt.push_back(i % 6 + 3);
  std::vector<Request> requests = crowd(repeating);
  std::vector<std::vector<TokenId>> expected;
  int64_t num_accepted = 0, num_rejected = 0;
  for (const NgramConfig ngram : {NgramConfig{}, NgramConfig{1, 1}, NgramConfig{1, 4}}) {
    for (const bool random : {false, true}) {
      for (const int32_t num_drafts : {0, 5}) {
        RunnerConfig config = config_of("target", "");
        if (num_drafts > 0) config.ngram = ngram;
        Runner runner(config);
        runner.allocate_kv(kNumBlocks, kBlockSize);
        runner.kv().poison();
        sched::SchedulerConfig scheduler = scheduler_config(num_drafts, 64);
        scheduler.draft_keeps_kv = false;
        ServingLoop loop(runner, scheduler);
        sched::testing::RandomDrafts policy(5);
        if (random) loop.set_draft_policy(&policy);
        std::vector<std::vector<TokenId>> texts;
        for (const Answer& answer : loop.serve(requests)) texts.push_back(answer.tokens);
        if (expected.empty()) expected = texts;
        ASSERT_EQ(texts, expected);
        num_accepted += loop.num_accepted();
        num_rejected += loop.num_rejected();
      }
    }
  }
  EXPECT_GT(num_accepted, 50);
  EXPECT_GT(num_rejected, 50);
}

// Made-up acceptance gives the length that was asked for, with any draft.
TEST(RunnerTest, SyntheticAcceptanceKeepsItsRates) {
  RunnerConfig config = config_of("target", "draft");
  config.synthetic_acceptance = {0.9, 0.7, 0.4, 0.1};
  Runner runner(config);
  runner.allocate_kv(kNumBlocks, kBlockSize);
  ServingLoop loop(runner, scheduler_config(4));
  std::vector<Request> requests;
  for (int i = 0; i < 24; ++i) requests.push_back({prompt_of(i, 20), greedy(300)});
  for (size_t i = 0; i < requests.size(); ++i) requests[i].params.seed = i;
  const std::vector<Answer> answers = loop.serve(requests);
  EXPECT_NEAR(loop.acceptance_length(), 1 + 0.9 + 0.7 + 0.4 + 0.1, 0.08);
  for (const Answer& answer : answers) EXPECT_EQ(answer.tokens.size(), 300u);
}

// The calibration knows every part of a step, wide ones too, and leaves nothing behind that
// changes an answer.
TEST(StepCalibrationTest, FindsTheCostOfEveryPart) {
  const Request request{prompt_of(40, 133), greedy(40)};
  const auto plain = make_runner(/*with_draft=*/false);
  const Answer expected = ServingLoop(*plain, scheduler_config(0)).serve({request})[0];
  for (const bool with_draft : {true, false}) {
    const auto runner = make_runner(with_draft);
    const sched::StepCosts costs = calibrate_steps(
        *runner, {.num_speculative_tokens = 6, .max_num_seqs = 32, .max_seconds = 5});
    EXPECT_GT(costs.forward.at(1), 0);
    EXPECT_GT(costs.forward.at(256), costs.forward.at(1));
    EXPECT_GT(costs.head.at(32), 0);
    for (const sched::CostCurve* curve : {&costs.follow, &costs.guess, &costs.chain}) {
      EXPECT_EQ(curve->known(), with_draft);
      EXPECT_EQ(curve->at(32) > 0, with_draft);
    }
    ServingLoop loop(*runner, scheduler_config(with_draft ? 6 : 0));
    EXPECT_EQ(loop.serve({request})[0], expected);
  }
  // A cache without room for it is calibrated not at all.
  Runner tiny(config_of("target", "draft"));
  tiny.allocate_kv(4, kBlockSize);
  EXPECT_FALSE(calibrate_steps(tiny, {.num_speculative_tokens = 6}).forward.known());
}

TEST(KvStorageTest, KimiK25CostsWhatItsAuthorsSay) {
  model::ModelConfig target;
  target.num_hidden_layers = 61;
  target.kv_lora_rank = 512;
  target.qk_rope_head_dim = 64;
  EXPECT_EQ(KvLayout::of(target, nullptr).bytes_per_token(), 70272);
  model::Eagle3Config draft;
  draft.num_key_value_heads = 64;
  draft.head_dim = 128;
  EXPECT_EQ(KvLayout::of(target, &draft).bytes_per_token(), 70272 + 32768);
}

TEST(KvStorageTest, Fp8HalvesTheBytesOfEachCacheAlone) {
  KvLayout layout = {.num_target_layers = 61, .target_width = 576, .draft_width = 64 * 128};
  layout.target_dtype = DType::kF8E4M3;
  EXPECT_EQ(layout.bytes_per_token(), 35136 + 32768);
  layout.draft_dtype = DType::kF8E4M3;
  EXPECT_EQ(layout.bytes_per_token(), 35136 + 16384);
  layout.draft_width = 0;
  EXPECT_EQ(layout.bytes_per_token(), 35136);
}

// What decides: the flag; with auto each checkpoint's own config. A draft inherits nothing.
TEST(RunnerTest, TheCacheTypeIsTheFlagsOrTheCheckpoints) {
  const auto layout = [](const std::string& target, KvCacheDType wanted) {
    return make_runner(target, "draft", 1, wanted)->kv_layout();
  };
  const KvLayout plain = layout("target", KvCacheDType::kAuto);
  EXPECT_EQ(plain.target_dtype, DType::kBF16);
  EXPECT_EQ(plain.draft_dtype, DType::kBF16);
  const KvLayout asked = layout("target", KvCacheDType::kFp8);
  EXPECT_EQ(asked.target_dtype, DType::kF8E4M3);
  EXPECT_EQ(asked.draft_dtype, DType::kF8E4M3);
  EXPECT_EQ(asked.target_scales, (std::vector<float>{1.0F, 1.0F, 1.0F, 1.0F}));
  const KvLayout declared = layout("target-kv-scales", KvCacheDType::kAuto);
  EXPECT_EQ(declared.target_dtype, DType::kF8E4M3);
  EXPECT_EQ(declared.draft_dtype, DType::kBF16);
  EXPECT_EQ(declared.target_scales, (std::vector<float>{0.02F, 1.0F, 1.0F, 1.0F}));
  EXPECT_EQ(layout("target-kv-scales", KvCacheDType::kBf16).target_dtype, DType::kBF16);
}

TEST(RunnerTest, NanMeetsTheRequestInAnFp8CacheToo) {
  TinyCheckpoint broken = pair().target;
  const std::string norm = "language_model.model.layers.0.self_attn.kv_a_layernorm.weight";
  for (const float wrong : {std::nanf(""), INFINITY}) {
    broken.tensors[norm].values[3] = wrong;
    TempFolder folder;
    broken.write(folder.path());
    RunnerConfig config;
    config.model = folder.path();
    config.kv_cache_dtype = KvCacheDType::kFp8;
    config.num_threads = 1;
    Runner runner(config);
    runner.allocate_kv(kNumBlocks, kBlockSize);
    ServingLoop loop(runner, scheduler_config(0));
    const Answer answer = loop.serve({{prompt_of(3, 21), greedy(4)}})[0];
    EXPECT_TRUE(answer.numeric_fault) << wrong;
    EXPECT_TRUE(answer.tokens.empty()) << wrong;
  }
}

TEST(KvStorageTest, CachesDoNotOverlap) {
  KvStorage kv({.num_target_layers = 3, .target_width = 40, .draft_width = 33}, 2, 16);
  ASSERT_EQ(kv.target().size(), 3u);
  ASSERT_EQ(kv.draft().size(), 2u);
  std::vector<ops::CacheView> all(kv.target().begin(), kv.target().end());
  all.insert(all.end(), kv.draft().begin(), kv.draft().end());
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    EXPECT_LE(static_cast<std::byte*>(all[i].data.raw()) + all[i].data.bytes(),
              all[i + 1].data.raw());
  }
}

}  // namespace
}  // namespace eyrie::runtime
