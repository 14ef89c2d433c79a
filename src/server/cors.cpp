#include "server/cors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>

namespace eyrie::server {
namespace {

const std::vector<std::string> kAllMethods = {"DELETE", "GET",  "HEAD", "OPTIONS",
                                              "PATCH",  "POST", "PUT"};
// Of the fetch standard: always allowed.
const std::vector<std::string> kSafeHeaders = {"Accept", "Accept-Language", "Content-Language",
                                               "Content-Type"};

bool contains(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

bool allows_all(const std::vector<std::string>& list) { return contains(list, "*"); }

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Names between commas, in lower case, without blanks around them.
std::vector<std::string> header_names(const std::string& list) {
  std::vector<std::string> names;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    std::string name = lower(list.substr(at, comma - at));
    name.erase(0, name.find_first_not_of(" \t"));
    name.erase(name.find_last_not_of(" \t") + 1);
    names.push_back(std::move(name));
    at = comma + 1;
  }
  return names;
}

bool headers_allowed(const std::vector<std::string>& asked, const std::set<std::string>& allowed) {
  return std::all_of(asked.begin(), asked.end(), [&](const std::string& name) {
    return std::any_of(allowed.begin(), allowed.end(),
                       [&](const std::string& one) { return lower(one) == name; });
  });
}

}  // namespace

PreflightReply preflight(const CorsConfig& cors, const std::string& origin,
                         const std::string& method, const std::optional<std::string>& headers) {
  const bool any_origin = allows_all(cors.origins);
  const bool names_origin = !any_origin || cors.allow_credentials;
  std::set<std::string> allowed(kSafeHeaders.begin(), kSafeHeaders.end());
  allowed.insert(cors.headers.begin(), cors.headers.end());
  std::vector<std::string> refused;
  PreflightReply reply;

  if (!any_origin && !contains(cors.origins, origin)) {
    refused.push_back("origin");
  } else {
    reply.headers.emplace_back("Access-Control-Allow-Origin", names_origin ? origin : "*");
  }
  if (names_origin) reply.headers.emplace_back("Vary", "Origin");
  const auto& methods = allows_all(cors.methods) ? kAllMethods : cors.methods;
  reply.headers.emplace_back("Access-Control-Allow-Methods",
                             fmt::format("{}", fmt::join(methods, ", ")));
  reply.headers.emplace_back("Access-Control-Max-Age", "600");
  if (!contains(methods, method)) refused.push_back("method");
  if (!allows_all(cors.headers)) {
    reply.headers.emplace_back("Access-Control-Allow-Headers",
                               fmt::format("{}", fmt::join(allowed, ", ")));
    if (headers && !headers_allowed(header_names(*headers), allowed)) refused.push_back("headers");
  } else if (headers) {
    reply.headers.emplace_back("Access-Control-Allow-Headers", *headers);
  }
  if (cors.allow_credentials)
    reply.headers.emplace_back("Access-Control-Allow-Credentials", "true");

  reply.status = refused.empty() ? 200 : 400;
  reply.body = refused.empty() ? "OK" : fmt::format("Disallowed CORS {}", fmt::join(refused, ", "));
  return reply;
}

Headers cors_headers(const CorsConfig& cors, const std::string& origin, bool has_cookie) {
  Headers headers;
  const bool any_origin = allows_all(cors.origins);
  // A browser that sends credentials takes no "*" for an answer.
  const bool names_origin = any_origin ? has_cookie : contains(cors.origins, origin);
  if (names_origin) {
    headers.emplace_back("Access-Control-Allow-Origin", origin);
    headers.emplace_back("Vary", "Origin");
  } else if (any_origin) {
    headers.emplace_back("Access-Control-Allow-Origin", "*");
  }
  if (cors.allow_credentials) headers.emplace_back("Access-Control-Allow-Credentials", "true");
  return headers;
}

}  // namespace eyrie::server
