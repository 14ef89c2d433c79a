// The bundled pair against transformers and plain PyTorch (tests/golden/README.md says what the
// files hold). The reference computes in float32; what remains is our bf16 cache, about 1e-3.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "checkpoint/safetensors.h"
#include "runtime/testing.h"

namespace eyrie::runtime {
namespace {

using testing::Request;
using testing::ServingLoop;

constexpr const char* kTarget = "models/kimi-k2.5-nano";
constexpr const char* kDraft = "models/kimi-k2.5-nano-eagle3";
constexpr const char* kTargetGolden = "tests/golden/target.safetensors";
constexpr const char* kDraftGolden = "tests/golden/draft.safetensors";
constexpr double kTolerance = 1e-2;
constexpr int32_t kBlockSize = 16;
constexpr int32_t kNumBlocks = 256;
constexpr int kNumDrafts = 6;

// ‖a - b‖ / ‖b‖ of a row.
double relative_error(Tensor a, int64_t row_a, Tensor b, int64_t row_b) {
  CHECK_EQ(a.dim(1), b.dim(1));
  const float* x = a.data<float>() + row_a * a.stride(0);
  const float* y = b.data<float>() + row_b * b.stride(0);
  double error = 0, size = 0;
  for (int64_t i = 0; i < a.dim(1); ++i) {
    error += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
    size += double{y[i]} * y[i];
  }
  return std::sqrt(error / size);
}

std::vector<int32_t> ids_of(Tensor tensor) {
  const int64_t* data = tensor.data<int64_t>();
  return {data, data + tensor.num_elements()};
}

// Both models on one sequence, block after block.
class GoldenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::string& file :
         {std::string(kTarget) + "/model.safetensors", std::string(kDraft) + "/model.safetensors",
          std::string(kTargetGolden), std::string(kDraftGolden)}) {
      if (!std::filesystem::exists(file)) GTEST_SKIP() << file << " is not there";
    }
    target_golden_.emplace(kTargetGolden);
    draft_golden_.emplace(kDraftGolden);
    target_files_ = checkpoint::Checkpoint::open(kTarget);
    target_ = model::KimiK25::load(ctx_, *target_files_,
                                   model::ModelConfig::parse(target_files_->config()));
    draft_files_ = checkpoint::Checkpoint::open(kDraft);
    draft_ = model::Eagle3::load(ctx_, *draft_files_,
                                 model::Eagle3Config::parse(draft_files_->config()), *target_);
    kv_.emplace(KvLayout::of(target_->config(), &draft_->config()), kNumBlocks, kBlockSize);
    kv_->poison();
    for (int32_t i = 0; i < kNumBlocks; ++i) block_table_.push_back(i);
  }

  Tensor golden(const std::string& name) const { return target_golden_->tensors().at(name); }
  Tensor draft_golden(const std::string& name) const { return draft_golden_->tensors().at(name); }
  bool has(const std::string& name) const { return target_golden_->tensors().contains(name); }

  model::Step step(int32_t first, int32_t count, std::span<const ops::CacheView> caches) {
    positions_.clear();
    for (int32_t i = 0; i < count; ++i) positions_.push_back(first + i);
    sequences_ = {{.first_row = 0,
                   .num_rows = count,
                   .first_position = first,
                   .block_table = block_table_.data()}};
    return {.ctx = ctx_, .positions = positions_, .sequences = sequences_, .caches = caches};
  }

  // The residual stream after the last layer; captures what the draft listens to.
  Tensor run_target(std::span<const int32_t> ids, const model::TapSink* sink = nullptr) {
    arena_.reset();
    const auto count = static_cast<int32_t>(ids.size());
    const auto num_aux = static_cast<int64_t>(draft_->aux_layers().size());
    aux_ = arena_.f32({count, num_aux * target_->config().hidden_size});
    model::Step s = step(0, count, kv_->target());
    s.tap_sink = sink;
    return target_->forward(s, ids, draft_->aux_layers(), aux_);
  }

  ThreadPool pool_{2};
  Arena arena_;
  ops::Ctx ctx_{&ops::cpu_ops(), &pool_, &arena_};
  std::optional<checkpoint::SafetensorsFile> target_golden_, draft_golden_;
  std::optional<checkpoint::Checkpoint> target_files_, draft_files_;
  std::optional<model::KimiK25> target_;
  std::optional<model::Eagle3> draft_;
  std::optional<KvStorage> kv_;
  std::vector<int32_t> block_table_, positions_;
  std::vector<ops::SequenceRows> sequences_;
  Tensor aux_;
};

