#include "server/server.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <utility>  // before asio: Debian's Boost 1.74 forgets it

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "server/api.h"
#include "server/reply_text.h"
#include "server/wake.h"

namespace eyrie::server {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using RequestParser = http::request_parser<http::string_body>;

// After an answer to a request that was not read to its end, so much of the rest is read and thrown
// away: closing at once would reset the connection before the client has seen the answer.
constexpr size_t kMaxDiscardedBytes = size_t{64} << 20;
constexpr std::chrono::seconds kMaxDiscardTime{5};
constexpr size_t kMaxRequestIdSize = 256;

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
  explicit WakeScope(tcp::socket& socket) : wake_(std::make_shared<Wake>(socket)) {}
  WakeScope(const WakeScope&) = delete;
  WakeScope& operator=(const WakeScope&) = delete;
  ~WakeScope() { wake_->close(); }
  const std::shared_ptr<Wake>& get() const { return wake_; }

 private:
  std::shared_ptr<Wake> wake_;
};

}  // namespace

struct Server::Impl {
  Impl(const ServerConfig& server_config, Listener listener, engine::Engine& the_engine,
       const Tokenizer& tokenizer, const chat::ChatTemplate& chat_template)
      : config(server_config),
        engine(the_engine),
        api(config, the_engine, tokenizer, chat_template),
        io(config.num_io_threads),
        acceptor(io),
        port(listener.port()) {
    const auto protocol = listener.family() == AF_INET6 ? tcp::v6() : tcp::v4();
    acceptor.assign(protocol, listener.release());
  }

  asio::awaitable<void> accept_loop();
  asio::awaitable<void> serve(tcp::socket socket);
  asio::awaitable<bool> answer_one(beast::tcp_stream& stream, beast::flat_buffer& buffer);
  asio::awaitable<bool> refuse(beast::tcp_stream& stream, const error_code& error,
                               ReplyContext context);
  asio::awaitable<int> generate(beast::tcp_stream& stream, GenerationWork work,
                                ReplyContext& context);
  asio::awaitable<int> reply_to(beast::tcp_stream& stream, const HttpReply& reply,
                                ReplyContext& context);
  asio::awaitable<bool> write(beast::tcp_stream& stream, const std::string& text);
  asio::awaitable<void> discard_rest(beast::tcp_stream& stream);
  void note(const tcp::endpoint& remote, const HttpRequest& request, int status,
            std::chrono::steady_clock::time_point start);

  const ServerConfig config;
  engine::Engine& engine;
  Api api;
  asio::io_context io;
  tcp::acceptor acceptor;
  const int port;
  std::vector<std::thread> threads;
  std::atomic<bool> closing{false};
  std::atomic<int32_t> num_connections{0};

  // Requests between their last byte in and their last byte out.
  std::mutex busy_mutex;
  std::condition_variable idle;
  int32_t num_busy = 0;
  struct Busy {
    explicit Busy(Impl& the_impl) : impl(the_impl) {
      std::lock_guard lock(impl.busy_mutex);
      ++impl.num_busy;
    }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    ~Busy() {
      std::lock_guard lock(impl.busy_mutex);
      if (--impl.num_busy == 0) impl.idle.notify_all();
    }
    Impl& impl;
  };
};

asio::awaitable<void> Server::Impl::accept_loop() {
  while (acceptor.is_open()) {
    error_code error;
    tcp::socket socket(asio::make_strand(io));
    co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) co_return;
    if (error) {
      // Out of descriptors, most likely: connections wait in the backlog until some are closed.
      log::warning("cannot accept a connection: {}", error.message());
      asio::steady_timer pause(co_await asio::this_coro::executor, std::chrono::milliseconds(50));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
      continue;
    }
    if (num_connections.load() >= config.max_connections) continue;  // closes it
    const auto strand = socket.get_executor();
    asio::co_spawn(strand, serve(std::move(socket)), asio::detached);
  }
}

asio::awaitable<void> Server::Impl::serve(tcp::socket socket) {
  const Counted counted(num_connections);
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  beast::tcp_stream stream(std::move(socket));
  beast::flat_buffer buffer;
  while (co_await answer_one(stream, buffer)) {
  }
  stream.socket().shutdown(tcp::socket::shutdown_both, ignored);
}

