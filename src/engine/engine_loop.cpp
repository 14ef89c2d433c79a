// The engine thread: the step loop and what it calls.
#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/live.h"

namespace eyrie::engine {
namespace {

constexpr std::chrono::milliseconds kIdleTick{500};

}  // namespace

void Engine::thread_main() {
  try {
    loop();
  } catch (const std::exception& error) {
    log::error("the engine thread died: {}", error.what());
    fail_everything(error.what());
    if (turn_handler_) turn_handler_();
    if (death_handler_) death_handler_(error.what());
  }
}

void Engine::loop() {
  logged_at_ = Clock::now();
  while (wait_for_inbox()) {
    if (!aborted_.empty()) publish_pending();
    for (const RequestId id : aborted_) take_abort(id);
    for (Submission& submission : arrived_) take_submission(std::move(submission));
    // A request may be aborted in the turn it arrived in.
    for (const RequestId id : aborted_) take_abort(id);
    const sched::StepPlan& plan = scheduler_.schedule();
    if (plan.empty()) {
      publish_pending();
    } else {
      step(plan);
    }
    if (pending_.empty()) end_turn();
    beat();
    log_stats(Clock::now());
  }
}

void Engine::end_turn() {
  refresh_gauges();
  if (turn_handler_) turn_handler_();
}

// Moves the inbox to arrived_ and aborted_; sleeps only when there is nothing to run. False: stop.
bool Engine::wait_for_inbox() {
  arrived_.clear();
  aborted_.clear();
  std::unique_lock lock(inbox_mutex_);
  if (!scheduler_.has_work()) {
    executed_at_ = {};
    inbox_ready_.wait_for(lock, kIdleTick, [&] {
      return stopping_ || abort_all_ || !inbox_.empty() || !inbox_aborts_.empty();
    });
  }
  std::swap(arrived_, inbox_);
  std::swap(aborted_, inbox_aborts_);
  if (abort_all_) {
    abort_all_ = false;
    for (const auto& [id, request] : requests_) aborted_.push_back(id);
    for (const Submission& submission : arrived_) aborted_.push_back(submission.id);
  }
  return !stopping_ || !requests_.empty() || !arrived_.empty();
}

void Engine::take_submission(Submission submission) {
  GenerateRequest& request = submission.request;
  auto live = std::make_unique<LiveRequest>();
  live->id = submission.id;
  live->stream = std::move(submission.stream);
  if (request.params.eos_token_ids.empty()) request.params.eos_token_ids = tokenizer_.eos_ids();
  if (!request.has_seed) request.params.seed = runtime::derived_seed(config_.seed, submission.id);
  LiveRequest* const owner = live.get();
  requests_.emplace(submission.id, std::move(live));
  {
    std::lock_guard lock(stats_mutex_);
    stats_.request_n.observe(request.n);
  }
  for (int32_t i = 0; i < request.n; ++i) {
    const sched::SequenceId seq_id = next_seq_id_++;
    runtime::SamplingParams params = request.params;
    params.seed = runtime::choice_seed(request.params.seed, i);
    auto sequence = std::make_unique<LiveSequence>(LiveSequence{
        .request = owner,
        .choice_idx = request.first_choice_idx + i,
        .text = TextStream(tokenizer_, request.text, request.prompt),
        .include_stop = request.text.include_stop,
        .wants_logprobs = params.logprobs.has_value(),
        .min_tokens = params.min_tokens,
        .max_tokens = params.max_tokens,
        .num_prompt_tokens = static_cast<int32_t>(request.prompt.size()),
        .num_tokens = 0,
        .logprobs = {},
        .prompt_logprobs = {},
        .arrival = request.arrival,
        .scheduled = {},
        .first_token = {},
        .last_token = {},
        .was_scheduled = false,
    });
    owner->live.push_back(seq_id);
    const int32_t choice_idx = sequence->choice_idx;
    sequences_.emplace(seq_id, std::move(sequence));
    runner_->add_sequence(seq_id, request.prompt, params);
    const bool added = scheduler_.add({
        .seq_id = seq_id,
        .prompt = request.prompt,
        .max_tokens = params.max_tokens,
        .min_tokens = params.min_tokens,
        .ignore_eos = params.ignore_eos,
        .eos_token_ids = params.eos_token_ids,
        .stop_token_ids = params.stop_token_ids,
        .priority = request.priority,
        .repetition = params.repetition,
        .cache_salt = request.cache_salt,
        .skip_prefix_cache = params.prompt_logprobs.has_value(),
    });
    if (!added) {
      OutputChunk chunk;
      chunk.choice_idx = choice_idx;
      chunk.finish = FinishReason::kError;
      chunk.failure = {FailureKind::kOverloaded, "the waiting queue is full; try again later", ""};
      end_sequence(seq_id, std::move(chunk));
    }
  }
}

void Engine::take_abort(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  const std::vector<sched::SequenceId> live = it->second->live;  // end_sequence edits the original
  for (const sched::SequenceId seq_id : live) {
    scheduler_.abort(seq_id);
    OutputChunk chunk;
    chunk.choice_idx = sequences_.at(seq_id)->choice_idx;
    chunk.finish = FinishReason::kAbort;
    end_sequence(seq_id, std::move(chunk));
  }
}

void Engine::step(const sched::StepPlan& plan) {
  const Clock::time_point start = Clock::now();
  note_rows(plan, start);
  runner_->launch(plan);
  if (runner_->runs_ahead() && !pending_.empty()) {
    in_flight_ = true;
    publish_pending();
    end_turn();
    in_flight_ = false;
  }
  const runtime::StepOutput& output = runner_->finish();
  if (draft_sizer_.has_value()) note_times(plan, output);
  CHECK_EQ(output.rows.size(), plan.rows.size());
  CHECK_EQ(output.extras.size(), plan.rows.size());
  take_extras(plan, output);
  keep_events(plan, output);
  for (const sched::SequenceId seq_id : removed_in_flight_) runner_->remove_sequence(seq_id);
  removed_in_flight_.clear();
  if (!runner_->runs_ahead() || !scheduler_.has_work()) publish_pending();
}

void Engine::keep_events(const sched::StepPlan& plan, const runtime::StepOutput& output) {
  const auto& events = scheduler_.update(plan, output.rows);
  const Clock::time_point now = Clock::now();
  size_t row_idx = 0;
  for (const sched::SequenceEvent& event : events) {
    while (plan.rows[row_idx].seq_id != event.seq_id) ++row_idx;
    pending_.push_back({event, output.extras[row_idx], now});
  }
}

void Engine::publish_pending() {
  for (PendingEvent& pending : pending_) {
    // It may have been aborted since, or have ended while its step was under way.
    if (sequences_.contains(pending.event.seq_id)) {
      publish_event(pending.event, pending.extras, pending.at);
    }
  }
  pending_.clear();
}

// What the runner measured, and all the rest of the time since its last step.
void Engine::note_times(const sched::StepPlan& plan, const runtime::StepOutput& output) {
  step_times_ = output.times;
  const Clock::time_point now = Clock::now();
  if (executed_at_ != Clock::time_point{}) {
    step_times_.other_seconds =
        std::max(0.0, seconds_between(executed_at_, now) - step_times_.total_seconds());
  }
  executed_at_ = now;
  int64_t num_tokens = 0;
  bool only_decoding = true;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const sched::StepRow& row = plan.rows[i];
    num_tokens += static_cast<int64_t>(output.rows[i].sampled.size());
    only_decoding &= row.samples && row.num_tokens == 1 + row.num_draft_tokens;
  }
  draft_sizer_->note_step(step_times_, static_cast<int32_t>(num_tokens), only_decoding);
}

