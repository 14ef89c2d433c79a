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
  // reply_bytes: of a body with a Content-Length; 0 for a stream.
  void observe(const std::string& handler, const std::string& method, int status, double seconds,
               size_t request_bytes, size_t reply_bytes);
  std::string text() const;

  std::atomic<int64_t> num_generating{0};  // requests being answered by the engine

 private:
  struct Sizes {
    int64_t count = 0;
    int64_t request_bytes = 0;
    int64_t reply_bytes = 0;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Sizes> sizes_;                                   // by handler
  std::map<std::tuple<std::string, std::string, int>, int64_t> counts_;  // by status / 100
  std::map<std::pair<std::string, std::string>, engine::Histogram> durations_;
  engine::Histogram all_durations_;
};

// Prometheus text of everything: the engine's counters under vLLM's names, HTTP, the process.
struct ServerConfig;
std::string metrics_text(const engine::EngineStats& stats, const ServerConfig& config,
                         const HttpMetrics& http);

}  // namespace eyrie::server
