// The step loop. One engine thread owns the Scheduler, the ModelRunner and every live sequence's
// text; front-end threads only submit(), abort() and read snapshots.
//
//   drain inbox → schedule → execute → update → publish
//
// Text is made here, token by token, so that a stop string ends a sequence at exactly the token
// that completes it, however many tokens a step brought: nothing is reported, counted or logged
// past it.
//
// Ends of life. drain(): refuses new requests and waits for the live ones. An exception on the
// engine thread: every live request gets an error, healthy() turns false, the death handler is told
// once, and new requests are refused; the process is expected to end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "engine/stats.h"
#include "runtime/model_runner.h"
#include "sched/draft_sizer.h"
#include "sched/scheduler.h"
#include "tokenizer/tokenizer.h"

namespace eyrie::engine {

struct EngineConfig {
  sched::SchedulerConfig scheduler;  // its max_waiting becomes max_sequences
  // With drafts: how many of them. Absent: always num_speculative_tokens.
  std::optional<sched::DraftSizerConfig> draft_sizer;
  bool synthetic_acceptance = false;  // only told in the statistics
  uint64_t seed = 0;                  // of requests that bring none
  // Sequences that may be live at once, waiting ones included; more are refused as overload.
  int32_t max_sequences = 4096;
  // healthy() needs a finished step (or an idle tick) within this time.
  std::chrono::milliseconds health_deadline{120000};
  std::chrono::seconds log_interval{10};  // 0 = no periodic lines
};

class Engine {
 public:
  // The tokenizer outlives the engine.
  Engine(const EngineConfig& config, std::unique_ptr<runtime::ModelRunner> runner,
         const Tokenizer& tokenizer);
  ~Engine();  // stops the thread; live requests are aborted
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Called once, on the engine thread, with what killed it. Before start().
  void set_death_handler(std::function<void(const std::string&)> handler);
  // Called on the engine thread after each turn of its loop, all chunks of the turn being in their
  // streams. Before start().
  void set_turn_handler(std::function<void()> handler);
  void start();

  // Any thread, from here on. A Failure says the request will not run (too long, overloaded,
  // shutting down); otherwise chunks arrive in the stream until each choice has a finish reason.
  Result<RequestId> submit(GenerateRequest request, std::shared_ptr<OutputStream> stream);
  // Nobody wants the rest: its blocks are free by the next step. Unknown ids are fine.
  void abort(RequestId id);

  // Refuses new requests, waits until the live ones are done or the time is up, aborts the rest.
  void drain(std::chrono::milliseconds timeout);

  bool healthy() const;
  bool dead() const { return dead_.load(); }
  EngineStats stats() const;
  int32_t num_live_sequences() const { return num_live_.load(); }
  const EngineConfig& config() const { return config_; }

 private:
  struct LiveRequest;
  struct LiveSequence;
  struct Submission {
    RequestId id = 0;
    GenerateRequest request;
    std::shared_ptr<OutputStream> stream;
  };

  void thread_main();
  void loop();
  bool wait_for_inbox();
  void take_submission(Submission submission);
  void take_abort(RequestId id);
  void step(const sched::StepPlan& plan);
  void keep_events(const sched::StepPlan& plan, const runtime::StepOutput& output);
  void publish_pending();
  void end_turn();
  void note_rows(const sched::StepPlan& plan, Clock::time_point now);
  void note_times(const sched::StepPlan& plan, const runtime::StepOutput& output);
  void take_extras(const sched::StepPlan& plan, const runtime::StepOutput& output);
  void publish_event(const sched::SequenceEvent& event, const runtime::RowExtras& extras,
                     Clock::time_point now);
  void end_sequence(sched::SequenceId seq_id, OutputChunk&& last);
  void fail_everything(const std::string& what);
  void note_finished(const LiveSequence& sequence, FinishReason reason, Clock::time_point now);
  void refresh_gauges();
  void log_stats(Clock::time_point now);
  void beat() { last_beat_.store(Clock::now().time_since_epoch().count()); }

  EngineConfig config_;
  std::unique_ptr<runtime::ModelRunner> runner_;
  const Tokenizer& tokenizer_;
  sched::Scheduler scheduler_;
  std::optional<sched::DraftSizer> draft_sizer_;
  std::function<void(const std::string&)> death_handler_;
  std::function<void()> turn_handler_;

  // Engine thread only.
  std::unordered_map<sched::SequenceId, std::unique_ptr<LiveSequence>> sequences_;
  std::unordered_map<RequestId, std::unique_ptr<LiveRequest>> requests_;
  sched::SequenceId next_seq_id_ = 1;
  // What the last step brought and is not in the streams yet, and what tells of it. With a runner
  // that runs ahead it is published while the next step is under way.
  struct PendingEvent {
    sched::SequenceEvent event;
    runtime::RowExtras extras;
    Clock::time_point at;
  };
  std::vector<PendingEvent> pending_;
  bool in_flight_ = false;
  // Their answers ended while the next step was under way, maybe with them in it: the runner
  // forgets them after it.
  std::vector<sched::SequenceId> removed_in_flight_;
  std::vector<Submission> arrived_;
  std::vector<RequestId> aborted_;
  sched::StepTimes step_times_;
  Clock::time_point executed_at_;  // end of the last execute(); zero after a wait for work
  EngineStats logged_;
  Clock::time_point logged_at_;
  bool logged_idle_ = true;

  // The inbox. Submissions are bounded by max_sequences, aborts by the submissions.
  mutable std::mutex inbox_mutex_;
  std::condition_variable inbox_ready_;
  std::vector<Submission> inbox_;
  std::vector<RequestId> inbox_aborts_;
  bool abort_all_ = false;
  bool stopping_ = false;
  bool draining_ = false;
  RequestId next_request_id_ = 1;
  std::condition_variable idle_;  // num_live_ became 0

  std::atomic<int32_t> num_live_{0};  // sequences, those in the inbox included
  std::atomic<bool> dead_{false};
  std::atomic<int64_t> last_beat_{0};

  mutable std::mutex stats_mutex_;
  EngineStats stats_;

  std::thread thread_;
};

}  // namespace eyrie::engine
