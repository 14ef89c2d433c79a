// JSON over HTTP: bodies in, replies out.
#pragma once

#include <cstdint>
#include <string>

#include "server/api.h"

namespace eyrie::server {

int64_t unix_seconds();
std::string random_id();  // 32 hexadecimal digits

HttpReply json_reply(const Json& json, int status = 200);
HttpReply message_failure_reply(const Failure& failure);  // in Anthropic's shape

// The JSON body of a POST whose content type says so.
Result<Json> json_body(const HttpRequest& request);

}  // namespace eyrie::server