void Engine::note_rows(const sched::StepPlan& plan, Clock::time_point now) {
  std::lock_guard lock(stats_mutex_);
  ++stats_.num_steps;
  stats_.iteration_tokens.observe(plan.num_tokens);
  for (const sched::StepRow& row : plan.rows) {
    LiveSequence& sequence = *sequences_.at(row.seq_id);
    if (row.samples) ++stats_.draft_lengths[static_cast<size_t>(row.num_drafts_to_propose)];
    if (sequence.was_scheduled) continue;
    sequence.was_scheduled = true;
    sequence.scheduled = now;
    stats_.queue_time.observe(seconds_between(sequence.arrival, now));
  }
}

// Numeric faults end their sequence before update(); logprobs of prompt positions are collected.
void Engine::take_extras(const sched::StepPlan& plan, const runtime::StepOutput& output) {
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const sched::StepRow& row = plan.rows[i];
    const runtime::RowExtras& extras = output.extras[i];
    const auto found = sequences_.find(row.seq_id);
    if (found == sequences_.end()) continue;  // ended while this step was under way
    LiveSequence& sequence = *found->second;
    auto& prompt = sequence.prompt_logprobs;
    for (size_t j = 0; j < extras.prompt_logprobs.size(); ++j) {
      // A preempted prompt is computed again: keep what is new.
      if (static_cast<size_t>(row.first_position) + j == prompt.size() &&
          sequence.num_tokens == 0) {
        prompt.push_back(extras.prompt_logprobs[j]);
      }
    }
    if (!extras.numeric_fault) continue;
    log::error("request {}: the model's logits hold NaN or infinity at position {}",
               sequence.request->id, row.first_position);
    scheduler_.fault(row.seq_id);
    OutputChunk chunk;
    chunk.choice_idx = sequence.choice_idx;
    chunk.finish = FinishReason::kError;
    chunk.failure = {FailureKind::kInternal,
                     "numeric fault: the model computed NaN or infinity for this request", ""};
    end_sequence(row.seq_id, std::move(chunk));
  }
}

