#include "server/server.h"

#include <sys/resource.h>

#include <utility>  // before asio: Debian's Boost 1.74 forgets it

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "server/connection.h"

namespace eyrie::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;

}  // namespace

struct Server::Impl {
  Impl(const ServerConfig& config, Listener listener, engine::Engine& engine,
       const Tokenizer& tokenizer, const chat::ChatTemplate& chat_template)
      : shared(config, engine, tokenizer, chat_template),
        io(config.num_io_threads),
        acceptor(io),
        port(listener.port()) {
    const auto protocol = listener.family() == AF_INET6 ? tcp::v6() : tcp::v4();
    acceptor.assign(protocol, listener.release());
    shared.wakes = std::make_shared<WakeList>(io.get_executor());
    engine.set_turn_handler([wakes = shared.wakes] { wakes->wake_all(); });
  }

  asio::awaitable<void> accept_loop();
  // What a connection does happens one thing after the other. One I/O thread sees to that by
  // itself, without the cost of a strand for every token.
  asio::any_io_executor connection_executor() {
    if (shared.config.num_io_threads == 1) return io.get_executor();
    return asio::make_strand(io);
  }

  ConnectionContext shared;  // before io: coroutines that never ended go with io
  asio::io_context io;
  tcp::acceptor acceptor;
  const int port;
  std::vector<std::thread> threads;
};

asio::awaitable<void> Server::Impl::accept_loop() {
  while (acceptor.is_open()) {
    error_code error;
    tcp::socket socket(connection_executor());
    co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) co_return;
    if (error) {
      // Out of descriptors, most likely: connections wait in the backlog until some are closed.
      log::warning("cannot accept a connection: {}", error.message());
      asio::steady_timer pause(co_await asio::this_coro::executor, std::chrono::milliseconds(50));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
      continue;
    }
    if (shared.num_connections.load() >= shared.config.max_connections) continue;  // closes it
    const auto executor = socket.get_executor();
    asio::co_spawn(executor, serve_connection(std::move(socket), shared), asio::detached);
  }
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
  for (int i = 0; i < impl_->shared.config.num_io_threads; ++i) {
    impl_->threads.emplace_back([this] { impl_->io.run(); });
  }
}

void Server::stop_accepting() {
  impl_->shared.closing.store(true);
  asio::post(impl_->io, [this] {
    error_code ignored;
    impl_->acceptor.close(ignored);
  });
}

bool Server::drain(std::chrono::milliseconds timeout) {
  return impl_->shared.busy.wait_idle(timeout);
}

void Server::stop() {
  impl_->io.stop();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
  impl_->shared.wakes->close();
  impl_->shared.workers.join();  // what they work on belongs to coroutines that still exist
}

int Server::port() const { return impl_->port; }
int32_t Server::num_connections() const { return impl_->shared.num_connections.load(); }

}  // namespace eyrie::server
