// A client's byte stream: TCP, or TLS over it. Has what Beast and Asio ask of a stream, so readers
// and writers of HTTP do not know which. On the connection's strand.
#pragma once

#include <sys/socket.h>

#include <utility>  // before asio: Debian's Boost 1.74 forgets it

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <chrono>
#include <optional>

namespace eyrie::server {

namespace asio = boost::asio;

class Stream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;

  // tls: null for plain TCP; outlives the stream.
  Stream(asio::ip::tcp::socket socket, asio::ssl::context* tls) : tcp_(std::move(socket)) {
    if (tls != nullptr) tls_.emplace(tcp_, *tls);
  }

  executor_type get_executor() noexcept { return tcp_.get_executor(); }
  boost::beast::tcp_stream& tcp() { return tcp_; }
  asio::ip::tcp::socket& socket() { return tcp_.socket(); }
  // Of the operations that follow; past it they fail and the connection is closed.
  void expires_after(std::chrono::steady_clock::duration time) { tcp_.expires_after(time); }
  void expires_never() { tcp_.expires_never(); }

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    if (tls_) return tls_->async_read_some(buffers, std::forward<Token>(token));
    return tcp_.async_read_some(buffers, std::forward<Token>(token));
  }
  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    if (tls_) return tls_->async_write_some(buffers, std::forward<Token>(token));
    return tcp_.async_write_some(buffers, std::forward<Token>(token));
  }

  // Writes what the socket takes without waiting; how much that is. Most events of a stream go this
  // way, for a third of what an asynchronous write with its timer costs. Errors show in the write
  // of the rest; TLS always goes there.
  size_t write_now(const char* data, size_t size) {
    if (tls_) return 0;
    const ssize_t sent =
        ::send(tcp_.socket().native_handle(), data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent > 0 ? static_cast<size_t>(sent) : 0;
  }

  // Before anything is read. False: the client does not speak TLS as configured.
  asio::awaitable<bool> open() {
    boost::system::error_code error;
    if (tls_) {
      tcp_.expires_after(kHandshakeTime);
      co_await tls_->async_handshake(asio::ssl::stream_base::server,
                                     asio::redirect_error(asio::use_awaitable, error));
    }
    co_return !error;
  }

  // Says that nothing follows: a TLS client must be able to tell the end from a cut.
  asio::awaitable<void> finish() {
    boost::system::error_code ignored;
    if (tls_) {
      tcp_.expires_after(kGoodbyeTime);
      co_await tls_->async_shutdown(asio::redirect_error(asio::use_awaitable, ignored));
    }
    tcp_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  }

 private:
  static constexpr std::chrono::seconds kHandshakeTime{30};
  static constexpr std::chrono::seconds kGoodbyeTime{1};

  boost::beast::tcp_stream tcp_;
  std::optional<asio::ssl::stream<boost::beast::tcp_stream&>> tls_;
};

}  // namespace eyrie::server