void Engine::publish_event(const sched::SequenceEvent& event, const runtime::RowExtras& extras,
                           Clock::time_point now) {
  LiveSequence& sequence = *sequences_.at(event.seq_id);
  OutputChunk chunk;
  chunk.choice_idx = sequence.choice_idx;
  chunk.num_cached_tokens = event.num_cached_tokens;
  if (event.is_first) chunk.prompt_logprobs = std::move(sequence.prompt_logprobs);

  const bool stopped_by_token = event.finish == sched::FinishReason::kStop;
  const size_t num_new = event.new_tokens.size();
  // The text of the token that ends the sequence is not part of the answer.
  const size_t num_text = stopped_by_token && !sequence.include_stop ? num_new - 1 : num_new;
  size_t num_reported = num_new;
  bool found_stop = false;
  for (size_t i = 0; i < num_text && !found_stop; ++i) {
    const bool check_stop = sequence.num_tokens + static_cast<int32_t>(i) + 1 > sequence.min_tokens;
    found_stop = sequence.text.push(event.new_tokens[i], chunk.pieces, check_stop);
    if (found_stop) num_reported = i + 1;
  }
  if (found_stop) {
    chunk.finish = FinishReason::kStop;
    chunk.stop_string = *sequence.text.matched_stop();
    scheduler_.finish(event.seq_id);
  } else if (event.finish != sched::FinishReason::kNone) {
    sequence.text.finish(chunk.pieces);
    if (num_text < num_new) chunk.pieces.push_back({event.new_tokens.back(), "", true});
    chunk.finish = stopped_by_token                                   ? FinishReason::kStop
                   : event.finish == sched::FinishReason::kRepetition ? FinishReason::kRepetition
                                                                      : FinishReason::kLength;
    if (stopped_by_token && !event.stopped_by_eos) chunk.stop_token = event.stop_token;
  }

  if (sequence.wants_logprobs) {
    CHECK_GE(extras.logprobs.size(), num_reported);
    auto& held = sequence.logprobs;
    held.insert(held.end(), extras.logprobs.begin(),
                extras.logprobs.begin() + static_cast<int64_t>(num_reported));
    CHECK_GE(held.size(), chunk.pieces.size());
    const auto end = held.begin() + static_cast<int64_t>(chunk.pieces.size());
    chunk.logprobs.assign(std::make_move_iterator(held.begin()), std::make_move_iterator(end));
    held.erase(held.begin(), end);
  }

  {
    std::lock_guard lock(stats_mutex_);
    stats_.generation_tokens += static_cast<int64_t>(num_reported);
    if (sequence.num_tokens == 0) {
      sequence.first_token = now;
      stats_.prompt_tokens += event.num_prompt_tokens;
      stats_.prompt_tokens_cached += event.num_cached_tokens;
      stats_.request_prefill_tokens.observe(event.num_prompt_tokens - event.num_cached_tokens);
      stats_.time_to_first_token.observe(seconds_between(sequence.arrival, now));
      stats_.prefill_time.observe(seconds_between(sequence.scheduled, now));
    } else {
      stats_.inter_token_latency.observe(seconds_between(sequence.last_token, now));
    }
    if (event.num_draft_tokens > 0) {
      ++stats_.num_drafts;
      stats_.num_draft_tokens += event.num_draft_tokens;
      stats_.num_accepted_tokens += event.num_accepted_tokens;
      for (int32_t i = 0; i < event.num_accepted_tokens; ++i) {
        ++stats_.accepted_per_position[static_cast<size_t>(i)];
      }
    }
  }
  sequence.num_tokens += static_cast<int32_t>(num_reported);
  sequence.last_token = now;

  if (chunk.finish != FinishReason::kNone) {
    end_sequence(event.seq_id, std::move(chunk));
  } else if (!chunk.pieces.empty() && !sequence.request->stream->publish(std::move(chunk))) {
    abort(sequence.request->id);  // nobody reads it
  }
}