// Reads a request and answers it. False: the connection ends here.
asio::awaitable<bool> Server::Impl::answer_one(beast::tcp_stream& stream,
                                               beast::flat_buffer& buffer) {
  error_code error;
  RequestParser parser;
  parser.header_limit(config.max_header_bytes);
  parser.body_limit(config.max_body_bytes);
  stream.expires_after(config.read_timeout);
  co_await http::async_read_header(stream, buffer, parser,
                                   asio::redirect_error(asio::use_awaitable, error));
  const auto& message = parser.get();
  if (!error) {
    if (beast::iequals(message[http::field::expect], "100-continue")) {
      const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
      if (!co_await write(stream, go_on)) co_return false;
    }
    co_await http::async_read(stream, buffer, parser,
                              asio::redirect_error(asio::use_awaitable, error));
  }
  ReplyContext context;
  context.keep_alive = !error && message.keep_alive() && !closing.load();
  context.is_head = message.method() == http::verb::head;
  context.is_http_1_0 = message.version() < 11;
  context.has_origin = message.count(http::field::origin) > 0;
  if (error) co_return co_await refuse(stream, error, context);

  const auto start = std::chrono::steady_clock::now();
  const Busy busy(*this);
  HttpRequest request;
  request.method = to_string(message.method_string());
  const std::string target = to_string(message.target());
  request.path = target.substr(0, target.find('?'));
  request.content_type = to_string(message[http::field::content_type]);
  request.authorization = to_string(message[http::field::authorization]);
  request.api_key = to_string(message["x-api-key"]);
  request.request_id = clean_request_id(message["X-Request-Id"]);
  if (config.request_id_headers) context.request_id = request.request_id;
  const bool is_preflight = message.method() == http::verb::options &&
                            message.count(http::field::access_control_request_method) > 0;
  request.body = std::move(parser.get().body());
  const tcp::endpoint remote = stream.socket().remote_endpoint(error);

  int status = 200;
  if (is_preflight) {
    const std::string text = preflight_reply(context);
    if (!co_await write(stream, text)) co_return false;
  } else {
    std::variant<HttpReply, GenerationWork> outcome;
    try {
      outcome = api.handle(request);
    } catch (const std::exception& exception) {
      log::error("{} {}: {}", request.method, request.path, exception.what());
      outcome = failure_reply({FailureKind::kInternal, "internal error", ""});
    }
    if (auto* work = std::get_if<GenerationWork>(&outcome)) {
      status = co_await generate(stream, std::move(*work), context);
    } else {
      status = co_await reply_to(stream, std::get<HttpReply>(outcome), context);
    }
  }
  note(remote, request, status, start);
  co_return context.keep_alive;
}

// The request could not be read. Always false.
asio::awaitable<bool> Server::Impl::refuse(beast::tcp_stream& stream, const error_code& error,
                                           ReplyContext context) {
  context.keep_alive = false;
  HttpReply reply;
  if (error == http::error::body_limit) {
    reply = failure_reply({FailureKind::kTooLarge,
                           fmt::format("the body is larger than the {} bytes this server takes",
                                       config.max_body_bytes),
                           ""});
  } else if (error == http::error::header_limit) {
    Json body = error_body({FailureKind::kTooLarge,
                            fmt::format("the header is larger than the {} bytes this server takes",
                                        config.max_header_bytes),
                            ""});
    body["error"]["code"] = 431;
    reply = {431, body.dump(), "application/json"};
  } else if (error == http::error::end_of_stream || error == http::error::partial_message ||
             error.category() != http::make_error_code(http::error::bad_method).category()) {
    co_return false;  // the client left, or took too long
  } else {
    reply = failure_reply(
        {FailureKind::kInvalidArgument, "this is not an HTTP request: " + error.message(), ""});
  }
  const std::string text = whole_reply(reply, context);
  if (co_await write(stream, text)) co_await discard_rest(stream);
  co_return false;
}

asio::awaitable<void> Server::Impl::discard_rest(beast::tcp_stream& stream) {
  error_code error;
  stream.socket().shutdown(tcp::socket::shutdown_send, error);
  stream.expires_after(kMaxDiscardTime);
  std::vector<char> sink(size_t{64} << 10);
  for (size_t total = 0; total < kMaxDiscardedBytes && !error;) {
    total += co_await stream.async_read_some(asio::buffer(sink),
                                             asio::redirect_error(asio::use_awaitable, error));
  }
}

// False: the client is gone, or did not read for write_timeout.
asio::awaitable<bool> Server::Impl::write(beast::tcp_stream& stream, const std::string& text) {
  error_code error;
  stream.expires_after(config.write_timeout);
  co_await asio::async_write(stream, asio::buffer(text),
                             asio::redirect_error(asio::use_awaitable, error));
  stream.expires_never();
  co_return !error;
}

