#include "apps/eyrie/serve_service.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "base/log.h"

namespace eyrie::apps {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

int64_t integer_in(const ParsedFlags& flags, std::string_view name, int64_t absent, int64_t low,
                   int64_t high) {
  const int64_t value = flags.integer(name, absent);
  if (value < low || value > high) fail("--{} is {}; it takes {} to {}", name, value, low, high);
  return value;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Whole seconds from the environment; `absent` when the variable is not set.
int64_t seconds_from(const char* name, int64_t absent) {
  const std::string text = environment(name);
  if (text.empty()) return absent;
  const auto seconds = parse_human_integer(text);
  if (!seconds || *seconds < 1 || *seconds > kMaxInt) {
    fail("{} is '{}'; it takes a number of seconds from 1", name, text);
  }
  return *seconds;
}

// A list of strings in JSON, as vLLM's --allowed-… take it.
std::vector<std::string> json_strings(const ParsedFlags& flags, std::string_view name) {
  const std::string text = flags.string(name, "[\"*\"]");
  const auto list = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool fits = list.is_array() && std::all_of(list.begin(), list.end(),
                                                   [](const auto& one) { return one.is_string(); });
  if (!fits) fail("--{} is '{}'; it takes a list in JSON, such as [\"*\"]", name, text);
  return list.get<std::vector<std::string>>();
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    std::string part = text.substr(at, comma - at);
    std::erase(part, ' ');
    if (!part.empty()) parts.push_back(std::move(part));
    at = comma + 1;
  }
  return parts;
}

void take_limits(const ParsedFlags& flags, ServeConfig& config) {
  server::ServerConfig& out = config.server;
  config.max_queued_requests =
      static_cast<int32_t>(integer_in(flags, "max-queued-requests", 4096, 0, 1 << 20));
  const double timeout = flags.number("request-timeout", 0);
  if (timeout < 0 || timeout > 1e6) {
    fail("--request-timeout is {}; it takes seconds up to 1000000, 0 for none", timeout);
  }
  out.request_timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout * 1e3));
  out.max_body_bytes = static_cast<size_t>(integer_in(
      flags, "max-body-bytes", static_cast<int64_t>(out.max_body_bytes), 1024, int64_t{1} << 40));
  out.max_header_bytes = static_cast<uint32_t>(
      integer_in(flags, "h11-max-incomplete-event-size", out.max_header_bytes, 1024, kMaxInt));
  out.max_header_count = static_cast<int32_t>(
      integer_in(flags, "h11-max-header-count", out.max_header_count, 1, kMaxInt));
  config.step_deadline = std::chrono::seconds(
      seconds_from("VLLM_ENGINE_ITERATION_TIMEOUT_S", config.step_deadline.count()));
}

void take_tls(const ParsedFlags& flags, server::TlsConfig& tls) {
  tls.cert_file = flags.string("ssl-certfile");
  tls.key_file = flags.string("ssl-keyfile");
  tls.ca_file = flags.string("ssl-ca-certs");
  tls.ciphers = flags.string("ssl-ciphers");
  constexpr std::array kKinds = {server::ClientCerts::kNone, server::ClientCerts::kOptional,
                                 server::ClientCerts::kRequired};
  tls.client_certs = kKinds[static_cast<size_t>(integer_in(flags, "ssl-cert-reqs", 0, 0, 2))];
}

void take_cors(const ParsedFlags& flags, server::CorsConfig& cors) {
  cors.origins = json_strings(flags, "allowed-origins");
  cors.methods = json_strings(flags, "allowed-methods");
  cors.headers = json_strings(flags, "allowed-headers");
  cors.allow_credentials = flags.boolean("allow-credentials", false);
}

std::optional<log::Level> level_from(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (name == "trace" || name == "debug") return log::Level::kDebug;
  if (name == "info") return log::Level::kInfo;
  if (name == "warning") return log::Level::kWarning;
  if (name == "error" || name == "critical") return log::Level::kError;
  return std::nullopt;
}

// VLLM_LOGGING_LEVEL is the whole program's level; --uvicorn-log-level is that of the HTTP server,
// whose lines of level info are the access log.
void take_logging(const ParsedFlags& flags, ServeConfig& config) {
  if (const std::string name = environment("VLLM_LOGGING_LEVEL"); !name.empty()) {
    const auto level = level_from(name);
    if (!level) fail("VLLM_LOGGING_LEVEL is '{}'; it takes DEBUG, INFO, WARNING or ERROR", name);
    log::set_level(*level);
  }
  const std::string name = flags.string("uvicorn-log-level", "info");
  const auto level = level_from(name);
  if (!level) {
    fail(
        "--uvicorn-log-level is '{}'; it takes one of critical, error, warning, info, debug, trace",
        name);
  }
  if (*level == log::Level::kDebug) log::set_level(log::Level::kDebug);
  server::ServerConfig& out = config.server;
  out.access_log =
      *level <= log::Level::kInfo && !flags.boolean("disable-uvicorn-access-log", false);
  out.silent_paths = split_at_commas(flags.string("disable-access-log-for-endpoints"));
  config.log_interval = std::chrono::seconds(seconds_from("VLLM_LOG_STATS_INTERVAL", 10));
}

}  // namespace

void take_service(const ParsedFlags& flags, ServeConfig& config) {
  take_limits(flags, config);
  take_tls(flags, config.server.tls);
  take_cors(flags, config.server.cors);
  take_logging(flags, config);
  std::string& root = config.server.root_path;
  root = flags.string("root-path");
  while (!root.empty() && root.back() == '/') root.pop_back();
  if (!root.empty() && root.front() != '/') root.insert(root.begin(), '/');
  config.server.request_id_headers = flags.boolean("enable-request-id-headers", false);
}

}  // namespace eyrie::apps
