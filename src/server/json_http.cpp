#include "server/json_http.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <random>

#include "server/message_request.h"

namespace eyrie::server {
namespace {

bool is_json(const std::string& content_type) {
  std::string media = content_type.substr(0, content_type.find(';'));
  std::erase(media, ' ');
  std::transform(media.begin(), media.end(), media.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return media == "application/json";
}

}  // namespace

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string random_id() {
  thread_local std::mt19937_64 rng(std::random_device{}());
  return fmt::format("{:016x}{:016x}", rng(), rng());
}

HttpReply json_reply(const Json& json, int status) {
  return {status, json.dump(-1, ' ', false, Json::error_handler_t::replace), "application/json"};
}

HttpReply failure_reply(const Failure& failure) {
  return json_reply(error_body(failure), http_status(failure.kind));
}

HttpReply failure_reply(const Answer& answer, const Failure& failure) {
  return json_reply(answer.error_json(failure), http_status(failure.kind));
}

HttpReply message_failure_reply(const Failure& failure) {
  return json_reply(message_error_body(failure), http_status(failure.kind));
}

Result<Json> json_body(const HttpRequest& request) {
  if (!is_json(request.content_type)) {
    return Failure{
        FailureKind::kInvalidArgument,
        fmt::format("the content type must be application/json, got \"{}\"", request.content_type),
        ""};
  }
  return parse_body(request.body);
}

}  // namespace eyrie::server