asio::awaitable<int> Server::Impl::reply_to(beast::tcp_stream& stream, const HttpReply& reply,
                                            ReplyContext& context) {
  const std::string text = whole_reply(reply, context);
  if (!co_await write(stream, text)) context.keep_alive = false;
  co_return reply.status;
}

// Runs a generation to its end and writes its answer; the status written (499 when the client
// left).
asio::awaitable<int> Server::Impl::generate(beast::tcp_stream& stream, GenerationWork work,
                                            ReplyContext& context) {
  constexpr int kClientLeft = 499;
  const WakeScope scope(stream.socket());
  const std::shared_ptr<Wake> wake = scope.get();
  const auto output = std::make_shared<engine::OutputStream>([wake] { wake->notify(); });
  EngineRequests requests(engine);
  for (engine::GenerateRequest& request : work.requests) {
    const auto id = engine.submit(std::move(request), output);
    if (!id.ok()) {
      const HttpReply reply = failure_reply(*work.answer, id.failure());
      co_return co_await reply_to(stream, reply, context);
    }
    requests.add(id.value());
  }
  const Counted counted(api.metrics().num_generating);
  wake->watch();

  Answer& answer = *work.answer;
  bool streaming = false;  // the head is out
  if (context.is_http_1_0 && work.stream) context.keep_alive = false;
  std::string events;
  while (!answer.finished() && answer.failure() == nullptr) {
    std::vector<engine::OutputChunk> chunks = output->take();
    for (engine::OutputChunk& chunk : chunks) answer.take(std::move(chunk), events);
    bool left = wake->client_left();
    if (!left && !events.empty() && !answer.finished()) {
      const std::string text = stream_piece(events, !streaming, context);
      streaming = true;
      events.clear();
      left = !co_await write(stream, text);
    }
    if (left) {
      context.keep_alive = false;
      co_return kClientLeft;
    }
    if (chunks.empty()) co_await wake->wait();
  }
  wake->close();
  error_code ignored;
  stream.socket().cancel(ignored);  // the watch

  if (answer.failure() != nullptr) {
    if (!streaming) {
      const HttpReply reply = failure_reply(answer, *answer.failure());
      co_return co_await reply_to(stream, reply, context);
    }
    answer.fail_stream(events);
  } else {
    requests.finished();
    if (!work.stream) {
      const HttpReply reply{200,
                            answer.whole().dump(-1, ' ', false, Json::error_handler_t::replace),
                            "application/json"};
      co_return co_await reply_to(stream, reply, context);
    }
    answer.end_stream(events);
  }
  std::string last = stream_piece(events, !streaming, context);
  if (!context.is_http_1_0) last += "0\r\n\r\n";
  if (!co_await write(stream, last)) context.keep_alive = false;
  co_return 200;
}

void Server::Impl::note(const tcp::endpoint& remote, const HttpRequest& request, int status,
                        std::chrono::steady_clock::time_point start) {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const std::string handler = api.handler_name(request.path);
  if (!handler.empty()) api.metrics().observe(handler, request.method, status, seconds.count());
  if (!config.access_log) return;
  error_code ignored;
  log::info("{}:{} - \"{} {} HTTP/1.1\" {} {}", remote.address().to_string(ignored), remote.port(),
            request.method, request.path, status,
            status == 499 ? "Client Closed Request" : reason(status));
}

Server::Server(const ServerConfig& config, Listener listener, engine::Engine& engine,
               const Tokenizer& tokenizer, const chat::ChatTemplate& chat_template)
    : impl_(std::make_unique<Impl>(config, std::move(listener), engine, tokenizer, chat_template)) {
  // A connection is a descriptor, and the usual soft limit of 1024 is below what is served.
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

Server::~Server() { stop(); }

void Server::start() {
  CHECK(impl_->threads.empty(), "started twice");
  asio::co_spawn(impl_->io, impl_->accept_loop(), asio::detached);
  for (int i = 0; i < impl_->config.num_io_threads; ++i) {
    impl_->threads.emplace_back([this] { impl_->io.run(); });
  }
}

void Server::stop_accepting() {
  impl_->closing.store(true);
  asio::post(impl_->io, [this] {
    error_code ignored;
    impl_->acceptor.close(ignored);
  });
}

bool Server::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(impl_->busy_mutex);
  return impl_->idle.wait_for(lock, timeout, [&] { return impl_->num_busy == 0; });
}

void Server::stop() {
  impl_->io.stop();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
}

int Server::port() const { return impl_->port; }
int32_t Server::num_connections() const { return impl_->num_connections.load(); }

}  // namespace eyrie::server
