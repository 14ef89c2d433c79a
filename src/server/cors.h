// Which browsers' pages may ask this server: the rules of Starlette's CORSMiddleware, which is what
// vLLM's --allowed-origins, --allowed-methods, --allowed-headers and --allow-credentials configure.
// Pure functions of a configuration and a request's headers.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace eyrie::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

// "*" in a list stands for anything.
struct CorsConfig {
  std::vector<std::string> origins = {"*"};
  std::vector<std::string> methods = {"*"};
  std::vector<std::string> headers = {"*"};
  bool allow_credentials = false;
};

struct PreflightReply {
  int status = 200;
  std::string body;
  Headers headers;
};

// To a page's question whether it may send `method` with `headers` (nullopt: it named none).
PreflightReply preflight(const CorsConfig& cors, const std::string& origin,
                         const std::string& method, const std::optional<std::string>& headers);

// What any other reply to a request with an Origin carries.
Headers cors_headers(const CorsConfig& cors, const std::string& origin, bool has_cookie);

}  // namespace eyrie::server