TEST_F(GoldenTest, StatesAfterEveryLayer) {
  double worst = 0;
  int num_compared = 0;
  const model::TapSink sink = [&](std::string_view name, int64_t layer, const Tensor& tensor) {
    std::string key;
    if (name == "layer_output") key = fmt::format("prompt0.layer{}", layer);
    if (name == "final_norm") key = "prompt0.final_norm";
    if (key.empty()) return;
    const Tensor expected = golden(key);
    ASSERT_EQ(tensor.dim(0), expected.dim(0)) << key;
    for (int64_t t = 0; t < tensor.dim(0); ++t) {
      const double error = relative_error(tensor, t, expected, t);
      worst = std::max(worst, error);
      EXPECT_LT(error, kTolerance) << key << " at position " << t;
    }
    ++num_compared;
  };
  const std::vector<int32_t> ids = ids_of(golden("prompt0.tokens"));
  const Tensor hidden = run_target(ids, &sink);
  model::Step s = step(0, static_cast<int32_t>(ids.size()), kv_->target());
  s.tap_sink = &sink;
  const std::vector<int32_t> rows = positions_;
  target_->logits(s, hidden, rows, arena_.f32({hidden.dim(0), target_->config().vocab_size}));
  EXPECT_EQ(num_compared, target_->config().num_hidden_layers + 1);
  RecordProperty("worst_relative_error", std::to_string(worst));
}

TEST_F(GoldenTest, Logits) {
  double worst = 0;
  int num_prompts = 0;
  for (; has(fmt::format("prompt{}.tokens", num_prompts)); ++num_prompts) {
    const std::string prompt = fmt::format("prompt{}.", num_prompts);
    const std::vector<int32_t> ids = ids_of(golden(prompt + "tokens"));
    const std::vector<int32_t> rows = ids_of(golden(prompt + "positions"));
    const Tensor hidden = run_target(ids);
    const auto count = static_cast<int64_t>(rows.size());
    const Tensor logits = arena_.f32({count, target_->config().vocab_size});
    target_->logits(step(0, static_cast<int32_t>(ids.size()), kv_->target()), hidden, rows, logits);
    for (int64_t i = 0; i < count; ++i) {
      const double error = relative_error(logits, i, golden(prompt + "logits"), i);
      worst = std::max(worst, error);
      EXPECT_LT(error, kTolerance) << prompt << " position " << rows[static_cast<size_t>(i)];
    }
  }
  EXPECT_EQ(num_prompts, 3);
  RecordProperty("worst_relative_error", std::to_string(worst));
}

TEST_F(GoldenTest, DraftLogitsTeacherForced) {
  double worst = 0;
  int num_prompts = 0;
  for (; draft_golden_->tensors().contains(fmt::format("prompt{}.tokens", num_prompts));
       ++num_prompts) {
    const std::string prompt = fmt::format("prompt{}.", num_prompts);
    const std::vector<int32_t> ids = ids_of(draft_golden(prompt + "tokens"));
    const std::vector<int32_t> rows = ids_of(draft_golden(prompt + "positions"));
    (void)run_target(ids);
    const auto num_entries = static_cast<int32_t>(ids.size()) - 1;
    const model::Step s = step(0, num_entries, kv_->draft());
    const Tensor y =
        draft_->forward(s, std::span(ids).subspan(1), draft_->fuse(s, aux_.rows(0, num_entries)));
    const Tensor logits = draft_->guess(s, y).logits;
    for (size_t i = 0; i < rows.size(); ++i) {
      const double error =
          relative_error(logits, rows[i], draft_golden(prompt + "logits"), static_cast<int64_t>(i));
      worst = std::max(worst, error);
      EXPECT_LT(error, kTolerance) << prompt << " position " << rows[i];
    }
  }
  EXPECT_GT(num_prompts, 0);
  RecordProperty("worst_relative_error", std::to_string(worst));
}

