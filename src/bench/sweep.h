// `bench sweep`: every configuration at every concurrency. A configuration's server is started only
// if some of its points are not in the store yet, and stopped before the next one starts, so that
// only one server ever has the machine.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/serve_options.h"
#include "bench/store.h"
#include "bench/sweep_result.h"

namespace eyrie::bench {

struct SweepPlan {
  std::string model;
  std::vector<std::string> common_args;  // server flags of every configuration
  std::vector<SweepConfig> configs;
  std::vector<int64_t> concurrencies;
  int64_t prompts_per_concurrency = 10;  // num-prompts = this × C
  int64_t repeats = 1;
  bool fresh = false;          // measure again what the store has
  ServeOptions client;         // all but concurrency and prompt count
  bool warmups_given = false;  // else min(C, 8): the first requests of a server touch cold memory
  std::string machine;         // of the question's key
  std::string program;         // identity of the server's executable
};

// What the sweep does to the world; tests put a fake here.
class SweepBackend {
 public:
  virtual ~SweepBackend() = default;
  virtual void start_server(const SweepConfig& config) = 0;
  virtual OrderedJson measure(const SweepConfig& config, const ServeOptions& options) = 0;
  virtual void stop_server() = 0;
};

struct SweepEvents {
  std::function<void(const SweepPoint&)> on_point;  // finished or taken from the store
};

// The options of one run.
ServeOptions options_for(const SweepPlan& plan, int64_t concurrency);

// The whole question as text; two runs with the same key would measure the same thing.
std::string sweep_key(const SweepPlan& plan, const SweepConfig& config, int64_t concurrency,
                      int64_t repeat);

// Adds points to result (whose configs and concurrencies are the plan's). Runs with failed requests
// are reported but not stored: a later sweep tries them again.
void run_sweep(const SweepPlan& plan, RunStore& store, SweepBackend& backend,
               const SweepEvents& events, SweepResult& result);

// A file or directory by name, sizes and times: changes when a model is built again.
std::string path_identity(const std::string& path);

}  // namespace eyrie::bench
