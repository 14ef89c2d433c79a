#include "engine/engine.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "engine/live.h"

namespace eyrie::engine {
namespace {

sched::SchedulerConfig scheduler_config(const EngineConfig& config) {
  sched::SchedulerConfig scheduler = config.scheduler;
  scheduler.max_waiting = config.max_sequences;
  return scheduler;
}

Failure unavailable(const char* why) { return {FailureKind::kUnavailable, why, ""}; }

}  // namespace

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
    case FinishReason::kRepetition:
      return "repetition";
  }
  return "";
}

Engine::Engine(const EngineConfig& config, std::unique_ptr<runtime::ModelRunner> runner,
               const Tokenizer& tokenizer)
    : config_(config),
      runner_(std::move(runner)),
      tokenizer_(tokenizer),
      scheduler_(scheduler_config(config)),
      logged_(config.scheduler.max_model_len, config.scheduler.num_speculative_tokens),
      stats_(config.scheduler.max_model_len, config.scheduler.num_speculative_tokens) {
  CHECK(runner_ != nullptr);
  stats_.synthetic_acceptance = config.synthetic_acceptance;
  if (config.draft_sizer.has_value()) {
    CHECK_EQ(config.draft_sizer->num_speculative_tokens, config.scheduler.num_speculative_tokens);
    draft_sizer_.emplace(*config.draft_sizer);
    scheduler_.set_draft_policy(&*draft_sizer_);
  }
}

Engine::~Engine() {
  {
    std::lock_guard lock(inbox_mutex_);
    stopping_ = draining_ = abort_all_ = true;
  }
  inbox_ready_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Engine::set_death_handler(std::function<void(const std::string&)> handler) {
  death_handler_ = std::move(handler);
}

void Engine::set_turn_handler(std::function<void()> handler) {
  CHECK(!thread_.joinable(), "the engine runs");
  turn_handler_ = std::move(handler);
}

void Engine::start() {
  CHECK(!thread_.joinable(), "started twice");
  beat();
  thread_ = std::thread([this] { thread_main(); });
}

Result<RequestId> Engine::submit(GenerateRequest request, std::shared_ptr<OutputStream> stream) {
  CHECK(!request.prompt.empty() && request.n >= 1 && request.params.max_tokens >= 1);
  const auto num_prompt = static_cast<int64_t>(request.prompt.size());
  if (!scheduler_.fits(num_prompt, request.params.max_tokens)) {
    return Failure{
        FailureKind::kInvalidArgument,
        fmt::format("{} prompt tokens and {} tokens of output do not fit: the context is "
                    "{} tokens and the KV cache holds {}",
                    num_prompt, request.params.max_tokens, config_.scheduler.max_model_len,
                    int64_t{config_.scheduler.num_blocks} * config_.scheduler.block_size),
        "max_tokens"};
  }
  RequestId id = 0;
  {
    std::lock_guard lock(inbox_mutex_);
    if (dead_.load()) return unavailable("the engine has stopped after an internal error");
    if (draining_) return unavailable("the server is shutting down");
    if (num_live_.load() + request.n > config_.max_sequences) {
      return Failure{FailureKind::kOverloaded,
                     fmt::format("{} sequences are being served or waiting, which is the most this "
                                 "server takes; try again later",
                                 num_live_.load()),
                     ""};
    }
    id = next_request_id_++;
    num_live_ += request.n;
    inbox_.push_back({id, std::move(request), std::move(stream)});
  }
  inbox_ready_.notify_one();
  return id;
}

void Engine::abort(RequestId id) {
  {
    std::lock_guard lock(inbox_mutex_);
    if (dead_.load()) return;
    inbox_aborts_.push_back(id);
  }
  inbox_ready_.notify_one();
}

void Engine::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(inbox_mutex_);
  draining_ = true;
  const auto is_idle = [&] { return num_live_.load() == 0; };
  if (idle_.wait_for(lock, timeout, is_idle)) return;
  abort_all_ = true;
  inbox_ready_.notify_one();
  // The step in flight must end before its sequences can be dropped.
  idle_.wait_for(lock, config_.health_deadline, is_idle);
}

bool Engine::healthy() const {
  const Clock::time_point beat{Clock::duration(last_beat_.load())};
  return !dead_.load() && Clock::now() - beat < config_.health_deadline;
}

EngineStats Engine::stats() const {
  std::lock_guard lock(stats_mutex_);
  return stats_;
}

}  // namespace eyrie::engine
