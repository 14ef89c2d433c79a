// The load itself: sends prepared requests at their times, at most so many at once, and keeps a
// timeline of each. One thread, no work during the run that could be done before or after it
// (bodies are built before, figures computed after), because the server may share these cores.
//
// A request's clock starts when it is sent, after it got its place under max_concurrency: waiting
// on the client's side is not the server's latency.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "bench/http.h"
#include "bench/numpy_random.h"
#include "bench/timeline.h"

namespace eyrie::bench {

struct PreparedRequest {
  std::string body;  // JSON
  std::string request_id;
  int64_t prompt_len = 0;    // by the client's tokenizer; the server's usage replaces it
  int64_t asked_tokens = 0;  // max_tokens
};

struct Progress {
  int64_t total = 0;
  int64_t done = 0;  // failed ones included
  int64_t failed = 0;
  int64_t running = 0;
  int64_t output_tokens = 0;  // so far
  double elapsed_s = 0.0;
  double fraction = 0.0;  // of the work asked for, in tokens

  double seconds_left() const { return fraction > 0.0 ? elapsed_s * (1.0 / fraction - 1.0) : 0.0; }
};

struct LoadOptions {
  std::string url;
  std::vector<std::string> headers;
  bool insecure = false;
  bool is_chat = false;
  int64_t max_concurrency = 0;   // 0 = no limit
  std::vector<double> arrivals;  // seconds, ascending, one a request; empty = all at 0
  std::function<int64_t(const std::string&)> count_text;  // may be empty
  std::function<void(const Progress&)> on_progress;       // may be empty
  double progress_period_s = 0.25;
};

struct LoadResult {
  std::vector<RequestRecord> records;  // in the order of the requests
  double duration_s = 0.0;
  double cpu_share = 0.0;  // of one core, by the client's thread
  bool refused = false;    // some request found nobody listening
};

LoadResult run_load(const LoadOptions& options, const std::vector<PreparedRequest>& requests);

struct ArrivalOptions {
  double request_rate = std::numeric_limits<double>::infinity();  // a second; infinity = at once
  double burstiness = 1.0;  // gamma shape: 1 = Poisson, infinity = evenly spaced
  std::string ramp_up;      // "", linear, exponential: the rate moves from start to end
  double ramp_start = 0.0, ramp_end = 0.0;
};

// Times as vLLM's client draws them from numpy's global generator: gamma gaps, then stretched so
// that the last request comes at exactly n / rate (not when ramping up).
std::vector<double> arrival_times(const ArrivalOptions& options, int64_t n, MersenneTwister& rng);

}  // namespace eyrie::bench
