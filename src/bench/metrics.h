// The figures of a run, computed from its timelines after it is over. Definitions are vLLM's, with
// two stated differences: TPOT and ITL are per token (timeline.h), and the peak of output
// throughput counts tokens, not chunks, per second. Times in milliseconds unless a name says _s.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/draft_sizing.h"
#include "bench/timeline.h"

namespace eyrie::bench {

// numpy.percentile with linear interpolation; 0 for no values. Sorts a copy.
double percentile(std::vector<double> values, double q);

struct Distribution {
  double mean = 0.0;
  double median = 0.0;
  double std = 0.0;                                    // of the population
  std::vector<std::pair<double, double>> percentiles;  // (q, value)
};
Distribution summarize(std::vector<double> values, const std::vector<double>& percentiles);

// What a server's /metrics says that matters to a benchmark. Counters of all engines are summed.
struct ServerCounters {
  bool has_spec = false;
  double num_drafts = 0.0;
  double draft_tokens = 0.0;
  double accepted_tokens = 0.0;
  std::map<int, double> accepted_per_pos;
  bool has_prefix_cache = false;
  double prefix_queries = 0.0;  // prompt tokens looked up
  double prefix_hits = 0.0;     // of these, found
  double preemptions = 0.0;
  DraftSizingCounters draft_sizing;
};
ServerCounters parse_server_counters(std::string_view metrics_text);

// Speculation during the run. Acceptance length counts the target's own token: 1 + accepted/drafts.
struct SpecStats {
  double acceptance_rate = 0.0;  // accepted / drafted, percent
  double acceptance_length = 0.0;
  int64_t num_drafts = 0;
  int64_t draft_tokens = 0;
  int64_t accepted_tokens = 0;
  std::vector<double> per_position;  // accepted at position / drafts, fractions
};
// nullopt when the server has no such counters or they did not move.
std::optional<SpecStats> spec_stats(const ServerCounters& before, const ServerCounters& after);

struct GoodputLimits {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;
  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};

struct Metrics {
  double duration_s = 0.0;
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t total_input = 0;
  int64_t total_output = 0;
  double request_throughput = 0.0;
  std::optional<double> request_goodput;
  double output_throughput = 0.0;
  double total_token_throughput = 0.0;
  double max_output_tokens_per_s = 0.0;
  int64_t max_concurrent_requests = 0;
  Distribution ttft, tpot, itl, e2el;
};

Metrics compute_metrics(const std::vector<RequestRecord>& records, double duration_s,
                        const std::vector<double>& percentiles, const GoodputLimits& limits);

}  // namespace eyrie::bench
