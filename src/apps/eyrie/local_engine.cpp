#include "apps/eyrie/local_engine.h"

#include <utility>

#include "apps/eyrie/engine_setup.h"
#include "base/error.h"
#include "base/human.h"

namespace eyrie::apps {

using engine::FinishReason;

struct LocalEngine::Choices {
  std::shared_ptr<engine::OutputStream> stream;
  std::vector<bool> started;
};

// Hands everything on. Engine thread, as are the turns that read the times.
class LocalEngine::MeasuredRunner final : public runtime::ModelRunner {
 public:
  explicit MeasuredRunner(std::unique_ptr<runtime::Runner> runner) : runner_(std::move(runner)) {}

  void add_sequence(sched::SequenceId seq_id, std::span<const TokenId> prompt,
                    const runtime::SamplingParams& params) override {
    runner_->add_sequence(seq_id, prompt, params);
  }
  void remove_sequence(sched::SequenceId seq_id) override { runner_->remove_sequence(seq_id); }
  const runtime::StepOutput& execute(const sched::StepPlan& plan) override {
    return measured(runner_->execute(plan));
  }
  bool runs_ahead() const override { return runner_->runs_ahead(); }
  void launch(const sched::StepPlan& plan) override { runner_->launch(plan); }
  const runtime::StepOutput& finish() override { return measured(runner_->finish()); }

  double target_seconds() const { return target_seconds_; }
  double draft_seconds() const { return draft_seconds_; }

 private:
  const runtime::StepOutput& measured(const runtime::StepOutput& output) {
    target_seconds_ = output.times.forward_seconds + output.times.head_seconds;
    draft_seconds_ = output.times.total_seconds() - target_seconds_;
    return output;
  }

