#include "server/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <iterator>
#include <vector>

#include "base/log.h"
#include "server/json_http.h"
#include "server/reply_text.h"
#include "server/stream.h"
#include "server/tls.h"
#include "server/wake.h"

namespace eyrie::server {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using RequestParser = http::request_parser<http::string_body>;
using Outcome = std::variant<HttpReply, GenerationWork>;

constexpr int kClientLeft = 499;
// After an answer to a request that was not read to its end, so much of the rest is read and thrown
// away: closing at once would reset the connection before the client has seen the answer.
constexpr size_t kMaxDiscardedBytes = size_t{64} << 20;
constexpr std::chrono::seconds kMaxDiscardTime{5};
constexpr size_t kMaxRequestIdSize = 256;
// A client has write_timeout for each so many bytes, not for a whole answer.
constexpr size_t kWriteSlice = size_t{64} << 10;

std::string to_string(beast::string_view view) { return {view.data(), view.size()}; }

// An id comes back in a header and in JSON: printable ASCII or not at all.
std::string clean_request_id(beast::string_view id) {
  if (id.size() > kMaxRequestIdSize) return "";
  for (const char c : id) {
    if (c <= ' ' || c > '~') return "";
  }
  return to_string(id);
}

// Requests of one HTTP request in the engine; leaving the scope aborts what is not finished.
class EngineRequests {
 public:
  explicit EngineRequests(engine::Engine& engine) : engine_(engine) {}
  EngineRequests(const EngineRequests&) = delete;
  EngineRequests& operator=(const EngineRequests&) = delete;
  ~EngineRequests() {
    for (const engine::RequestId id : ids_) engine_.abort(id);
  }
  void add(engine::RequestId id) { ids_.push_back(id); }
  void finished() { ids_.clear(); }

 private:
  engine::Engine& engine_;
  std::vector<engine::RequestId> ids_;
};

template <typename Integer>
class Counted {
 public:
  explicit Counted(std::atomic<Integer>& count) : count_(count) { ++count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --count_; }

 private:
  std::atomic<Integer>& count_;
};

class WakeScope {
 public:
  WakeScope(tcp::socket& socket, Clock::time_point deadline)
      : wake_(std::make_shared<Wake>(socket, deadline)) {}
  WakeScope(const WakeScope&) = delete;
  WakeScope& operator=(const WakeScope&) = delete;
  ~WakeScope() { wake_->close(); }
  const std::shared_ptr<Wake>& get() const { return wake_; }

 private:
  std::shared_ptr<Wake> wake_;
};

HttpReply header_too_large(const std::string& what) {
  Json body = error_body({FailureKind::kTooLarge, what, ""});
  body["error"]["code"] = 431;
  return json_reply(body, 431);
}

// The path without its query and without the prefix a proxy has left on it.
std::string path_of(const std::string& target, const std::string& root_path) {
  std::string path = target.substr(0, target.find('?'));
  const bool has_root = !root_path.empty() && path.rfind(root_path, 0) == 0 &&
                        (path.size() == root_path.size() || path[root_path.size()] == '/');
  if (has_root) path.erase(0, root_path.size());
  return path.empty() ? "/" : path;
}

class Connection {
 public:
  Connection(tcp::socket socket, ConnectionContext& shared)
      : shared_(shared),
        config_(shared.config),
        stream_(std::move(socket), shared.tls.get()),
        counted_(shared.num_connections) {
    error_code ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
    stream_.socket().set_option(asio::socket_base::keep_alive(true), ignored);
    remote_ = stream_.socket().remote_endpoint(ignored);
  }

  asio::awaitable<void> run();

 private:
  asio::awaitable<bool> answer_one();
  asio::awaitable<bool> read(RequestParser& parser, error_code& error);
  asio::awaitable<bool> refuse(const HttpReply& reply, ReplyContext& context);
  asio::awaitable<Outcome> outcome_of(const HttpRequest& request);
  asio::awaitable<int> generate(GenerationWork work, ReplyContext& context);
  asio::awaitable<int> reply_to(const HttpReply& reply, ReplyContext& context);
  asio::awaitable<bool> write(const std::string& text);
  asio::awaitable<void> discard_rest();
  void note(const HttpRequest& request, int status, Clock::time_point start);

