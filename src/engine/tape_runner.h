// For tests of engine and server: a runner without a model. Each sequence plays a tape, a function
// from (prompt, parameters, index of the output token) to a token, in as many tokens a step as its
// scripted drafts allow. It checks that plans ask for what they should.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/model_runner.h"
#include "tokenizer/tokenizer.h"

namespace eyrie::engine {

// 256 byte tokens (ids 0..255) and Kimi's control slots behind them: text on a tape is its bytes.
Tokenizer make_byte_tokenizer();

class TapeRunner final : public runtime::ModelRunner {
 public:
  using Tape = std::function<TokenId(std::span<const TokenId> prompt,
                                     const runtime::SamplingParams& params, int64_t output_idx)>;
  // How many of the drafts proposed after output token `output_idx` are right.
  using Drafts = std::function<int64_t(int64_t output_idx)>;

  explicit TapeRunner(
      Tape tape, Drafts drafts = [](int64_t) { return 0; })
      : tape_(std::move(tape)), drafts_(std::move(drafts)) {}

  void add_sequence(sched::SequenceId seq_id, std::span<const TokenId> prompt,
                    const runtime::SamplingParams& params) override;
  void remove_sequence(sched::SequenceId seq_id) override;
  const runtime::StepOutput& execute(const sched::StepPlan& plan) override;
  // As a device does: the plan is taken at launch() and played at finish().
  bool runs_ahead() const override { return ahead; }
  void launch(const sched::StepPlan& plan) override { launched_ = &plan; }
  const runtime::StepOutput& finish() override { return execute(*launched_); }

  bool ahead = false;  // before the engine starts

  // Called at the start of every step: a place to wait or throw.
  std::function<void()> before_step;
  std::atomic<int> num_sequences{0};

  // The logprob this runner reports for an output token; tests compare with it.
  static float logprob_of(TokenId token) { return -0.25F - 0.001F * static_cast<float>(token); }

 private:
  struct Sequence {
    std::vector<TokenId> prompt;
    runtime::SamplingParams params;
  };
  runtime::Logprobs logprobs(TokenId token, int32_t num_top) const;

  Tape tape_;
  Drafts drafts_;
  std::unordered_map<sched::SequenceId, Sequence> sequences_;
  runtime::StepOutput output_;
  const sched::StepPlan* launched_ = nullptr;
};

// A tape that says `text` (control tokens by their spelling), then <|im_end|> for ever.
TapeRunner::Tape say(const Tokenizer& tokenizer, const std::string& text);

}  // namespace eyrie::engine
