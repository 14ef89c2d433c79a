// How the engine thread wakes a connection's coroutine, and how the coroutine learns that its
// client has left while it waits for tokens.
#pragma once

#include <utility>  // before asio: Debian's Boost 1.74 forgets it

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>
#include <mutex>
#include <optional>

namespace eyrie::server {

namespace asio = boost::asio;

// Shared by the coroutine and the engine's OutputStream, which may outlive the connection and even
// the server: after close() nothing of either is held or touched.
class Wake : public std::enable_shared_from_this<Wake> {
 public:
  explicit Wake(asio::ip::tcp::socket& socket)
      : socket_(socket), timer_(std::in_place, socket.get_executor()) {}

  // Any thread. What is posted keeps this object, not the connection, alive.
  void notify() {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    asio::post(timer_->get_executor(), [self = shared_from_this()] { self->wake(); });
  }

  // The rest on the connection's strand only.

  // Begins to watch for the client's end of the connection.
  void watch() {
    socket_.async_wait(asio::ip::tcp::socket::wait_read,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         self->on_readable(error);
                       });
  }

  // Returns after the next notify(), or when the client has left.
  asio::awaitable<void> wait() {
    boost::system::error_code ignored;
    timer_->expires_at(asio::steady_timer::time_point::max());
    co_await timer_->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }

  bool client_left() const { return client_left_; }

  // The connection goes on to other things, or away.
  void close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    timer_.reset();
  }

 private:
  void wake() {
    if (!closed_) timer_->cancel();
  }

  void on_readable(const boost::system::error_code& error) {
    if (closed_ || error == asio::error::operation_aborted) return;
    char byte = 0;
    boost::system::error_code peek_error;
    socket_.non_blocking(true, peek_error);
    const size_t size =
        socket_.receive(asio::buffer(&byte, 1), asio::socket_base::message_peek, peek_error);
    // Bytes are the next request, sent early: it waits its turn, and nobody watches meanwhile.
    if (!peek_error && size > 0) return;
    if (peek_error == asio::error::would_block) {
      watch();
      return;
    }
    client_left_ = true;
    timer_->cancel();
  }

  std::mutex mutex_;
  bool closed_ = false;  // written under the mutex and on the strand
  bool client_left_ = false;
  asio::ip::tcp::socket& socket_;  // of the connection; not touched after close()
  std::optional<asio::steady_timer> timer_;
};

}  // namespace eyrie::server
