// A serving loop without text, threads or HTTP, for tests: the real scheduler over the real runner.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/runner.h"
#include "sched/scheduler.h"

namespace eyrie::runtime::testing {

// operator new calls of this process so far (testing_allocations.cpp replaces it).
int64_t num_heap_allocations();

struct Request {
  std::vector<TokenId> prompt;
  SamplingParams params;
};

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<Logprobs> logprobs;
  std::vector<Logprobs> prompt_logprobs;
  int32_t num_cached_tokens = 0;
  int32_t num_preemptions = 0;
  bool numeric_fault = false;
  bool operator==(const Answer&) const = default;
};

class ServingLoop {
 public:
  ServingLoop(Runner& runner, const sched::SchedulerConfig& config)
      : runner_(runner), scheduler_(config) {}

  // Serves all at once and returns the answers in order.
  std::vector<Answer> serve(const std::vector<Request>& requests) {
    std::vector<Answer> answers(requests.size());
    std::map<sched::SequenceId, size_t> index;
    for (size_t i = 0; i < requests.size(); ++i) {
      const sched::SequenceId seq_id = next_id_++;
      index[seq_id] = i;
      const Request& request = requests[i];
      sched::NewSequence sequence;
      sequence.seq_id = seq_id;
      sequence.prompt = request.prompt;
      sequence.max_tokens = request.params.max_tokens;
      sequence.min_tokens = request.params.min_tokens;
      sequence.ignore_eos = request.params.ignore_eos;
      sequence.eos_token_ids = request.params.eos_token_ids;
      sequence.stop_token_ids = request.params.stop_token_ids;
      sequence.skip_prefix_cache = request.params.prompt_logprobs.has_value();
      CHECK(scheduler_.add(std::move(sequence)));
      runner_.add_sequence(seq_id, request.prompt, request.params);
    }
    while (scheduler_.has_work()) step(answers, index);
    return answers;
  }

  // Told of every step, as the engine does it.
  void set_draft_policy(sched::DraftPolicy* policy) {
    draft_policy_ = policy;
    scheduler_.set_draft_policy(policy);
  }

  // Counts what execute() allocates, with a counter of the test's own.
  void watch_allocations(int64_t (*counter)()) { allocation_counter_ = counter; }
  int64_t num_allocations() const { return num_allocations_; }
  double acceptance_length() const {
    return 1.0 + static_cast<double>(num_accepted_) / static_cast<double>(num_drafted_rows_);
  }
  int64_t num_accepted() const { return num_accepted_; }
  int64_t num_rejected() const { return num_rejected_; }

 private:
  void step(std::vector<Answer>& answers, const std::map<sched::SequenceId, size_t>& index) {
    const sched::StepPlan& plan = scheduler_.schedule();
    CHECK(!plan.empty(), "the scheduler has work but plans nothing");
    const int64_t before = allocation_counter_ == nullptr ? 0 : allocation_counter_();
    const StepOutput& output = runner_.execute(plan);
    if (allocation_counter_ != nullptr) num_allocations_ += allocation_counter_() - before;
    if (draft_policy_ != nullptr) {
      draft_policy_->note_step(output.times, 1, /*only_decoding=*/false);
    }
    for (size_t r = 0; r < plan.rows.size(); ++r) {
      const sched::SequenceId seq_id = plan.rows[r].seq_id;
      Answer& answer = answers[index.at(seq_id)];
      const RowExtras& extras = output.extras[r];
      answer.prompt_logprobs.insert(answer.prompt_logprobs.end(), extras.prompt_logprobs.begin(),
                                    extras.prompt_logprobs.end());
      answer.logprobs.insert(answer.logprobs.end(), extras.logprobs.begin(), extras.logprobs.end());
      if (!extras.numeric_fault) continue;
      answer.numeric_fault = true;
      (void)scheduler_.abort(seq_id);
      runner_.remove_sequence(seq_id);
    }
    for (const sched::SequenceEvent& event : scheduler_.update(plan, output.rows)) {
      Answer& answer = answers[index.at(event.seq_id)];
      answer.tokens.insert(answer.tokens.end(), event.new_tokens.begin(), event.new_tokens.end());
      if (event.is_first) answer.num_cached_tokens = event.num_cached_tokens;
      answer.num_preemptions = event.num_preemptions;
      num_accepted_ += event.num_accepted_tokens;
      num_rejected_ += event.num_draft_tokens - event.num_accepted_tokens;
      num_drafted_rows_ += event.num_draft_tokens > 0 ? 1 : 0;
      if (event.finish != sched::FinishReason::kNone) runner_.remove_sequence(event.seq_id);
    }
    for (Answer& answer : answers) {
      if (answer.logprobs.size() > answer.tokens.size())
        answer.logprobs.resize(answer.tokens.size());
    }
  }

  Runner& runner_;
  sched::Scheduler scheduler_;
  sched::DraftPolicy* draft_policy_ = nullptr;
  sched::SequenceId next_id_ = 0;
  int64_t (*allocation_counter_)() = nullptr;
  int64_t num_allocations_ = 0;
  int64_t num_accepted_ = 0, num_rejected_ = 0, num_drafted_rows_ = 0;
};

}  // namespace eyrie::runtime::testing
