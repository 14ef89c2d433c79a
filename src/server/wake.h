// How the engine thread wakes the coroutines of connections, and how a coroutine learns that its
// client has left while it waits for tokens.
#pragma once

#include <poll.h>

#include <utility>  // before asio: Debian's Boost 1.74 forgets it

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace eyrie::server {

namespace asio = boost::asio;

// Shared by the coroutine and the engine's OutputStream, which may outlive the connection and even
// the server: after close() nothing of either is held or touched.
class Wake : public std::enable_shared_from_this<Wake> {
 public:
  // A wait ends at `deadline` at the latest.
  Wake(asio::ip::tcp::socket& socket, asio::steady_timer::time_point deadline)
      : socket_(socket),
        timer_(std::in_place, socket.get_executor(), deadline),
        look_again_(std::in_place, socket.get_executor()) {}

  // An I/O thread.
  void wake() {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    asio::dispatch(timer_->get_executor(), [self = shared_from_this()] { self->end_wait(); });
  }

  // The rest on the connection's strand only.

  // Begins to watch for the client's end of the connection.
  void watch() {
    socket_.async_wait(asio::ip::tcp::socket::wait_read,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         self->on_readable(error);
                       });
  }

  // Returns after the next wake(), when the client has left, or at the deadline.
  asio::awaitable<void> wait() {
    boost::system::error_code ignored;
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
  void end_wait() {
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

// Whom a turn of the engine has something for. They are woken by one message to the I/O threads at
// the turn's end: a message for each would have the two threads take turns on a core, token by
// token, which costs more than all else of a token but its system call.
class WakeList {
 public:
  explicit WakeList(asio::any_io_executor io) : io_(std::move(io)) {}

  // The engine thread.
  void add(std::shared_ptr<Wake> wake) { noted_.push_back(std::move(wake)); }
  void wake_all() {
    if (noted_.empty()) return;
    std::lock_guard lock(mutex_);
    if (!closed_) {
      asio::post(io_, [wakes = std::exchange(noted_, {})] {
        for (const std::shared_ptr<Wake>& wake : wakes) wake->wake();
      });
    }
    noted_.clear();
  }

  // The I/O threads have ended. Any thread.
  void close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }

 private:
  std::vector<std::shared_ptr<Wake>> noted_;  // of the turn at hand; the engine thread's
  std::mutex mutex_;
  bool closed_ = false;
  asio::any_io_executor io_;  // of an io_context: may be dropped after it is gone
};

}  // namespace eyrie::server