  std::unique_ptr<runtime::Runner> runner_;
  double target_seconds_ = 0, draft_seconds_ = 0;
};

namespace {

std::string load_summary(const ServeConfig& config, const runtime::Runner& runner,
                         const KvPlan& plan) {
  const runtime::LoadReport& load = runner.load_report();
  const auto bytes = static_cast<double>(load.target_bytes + load.draft_bytes);
  return fmt::format(
      "on {}: weights {} in {}{}, KV cache {} tokens in {}",
      runner.gpu() != nullptr ? std::string_view(runner.gpu()->info().name) : ops::cpu_isa(),
      human_bytes(bytes), human_seconds(load.target_seconds + load.draft_seconds),
      config.runner.load_dummy ? " (made up)" : "", plan.num_tokens(),
      runtime::kv_dtype_name(runner.kv_layout().target_dtype));
}

// Cache bytes of one position, of the target's layers and of the draft's keys and values.
void add_cache(const runtime::KvLayout& layout, advise::ModelTraffic& traffic) {
  traffic.kv_bytes_per_position = static_cast<double>(layout.num_target_layers) *
                                  static_cast<double>(layout.target_width) *
                                  static_cast<double>(dtype_bytes(layout.target_dtype));
  traffic.draft_kv_bytes_per_position = 2.0 * static_cast<double>(layout.draft_width) *
                                        static_cast<double>(dtype_bytes(layout.draft_dtype));
}

}  // namespace

// A sequence's step brings its own token and those accepted.
double LocalRun::draft_length() const {
  const auto num_steps = static_cast<double>(num_output_tokens - num_accepted_tokens);
  return num_steps > 0 ? static_cast<double>(num_draft_tokens) / num_steps : 0.0;
}

LocalEngine::LocalEngine(const ServeConfig& config, Tokenizer tokenizer, int32_t max_sequences)
    : tokenizer_(std::move(tokenizer)) {
  auto runner = std::make_unique<runtime::Runner>(config.runner);
  const KvPlan plan = plan_cache(config, *runner);
  runner->allocate_kv(plan.num_blocks, static_cast<int32_t>(plan.block_size));
  model_config_ = runner->model_config();
  traffic_ = advise::traffic_of(runner->target(), runner->draft());
  add_cache(runner->kv_layout(), traffic_);
  max_model_len_ = static_cast<int32_t>(plan.max_model_len);
  summary_ = load_summary(config, *runner, plan);

  engine::EngineConfig options = engine_config(config, plan);
  options.max_sequences = std::max(max_sequences, options.max_sequences);
  options.log_interval = {};
  if (config.speculative && config.speculative->adaptive) {
    options.draft_sizer = size_drafts(*config.speculative, config.max_num_seqs, *runner);
  }
  auto measured = std::make_unique<MeasuredRunner>(std::move(runner));
  runner_ = measured.get();
  engine_ = std::make_unique<engine::Engine>(options, std::move(measured), tokenizer_);
  engine_->set_turn_handler([this] { on_turn(); });
  engine_->set_death_handler([this](const std::string& what) {
    const std::lock_guard lock(mutex_);
    failure_ = what;
    done_.notify_one();
  });
  engine_->start();
}

LocalEngine::~LocalEngine() = default;

LocalRun LocalEngine::run(std::span<const LocalJob> jobs, const runtime::SamplingParams& params) {
  const engine::EngineStats before = engine_->stats();
  {
    const std::lock_guard lock(mutex_);
    current_ = {};
    current_.turns.reserve(4096);
    choices_.clear();
    num_started_ = num_finished_ = 0;
    failure_.clear();
    started_at_ = engine::Clock::now();
    for (const LocalJob& job : jobs) {
      current_.num_sequences += job.n;
      current_.num_prompt_tokens += static_cast<int64_t>(job.prompt.size());
      choices_.push_back({std::make_shared<engine::OutputStream>([] {}),
                          std::vector<bool>(static_cast<size_t>(job.n))});
    }
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    engine::GenerateRequest request;
    request.prompt = jobs[i].prompt;
    request.params = params;
    request.params.max_tokens = jobs[i].max_tokens;
    request.n = jobs[i].n;
    const auto id = engine_->submit(std::move(request), choices_[i].stream);
    if (!id.ok()) fail("prompt {}: {}", i, id.failure().message);
  }
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return !failure_.empty() || num_finished_ == current_.num_sequences; });
  if (!failure_.empty()) fail("{}", failure_);
  const engine::EngineStats after = engine_->stats();
  current_.num_draft_tokens = after.num_draft_tokens - before.num_draft_tokens;
  current_.num_accepted_tokens = after.num_accepted_tokens - before.num_accepted_tokens;
  return std::move(current_);
}

// Engine thread, after each turn: everything the turn brought is in the streams.
void LocalEngine::on_turn() {
  const std::lock_guard lock(mutex_);
  if (num_finished_ == current_.num_sequences) return;  // between runs
  const double now = std::chrono::duration<double>(engine::Clock::now() - started_at_).count();
  // The last step that ended is the one whose tokens are published now, also while the next is
  // under way.
  EngineTurn turn{.end = now,
                  .target_seconds = runner_->target_seconds(),
                  .draft_seconds = runner_->draft_seconds()};
  for (Choices& choices : choices_) {
    for (const engine::OutputChunk& chunk : choices.stream->take()) {
      turn.num_tokens += static_cast<int32_t>(chunk.pieces.size());
      const auto choice = static_cast<size_t>(chunk.choice_idx);
      if (!chunk.pieces.empty() && !choices.started[choice]) {
        choices.started[choice] = true;
        ++num_started_;
      }
      if (chunk.finish == FinishReason::kError) failure_ = chunk.failure.message;
      if (chunk.finish != FinishReason::kNone) ++num_finished_;
    }
  }
  turn.num_started = num_started_;
  turn.num_finished = num_finished_;
  current_.turns.push_back(turn);
  current_.num_output_tokens += turn.num_tokens;
  current_.seconds = now;
  if (num_finished_ == current_.num_sequences || !failure_.empty()) done_.notify_one();
}

}  // namespace eyrie::apps