// Forgets a sequence the scheduler no longer has and publishes its last chunk.
void Engine::end_sequence(sched::SequenceId seq_id, OutputChunk&& last) {
  const auto it = sequences_.find(seq_id);
  CHECK(it != sequences_.end());
  const std::unique_ptr<LiveSequence> sequence = std::move(it->second);
  sequences_.erase(it);
  if (in_flight_) {
    removed_in_flight_.push_back(seq_id);
  } else {
    runner_->remove_sequence(seq_id);
  }
  note_finished(*sequence, last.finish, Clock::now());
  refresh_gauges();  // whoever reads the answer's end may look at them next
  LiveRequest& request = *sequence->request;
  request.stream->publish(std::move(last));
  std::erase(request.live, seq_id);
  if (request.live.empty()) requests_.erase(request.id);
  if (--num_live_ == 0) {
    std::lock_guard lock(inbox_mutex_);  // a drain() between its check and its wait sees this
    idle_.notify_all();
  }
}

void Engine::fail_everything(const std::string& what) {
  std::lock_guard lock(inbox_mutex_);
  dead_.store(true);
  OutputChunk chunk;
  chunk.finish = FinishReason::kError;
  chunk.failure = {FailureKind::kInternal, "the engine has stopped: " + what, ""};
  const auto fail_choice = [&](OutputStream& stream, int32_t choice_idx) {
    OutputChunk last = chunk;
    last.choice_idx = choice_idx;
    stream.publish(std::move(last));
  };
  for (const auto& [seq_id, sequence] : sequences_) {
    fail_choice(*sequence->request->stream, sequence->choice_idx);
  }
  const auto fail_submissions = [&](std::vector<Submission>& submissions) {
    for (const Submission& submission : submissions) {
      if (submission.stream == nullptr) continue;  // taken before the error
      for (int32_t i = 0; i < submission.request.n; ++i) {
        fail_choice(*submission.stream, submission.request.first_choice_idx + i);
      }
    }
    submissions.clear();
  };
  fail_submissions(arrived_);
  fail_submissions(inbox_);
  sequences_.clear();
  requests_.clear();
  num_live_.store(0);
  idle_.notify_all();
}

void Engine::note_finished(const LiveSequence& sequence, FinishReason reason,
                           Clock::time_point now) {
  std::lock_guard lock(stats_mutex_);
  ++stats_.finished[static_cast<size_t>(reason) - static_cast<size_t>(FinishReason::kStop)];
  stats_.e2e_latency.observe(seconds_between(sequence.arrival, now));
  stats_.request_prompt_tokens.observe(sequence.num_prompt_tokens);
  stats_.request_generation_tokens.observe(sequence.num_tokens);
  stats_.request_max_tokens.observe(sequence.max_tokens);
  if (sequence.num_tokens == 0) return;
  const double decode = seconds_between(sequence.first_token, sequence.last_token);
  stats_.decode_time.observe(decode);
  stats_.inference_time.observe(seconds_between(sequence.scheduled, sequence.last_token));
  if (sequence.num_tokens > 1) {
    stats_.time_per_output_token.observe(decode / static_cast<double>(sequence.num_tokens - 1));
  }
}

void Engine::refresh_gauges() {
  const sched::SchedulerStats scheduler = scheduler_.stats();
  std::lock_guard lock(stats_mutex_);
  stats_.num_running = scheduler.num_running;
  stats_.num_waiting = scheduler.num_waiting;
  stats_.kv_usage = scheduler.kv_usage;
  stats_.prefix_cache_queries = scheduler.prefix_cache_queries;
  stats_.prefix_cache_hits = scheduler.prefix_cache_hits;
  stats_.num_preemptions = scheduler.num_preemptions;
  if (draft_sizer_.has_value()) stats_.draft_account = draft_sizer_->account();
}

void Engine::log_stats(Clock::time_point now) {
  if (config_.log_interval.count() == 0 || now - logged_at_ < config_.log_interval) return;
  EngineStats current = stats();
  const double seconds = seconds_between(logged_at_, now);
  const bool idle = current.num_steps == logged_.num_steps && current.num_running == 0;
  // One more line after the work has ended shows that it has; an idle server is quiet then.
  const log::Level level = idle && logged_idle_ ? log::Level::kDebug : log::Level::kInfo;
  log::write(level, stats_log_line(logged_, current, seconds));
  const std::string drafts = spec_decode_log_line(logged_, current, seconds);
  if (!drafts.empty()) log::write(level, drafts);
  const std::string lengths = draft_length_log_line(logged_, current);
  if (!lengths.empty()) log::write(level, lengths);
  logged_ = std::move(current);
  logged_at_ = now;
  logged_idle_ = idle;
}

}  // namespace eyrie::engine
