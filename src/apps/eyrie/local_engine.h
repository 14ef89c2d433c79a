// The engine in this process with no server in front: loads what `serve` would, runs a set of
// prompts to their end and notes every turn of the engine's loop. For `bench latency` and `bench
// throughput`. One thread calls run(), one run at a time; times are seconds.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "advise/step_traffic.h"
#include "apps/eyrie/serve_config.h"
#include "engine/engine.h"
#include "tokenizer/tokenizer.h"

namespace eyrie::apps {

// A turn of the engine's loop as seen from outside: what its step brought.
struct EngineTurn {
  double end = 0;            // since the run began
  int32_t num_tokens = 0;    // that became certain
  int32_t num_started = 0;   // sequences that have had a token, this turn included
  int32_t num_finished = 0;  // likewise, that have had their last
  // Of the step: the target's forward, logits and sampling, and the draft's passes, as its runner
  // timed them. What is missing to a turn is outside the runner.
  double target_seconds = 0;
  double draft_seconds = 0;
};

struct LocalJob {
  std::vector<TokenId> prompt;
  int32_t max_tokens = 1;
  int32_t n = 1;  // answers wanted
};

struct LocalRun {
  double seconds = 0;  // from the first submission to the last token
  int64_t num_prompt_tokens = 0;
  int64_t num_output_tokens = 0;
  int32_t num_sequences = 0;
  std::vector<EngineTurn> turns;
  int64_t num_draft_tokens = 0, num_accepted_tokens = 0;

  // Drafts a sequence verified in a step, on average.
  double draft_length() const;
};

class LocalEngine {
 public:
  // Loads and starts. max_sequences: most that will be submitted at once.
  LocalEngine(const ServeConfig& config, Tokenizer tokenizer, int32_t max_sequences);
  ~LocalEngine();
  LocalEngine(const LocalEngine&) = delete;
  LocalEngine& operator=(const LocalEngine&) = delete;

  // Error when a job does not fit or fails. params' max_tokens is the job's; end-of-sequence tokens
  // are ignored where it says so.
  LocalRun run(std::span<const LocalJob> jobs, const runtime::SamplingParams& params);

  const Tokenizer& tokenizer() const { return tokenizer_; }
  const model::ModelConfig& model_config() const { return model_config_; }
  const advise::ModelTraffic& traffic() const { return traffic_; }
  int32_t max_model_len() const { return max_model_len_; }
  // "on NVIDIA H200: weights 1.14 GiB in 2.0 s (made up), KV cache 24576 tokens in bfloat16".
  const std::string& summary() const { return summary_; }

 private:
  struct Choices;        // of one job
  class MeasuredRunner;  // keeps the last step's times
  void on_turn();

  const Tokenizer tokenizer_;
  model::ModelConfig model_config_;
  advise::ModelTraffic traffic_;
  int32_t max_model_len_ = 0;
  std::string summary_;
  MeasuredRunner* runner_ = nullptr;  // the engine's
  std::unique_ptr<engine::Engine> engine_;

  // Of the run in hand: filled by run(), followed by the engine thread.
  std::mutex mutex_;
  std::condition_variable done_;
  engine::Clock::time_point started_at_;
  std::vector<Choices> choices_;
  LocalRun current_;
  int32_t num_started_ = 0, num_finished_ = 0;
  std::string failure_;
};

}  // namespace eyrie::apps
