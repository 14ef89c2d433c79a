// Replies as bytes: status line, headers, framing.
#pragma once

#include <string>

#include "server/api.h"

namespace eyrie::server {

std::string reason(int status);  // "Not Found"

// What the replies to one request have in common.
struct ReplyContext {
  bool keep_alive = true;
  bool is_head = false;
  bool is_http_1_0 = false;
  Headers headers;  // of CORS, and the echoed request id
};

// Status line and headers, without what depends on the body and without the empty line.
std::string head(int status, const std::string& content_type, const ReplyContext& context);
std::string whole_reply(const HttpReply& reply, const ReplyContext& context);
// A piece of an event stream: the head before the first one, a chunk where the client knows chunks.
std::string stream_piece(const std::string& events, bool is_first, const ReplyContext& context);

}  // namespace eyrie::server
