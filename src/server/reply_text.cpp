#include "server/reply_text.h"

#include <fmt/format.h>

#include <boost/beast/http/status.hpp>

namespace eyrie::server {

std::string reason(int status) {
  const auto text =
      boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status));
  return {text.data(), text.size()};
}

std::string head(int status, const std::string& content_type, const ReplyContext& context) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nServer: eyrie\r\n", status, reason(status));
  if (!content_type.empty()) text += fmt::format("Content-Type: {}\r\n", content_type);
  text += context.keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  for (const auto& [name, value] : context.headers) text += fmt::format("{}: {}\r\n", name, value);
  return text;
}

std::string whole_reply(const HttpReply& reply, const ReplyContext& context) {
  std::string text = head(reply.status, reply.body.empty() ? "" : reply.content_type, context);
  if (reply.status == 429 || reply.status == 503) text += "Retry-After: 1\r\n";
  for (const auto& [name, value] : reply.headers) text += fmt::format("{}: {}\r\n", name, value);
  text += fmt::format("Content-Length: {}\r\n\r\n", reply.body.size());
  if (!context.is_head) text += reply.body;
  return text;
}

std::string stream_piece(const std::string& events, bool is_first, const ReplyContext& context) {
  std::string text;
  if (is_first) {
    text = head(200, "text/event-stream; charset=utf-8", context);
    text += "Cache-Control: no-cache\r\n";
    text += context.is_http_1_0 ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n";
  }
  text += context.is_http_1_0 ? events : fmt::format("{:x}\r\n{}\r\n", events.size(), events);
  return text;
}

}  // namespace eyrie::server
