// How the engine thread wakes a connection's coroutine, and how the coroutine learns that its
// client has left while it waits for tokens.
#pragma once

#include <poll.h>

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
      : socket_(socket),
        timer_(std::in_place, socket.get_executor()),
        look_again_(std::in_place, socket.get_executor()) {}

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

  // Returns after the next notify(), when the client has left, or at `deadline`.
  asio::awaitable<void> wait(asio::steady_timer::time_point deadline) {
    boost::system::error_code ignored;
    timer_->expires_at(deadline);
    co_await timer_->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }

  bool client_left() const { return client_left_; }

  // The connection goes on to other things, or away.
  void close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    timer_.reset();
    look_again_.reset();
  }

 private:
  void wake() {
    if (!closed_) timer_->cancel();
  }

  void on_readable(const boost::system::error_code& error) {
    if (closed_ || error == asio::error::operation_aborted) return;
    pollfd state{socket_.native_handle(), POLLIN | POLLRDHUP, 0};
    ::poll(&state, 1, 0);
    if ((state.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0) {
      client_left_ = true;
      timer_->cancel();
    } else if ((state.revents & POLLIN) == 0) {
      watch();
    } else {
      // The next request, sent early: it waits its turn, and readability says nothing meanwhile.
      look_again_->expires_after(kLookAgain);
      look_again_->async_wait([self = shared_from_this()](const boost::system::error_code& later) {
        self->on_readable(later);
      });
    }
  }

  static constexpr std::chrono::milliseconds kLookAgain{200};

  std::mutex mutex_;
  bool closed_ = false;  // written under the mutex and on the strand
  bool client_left_ = false;
  asio::ip::tcp::socket& socket_;  // of the connection; not touched after close()
  std::optional<asio::steady_timer> timer_;
  std::optional<asio::steady_timer> look_again_;
};

}  // namespace eyrie::server
