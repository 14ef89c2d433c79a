// `bench serve`: one benchmark run against an OpenAI-compatible server, start to end. The command
// line and the sweep both come through run_serve; they differ in where text and progress go.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/load.h"
#include "bench/metrics.h"
#include "bench/serve_options.h"

namespace eyrie::bench {

// Everything known about a finished run.
struct ServeRun {
  std::string date;      // local time, YYYYmmdd-HHMMSS
  std::string model_id;  // name sent in requests
  std::string tokenizer_id;
  int64_t max_model_len = 0;  // of the server, 0 = it does not say
  Metrics metrics;
  std::optional<SpecStats> spec;
  std::optional<DraftSizing> draft_sizing;
  std::vector<RequestRecord> records;
  std::vector<std::string> notes;     // what was chosen
  std::vector<std::string> warnings;  // why the result may not be what it looks like
  double client_cpu_share = 0.0;      // of one core
  double prefix_hit_rate = 0.0;       // of prompt tokens, during the run
};

struct ServeHooks {
  std::function<void(const std::string&)> say;       // a line for the reader
  std::function<void(const Progress&)> on_progress;  // during the main phase; may be empty
};

// Error when the run cannot begin: nobody listens, unknown model, no tokenizer. A run whose
// requests all failed is a result, with a warning.
ServeRun run_serve(const ServeOptions& options, const ServeHooks& hooks);

// The body of one request, as vLLM's client (or InferenceX's) would send it. continuous_usage asks
// the server for token counts in every chunk, which per-token figures need under speculation.
std::string request_body(const ServeOptions& options, const std::string& model,
                         const BenchPrompt& prompt, bool continuous_usage);

}  // namespace eyrie::bench
