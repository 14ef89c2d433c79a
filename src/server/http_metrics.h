// Counts of HTTP requests, as vLLM's front end exposes them. Any thread.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "engine/stats.h"

namespace eyrie::server {

class HttpMetrics {
 public:
  HttpMetrics();
  void observe(const std::string& handler, const std::string& method, int status, double seconds);
  std::string text() const;

  std::atomic<int64_t> num_generating{0};  // requests being answered by the engine

 private:
  mutable std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, int>, int64_t> counts_;  // by status / 100
  std::map<std::pair<std::string, std::string>, engine::Histogram> durations_;
  engine::Histogram all_durations_;
};

// Prometheus text of everything: the engine's counters under vLLM's names, HTTP, the process.
struct ServerConfig;
std::string metrics_text(const engine::EngineStats& stats, const ServerConfig& config,
                         const HttpMetrics& http);

}  // namespace eyrie::server