  ConnectionContext& shared_;
  const ServerConfig& config_;
  Stream stream_;
  const Counted<int32_t> counted_;
  tcp::endpoint remote_;
  beast::flat_buffer buffer_;
  size_t reply_body_bytes_ = 0;  // of the request at hand; 0 for a stream
};

asio::awaitable<void> Connection::run() {
  // A named value: GCC 12 lays out a frame without any local wrongly, and resumes it in the middle.
  bool goes_on = co_await stream_.open();
  while (goes_on) goes_on = co_await answer_one();
  co_await stream_.finish();
}

// What a request that could not be read is told; nullopt: nobody is there to be told.
std::optional<HttpReply> refusal(const error_code& error, const ServerConfig& config) {
  if (error == http::error::body_limit) {
    return failure_reply({FailureKind::kTooLarge,
                          fmt::format("the body is larger than the {} bytes this server takes",
                                      config.max_body_bytes),
                          ""});
  }
  if (error == http::error::header_limit) {
    return header_too_large(fmt::format("the header is larger than the {} bytes this server takes",
                                        config.max_header_bytes));
  }
  const bool left = error == http::error::end_of_stream || error == http::error::partial_message ||
                    error.category() != http::make_error_code(http::error::bad_method).category();
  if (left) return std::nullopt;  // or took too long
  return failure_reply(
      {FailureKind::kInvalidArgument, "this is not an HTTP request: " + error.message(), ""});
}

// False: the client is gone while it was told to go on.
asio::awaitable<bool> Connection::read(RequestParser& parser, error_code& error) {
  parser.header_limit(config_.max_header_bytes);
  parser.body_limit(config_.max_body_bytes);
  stream_.expires_after(config_.read_timeout);
  co_await http::async_read_header(stream_, buffer_, parser,
                                   asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return true;
  if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    if (!co_await write(go_on)) co_return false;
    stream_.expires_after(config_.read_timeout);
  }
  co_await http::async_read(stream_, buffer_, parser,
                            asio::redirect_error(asio::use_awaitable, error));
  co_return true;
}

HttpRequest request_from(RequestParser& parser, const ServerConfig& config) {
  const auto& message = parser.get();
  HttpRequest request;
  request.method = to_string(message.method_string());
  request.path = path_of(to_string(message.target()), config.root_path);
  request.content_type = to_string(message[http::field::content_type]);
  request.authorization = to_string(message[http::field::authorization]);
  request.api_key = to_string(message["x-api-key"]);
  request.request_id = clean_request_id(message["X-Request-Id"]);
  if (config.request_id_headers && request.request_id.empty()) request.request_id = random_id();
  request.body = std::move(parser.get().body());
  return request;
}

// The headers every reply to this request has.
Headers common_headers(const http::fields& fields, const std::string& request_id,
                       const ServerConfig& config) {
  Headers headers;
  if (fields.count(http::field::origin) > 0) {
    headers = cors_headers(config.cors, to_string(fields[http::field::origin]),
                           fields.count(http::field::cookie) > 0);
  }
  if (config.request_id_headers) headers.emplace_back("X-Request-Id", request_id);
  return headers;
}

std::optional<HttpReply> preflight_reply(const http::request<http::string_body>& message,
                                         const ServerConfig& config) {
  const bool asks = message.method() == http::verb::options &&
                    message.count(http::field::origin) > 0 &&
                    message.count(http::field::access_control_request_method) > 0;
  if (!asks) return std::nullopt;
  std::optional<std::string> names;
  if (message.count(http::field::access_control_request_headers) > 0) {
    names = to_string(message[http::field::access_control_request_headers]);
  }
  PreflightReply reply =
      preflight(config.cors, to_string(message[http::field::origin]),
                to_string(message[http::field::access_control_request_method]), names);
  return HttpReply{reply.status, std::move(reply.body), "text/plain; charset=utf-8",
                   std::move(reply.headers)};
}

// Reads a request and answers it. False: the connection ends here.
asio::awaitable<bool> Connection::answer_one() {
  error_code error;
  RequestParser parser;
  if (!co_await read(parser, error)) co_return false;
  const auto& message = parser.get();
  ReplyContext context;
  context.keep_alive = !error && message.keep_alive() && !shared_.closing.load();
  context.is_head = message.method() == http::verb::head;
  context.is_http_1_0 = message.version() < 11;
  if (error) {
    const auto reply = refusal(error, config_);
    if (reply) co_await refuse(*reply, context);
    co_return false;
  }
  if (std::distance(message.begin(), message.end()) > config_.max_header_count) {
    const HttpReply reply = header_too_large(
        fmt::format("the request has more than the {} header fields this server takes",
                    config_.max_header_count));
    co_return co_await refuse(reply, context);
  }

  const auto start = Clock::now();
  reply_body_bytes_ = 0;
  const BusyCount::Scope busy(shared_.busy);
  const HttpRequest request = request_from(parser, config_);
  int status = 0;
  if (const auto answer = preflight_reply(message, config_)) {
    status = co_await reply_to(*answer, context);
  } else {
    context.headers = common_headers(message, request.request_id, config_);
    Outcome outcome = co_await outcome_of(request);
    if (auto* work = std::get_if<GenerationWork>(&outcome)) {
      status = co_await generate(std::move(*work), context);
    } else {
      status = co_await reply_to(std::get<HttpReply>(outcome), context);
    }
  }
  note(request, status, start);
  co_return context.keep_alive;
}

Outcome handled(Api& api, const HttpRequest& request) {
  try {
    return api.handle(request);
  } catch (const std::exception& exception) {
    log::error("{} {} [{}]: {}", request.method, request.path, request.request_id,
               exception.what());
    return failure_reply({FailureKind::kInternal, "internal error", ""});
  }
}

// Parsing a body, rendering and encoding a prompt may take long: not on the thread that writes
// everybody's streams.
asio::awaitable<Outcome> Connection::outcome_of(const HttpRequest& request) {
  if (request.body.empty()) co_return handled(shared_.api, request);
  asio::steady_timer done(stream_.get_executor(), asio::steady_timer::time_point::max());
  Outcome outcome;
  asio::post(shared_.workers, [&, executor = stream_.get_executor()] {
    outcome = handled(shared_.api, request);
    // On the strand: not before the wait below has begun.
    asio::post(executor, [&done] { done.cancel(); });
  });
  error_code ignored;
  co_await done.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  co_return outcome;
}

// The request could not be taken. Always false.
asio::awaitable<bool> Connection::refuse(const HttpReply& reply, ReplyContext& context) {
  context.keep_alive = false;
  const std::string text = whole_reply(reply, context);
  if (co_await write(text)) co_await discard_rest();
  co_return false;
}

asio::awaitable<void> Connection::discard_rest() {
  error_code error;
  co_await stream_.finish();
  stream_.expires_after(kMaxDiscardTime);
  std::vector<char> sink(size_t{64} << 10);
  for (size_t total = 0; total < kMaxDiscardedBytes && !error;) {
    total += co_await stream_.tcp().async_read_some(
        asio::buffer(sink), asio::redirect_error(asio::use_awaitable, error));
  }
}

// False: the client is gone, or did not read for write_timeout.
asio::awaitable<bool> Connection::write(const std::string& text) {
  size_t at = stream_.write_now(text.data(), text.size());
  if (at == text.size()) co_return true;
  error_code error;
  for (; at < text.size() && !error; at += kWriteSlice) {
    stream_.expires_after(config_.write_timeout);
    const size_t size = std::min(kWriteSlice, text.size() - at);
    co_await asio::async_write(stream_, asio::buffer(text.data() + at, size),
                               asio::redirect_error(asio::use_awaitable, error));
  }
  stream_.expires_never();
  co_return !error;
}

asio::awaitable<int> Connection::reply_to(const HttpReply& reply, ReplyContext& context) {
  reply_body_bytes_ = reply.body.size();
  const std::string text = whole_reply(reply, context);
  if (!co_await write(text)) context.keep_alive = false;
  co_return reply.status;
}

engine::OutputChunk timed_out(std::chrono::milliseconds limit) {
  engine::OutputChunk chunk;
  chunk.finish = engine::FinishReason::kError;
  chunk.failure = {FailureKind::kTimeout,
                   fmt::format("the request took longer than the {:g} s this server gives one",
                               std::chrono::duration<double>(limit).count()),
                   ""};
  return chunk;
}

// Runs a generation to its end and writes its answer; the status written (499 when the client
// left).
asio::awaitable<int> Connection::generate(GenerationWork work, ReplyContext& context) {
  const auto deadline = config_.request_timeout.count() > 0 ? Clock::now() + config_.request_timeout
                                                            : Clock::time_point::max();
  const WakeScope scope(stream_.socket(), deadline);
  const std::shared_ptr<Wake> wake = scope.get();
  const auto output =
      std::make_shared<engine::OutputStream>([wake, wakes = shared_.wakes] { wakes->add(wake); });
  EngineRequests requests(shared_.engine);
  for (engine::GenerateRequest& request : work.requests) {
    const auto id = shared_.engine.submit(std::move(request), output);
    if (!id.ok()) {
      const HttpReply reply = failure_reply(*work.answer, id.failure());
      co_return co_await reply_to(reply, context);
    }
    requests.add(id.value());
  }
  const Counted counted(shared_.api.metrics().num_generating);
  wake->watch();

  Answer& answer = *work.answer;
  bool streaming = false;  // the head is out
  if (context.is_http_1_0 && work.stream) context.keep_alive = false;
  std::string events;
  while (!answer.finished() && answer.failure() == nullptr) {
    std::vector<engine::OutputChunk> chunks = output->take();
    for (engine::OutputChunk& chunk : chunks) answer.take(std::move(chunk), events);
    bool left = wake->client_left() || output->overrun();
    if (!left && !events.empty() && !answer.finished()) {
      const std::string text = stream_piece(events, !streaming, context);
      streaming = true;
      events.clear();
      left = !co_await write(text);
    }
    if (left) {
      context.keep_alive = false;
      co_return kClientLeft;
    }
    if (answer.finished() || !chunks.empty()) continue;
    co_await wake->wait();
    if (Clock::now() >= deadline) answer.take(timed_out(config_.request_timeout), events);
  }
  wake->close();
  error_code ignored;
  stream_.socket().cancel(ignored);  // the watch

  if (answer.failure() != nullptr) {
    if (!streaming) {
      const HttpReply reply = failure_reply(answer, *answer.failure());
      co_return co_await reply_to(reply, context);
    }
    answer.fail_stream(events);
  } else {
    requests.finished();
    if (!work.stream) {
      const HttpReply reply = json_reply(answer.whole());
      co_return co_await reply_to(reply, context);
    }
    answer.end_stream(events);
  }
  std::string last = stream_piece(events, !streaming, context);
  if (!context.is_http_1_0) last += "0\r\n\r\n";
  if (!co_await write(last)) context.keep_alive = false;
  co_return 200;
}

void Connection::note(const HttpRequest& request, int status, Clock::time_point start) {
  const std::chrono::duration<double> seconds = Clock::now() - start;
  const std::string handler = shared_.api.handler_name(request.path);
  if (!handler.empty()) {
    shared_.api.metrics().observe(handler, request.method, status, seconds.count(),
                                  request.body.size(), reply_body_bytes_);
  }
  const auto& silent = config_.silent_paths;
  if (!config_.access_log) return;
  if (std::find(silent.begin(), silent.end(), request.path) != silent.end()) return;
  error_code ignored;
  log::info("{}:{} - \"{} {} HTTP/1.1\" {} {}{}", remote_.address().to_string(ignored),
            remote_.port(), request.method, request.path, status,
            status == kClientLeft ? "Client Closed Request" : reason(status),
            request.request_id.empty() ? "" : " [" + request.request_id + "]");
}

}  // namespace

ConnectionContext::ConnectionContext(const ServerConfig& server_config, engine::Engine& the_engine,
                                     const Tokenizer& tokenizer,
                                     const chat::ChatTemplate& chat_template)
    : config(server_config),
      engine(the_engine),
      api(config, the_engine, tokenizer, chat_template),
      tls(make_tls_context(config.tls)),
      workers(static_cast<size_t>(config.num_work_threads)) {}

asio::awaitable<void> serve_connection(tcp::socket socket, ConnectionContext& shared) {
  Connection connection(std::move(socket), shared);
  co_await connection.run();
}

}  // namespace eyrie::server
