// What the engine counts, as a value: /metrics prints it, the log line and the dashboard compare
// two of them. Names, units and buckets are those of vLLM's metrics; times are seconds.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sched/draft_sizer.h"

namespace eyrie::engine {

// Cumulative buckets are made when printed; counts[i] is of values <= bounds[i] and above the bound
// before; the last count is of everything above.
class Histogram {
 public:
  Histogram() : Histogram(std::vector<double>{}) {}
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1, 0) {}

  void observe(double value, int64_t times = 1);
  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<int64_t>& counts() const { return counts_; }
  double sum() const { return sum_; }
  int64_t count() const { return count_; }

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
  int64_t count_ = 0;
};

// 1, 2, 5, 10, 20, 50 … up to max.
std::vector<double> one_two_five_buckets(int64_t max);

inline constexpr std::array kFinishedReasons = {"stop", "length", "abort", "error", "repetition"};

// Counters are totals since the start.
struct EngineStats {
  explicit EngineStats(int32_t max_model_len = 1, int32_t num_speculative_tokens = 0);

  int32_t num_running = 0;
  int32_t num_waiting = 0;
  double kv_usage = 0;  // 0..1
  int64_t num_steps = 0;
  int64_t prefix_cache_queries = 0;  // tokens
  int64_t prefix_cache_hits = 0;
  int64_t num_preemptions = 0;
  int64_t prompt_tokens = 0;  // counted with a sequence's first token, cached ones included
  int64_t prompt_tokens_cached = 0;
  int64_t generation_tokens = 0;
  std::array<int64_t, kFinishedReasons.size()> finished{};  // sequences, by kFinishedReasons

  // A draft is one sequence in one step with at least one draft token.
  int32_t num_speculative_tokens = 0;
  int64_t num_drafts = 0;
  int64_t num_draft_tokens = 0;
  int64_t num_accepted_tokens = 0;
  std::vector<int64_t> accepted_per_position;
  // Sequences x steps by the number of drafts they were told to propose, [K + 1].
  std::vector<int64_t> draft_lengths;
  sched::DraftAccount draft_account;
  bool synthetic_acceptance = false;  // drafts are accepted by chance: the text is nonsense

  Histogram iteration_tokens;
  Histogram time_to_first_token;
  Histogram inter_token_latency;  // gap between two outputs of a sequence: per step, not per token
  Histogram time_per_output_token;
  Histogram e2e_latency;
  Histogram queue_time;
  Histogram inference_time;
  Histogram prefill_time;
  Histogram decode_time;
  Histogram request_prompt_tokens;
  Histogram request_generation_tokens;
  Histogram request_max_tokens;
  Histogram request_prefill_tokens;  // of the prompt, computed rather than found in the cache
  Histogram request_n;
};

// The periodic log lines: of the interval between two snapshots. The second is empty when nothing
// was drafted.
std::string stats_log_line(const EngineStats& before, const EngineStats& now, double seconds);
std::string spec_decode_log_line(const EngineStats& before, const EngineStats& now, double seconds);
// Draft lengths as chosen, and how decoding compares with the best fixed length; empty when there
// is no speculation or nothing was decoded.
std::string draft_length_log_line(const EngineStats& before, const EngineStats& now);

}  // namespace eyrie::engine
