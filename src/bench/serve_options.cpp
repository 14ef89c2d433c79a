#include "bench/serve_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"

namespace eyrie::bench {

std::string ServeOptions::base() const {
  if (base_url.empty()) {
    const bool is_v6 = host.find(':') != std::string::npos && !host.starts_with('[');
    return fmt::format("http://{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
  }
  std::string url = base_url;
  while (url.ends_with('/')) url.pop_back();
  return url;
}

std::string ServeOptions::endpoint_url() const {
  if (!endpoint.empty()) return base() + (endpoint.starts_with('/') ? "" : "/") + endpoint;
  return base() + (is_chat() ? "/v1/chat/completions" : "/v1/completions");
}

void validate(const ServeOptions& options) {
  static constexpr std::array kBackends = {"vllm", "openai", "openai-chat"};
  if (std::find(kBackends.begin(), kBackends.end(), options.backend) == kBackends.end()) {
    fail("--backend {}: this client has vllm, openai and openai-chat", options.backend);
  }
  const std::string url = options.endpoint_url();
  const char* wanted = options.is_chat() ? "chat/completions" : "completions";
  if (!url.ends_with(wanted)) {
    fail("--endpoint {}: the URL must end with \"{}\" for --backend {}", options.endpoint, wanted,
         options.backend);
  }
  if (!options.is_chat() && url.ends_with("chat/completions")) {
    fail("--endpoint {} is a chat endpoint: give --backend openai-chat with it", options.endpoint);
  }
  if (options.dataset.name != "custom" && options.dataset.num_prompts < 1) {
    fail("--num-prompts {}: must be at least 1", options.dataset.num_prompts);
  }
  if (options.max_concurrency && *options.max_concurrency < 1) {
    fail("--max-concurrency {}: must be at least 1", *options.max_concurrency);
  }
  if (!(options.arrivals.request_rate > 0.0)) {
    fail("--request-rate {}: must be above 0, or inf", options.arrivals.request_rate);
  }
  if (!(options.arrivals.burstiness > 0.0)) {
    fail("--burstiness {}: must be above 0", options.arrivals.burstiness);
  }
  const auto& ramp = options.arrivals;
  if (!ramp.ramp_up.empty()) {
    if (ramp.ramp_up != "linear" && ramp.ramp_up != "exponential") {
      fail("--ramp-up-strategy {}: linear or exponential", ramp.ramp_up);
    }
    if (!std::isinf(ramp.request_rate)) {
      fail("--ramp-up-strategy does not go with --request-rate: the rate comes from the ramp");
    }
    if (!(ramp.ramp_start >= 0.0 && ramp.ramp_end > ramp.ramp_start)) {
      fail("--ramp-up-start-rps {} and --ramp-up-end-rps {}: the end must be above the start",
           ramp.ramp_start, ramp.ramp_end);
    }
    if (ramp.ramp_up == "exponential" && ramp.ramp_start <= 0.0) {
      fail("--ramp-up-start-rps must be above 0 for an exponential ramp");
    }
  }
  for (const double q : options.percentiles) {
    if (!(q >= 0.0 && q <= 100.0)) fail("--metric-percentiles {}: must be in [0, 100]", q);
  }
  static constexpr std::array kMetrics = {"ttft", "tpot", "itl", "e2el"};
  for (const auto& metric : options.percentile_metrics) {
    if (std::find(kMetrics.begin(), kMetrics.end(), metric) == kMetrics.end()) {
      fail("--percentile-metrics {}: ttft, tpot, itl and e2el exist", metric);
    }
  }
}

}  // namespace eyrie::bench