// Prompts with their expected greedy tokens.
struct Greedy {
  std::vector<Request> requests;
  std::vector<std::vector<TokenId>> tokens;
};

Greedy read_greedy(const checkpoint::SafetensorsFile& file) {
  Greedy greedy;
  for (int g = 0; file.tensors().contains(fmt::format("greedy{}.prompt", g)); ++g) {
    greedy.tokens.push_back(ids_of(file.tensors().at(fmt::format("greedy{}.tokens", g))));
    Request request;
    request.prompt = ids_of(file.tensors().at(fmt::format("greedy{}.prompt", g)));
    request.params.temperature = 0;
    request.params.max_tokens = static_cast<int32_t>(greedy.tokens.back().size());
    request.params.ignore_eos = true;
    greedy.requests.push_back(request);
  }
  return greedy;
}

sched::SchedulerConfig scheduler_config(int32_t num_drafts) {
  sched::SchedulerConfig config;
  config.max_num_seqs = 32;
  config.max_num_batched_tokens = 512;
  config.block_size = kBlockSize;
  config.num_blocks = 1024;
  config.num_speculative_tokens = num_drafts;
  return config;
}

TEST_F(GoldenTest, GreedyTokensWithAndWithoutDrafts) {
  const Greedy greedy = read_greedy(*target_golden_);
  ASSERT_EQ(greedy.requests.size(), 20u);
  for (const bool with_draft : {false, true}) {
    RunnerConfig config;
    config.model = kTarget;
    if (with_draft) config.draft = kDraft;
    Runner runner(config);
    runner.allocate_kv(1024, kBlockSize);
    ServingLoop loop(runner, scheduler_config(with_draft ? kNumDrafts : 0));
    const auto answers = loop.serve(greedy.requests);
    for (size_t g = 0; g < answers.size(); ++g) {
      EXPECT_EQ(greedy.tokens[g].size(), 64u);
      EXPECT_EQ(answers[g].tokens, greedy.tokens[g]) << "prompt " << g << ", draft " << with_draft;
    }
    if (with_draft) RecordProperty("acceptance_length", std::to_string(loop.acceptance_length()));
  }
}

// A prompt, the target's next token, six drafts: through the runner as it is served.
TEST_F(GoldenTest, DraftChains) {
  RunnerConfig config;
  config.model = kTarget;
  config.draft = kDraft;
  Runner runner(config);
  runner.allocate_kv(kNumBlocks, kBlockSize);
  int num_chains = 0;
  for (; draft_golden_->tensors().contains(fmt::format("chain{}.prompt", num_chains));
       ++num_chains) {
    const std::string chain = fmt::format("chain{}.", num_chains);
    sched::StepRow row;
    row.tokens = ids_of(draft_golden(chain + "prompt"));
    row.num_tokens = static_cast<int32_t>(row.tokens.size());
    row.seq_id = num_chains;
    row.samples = true;
    row.num_drafts_to_propose = kNumDrafts;
    row.block_table = block_table_;
    SamplingParams params;
    params.temperature = 0;
    runner.add_sequence(row.seq_id, row.tokens, params);
    sched::StepPlan plan;
    plan.num_tokens = row.num_tokens;
    plan.rows.push_back(row);
    const StepOutput& output = runner.execute(plan);
    EXPECT_EQ(output.rows[0].sampled, ids_of(draft_golden(chain + "next"))) << chain;
    EXPECT_EQ(output.rows[0].proposed, ids_of(draft_golden(chain + "tokens"))) << chain;
    runner.remove_sequence(row.seq_id);
  }
  EXPECT_GT(num_chains, 0);
}

}  // namespace
}  // namespace eyrie::runtime
