// One client's connection: requests read one after the other, each answered before the next is
// looked at. A coroutine on the connection's strand; private to the room.
#pragma once

#include <utility>  // before asio: Debian's Boost 1.74 forgets it

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "server/api.h"
#include "server/wake.h"

namespace eyrie::server {

// How many requests are between their last byte in and their last byte out. Any thread.
class BusyCount {
 public:
  class Scope {
   public:
    explicit Scope(BusyCount& count) : count_(count) {
      std::lock_guard lock(count_.mutex_);
      ++count_.count_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      std::lock_guard lock(count_.mutex_);
      if (--count_.count_ == 0) count_.idle_.notify_all();
    }

   private:
    BusyCount& count_;
  };
  // False: the time was up first.
  bool wait_idle(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return idle_.wait_for(lock, timeout, [&] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  int32_t count_ = 0;
};

// What all connections of a server share; outlives them.
struct ConnectionContext {
  ConnectionContext(const ServerConfig& server_config, engine::Engine& the_engine,
                    const Tokenizer& tokenizer, const chat::ChatTemplate& chat_template);

  const ServerConfig config;
  engine::Engine& engine;
  Api api;
  const std::unique_ptr<boost::asio::ssl::context> tls;  // null: plain HTTP
  std::shared_ptr<WakeList> wakes;                       // the engine keeps it, too
  boost::asio::thread_pool workers;
  BusyCount busy;
  std::atomic<bool> closing{false};
  std::atomic<int32_t> num_connections{0};
};

// Until the client leaves or the connection ends.
boost::asio::awaitable<void> serve_connection(boost::asio::ip::tcp::socket socket,
                                              ConnectionContext& shared);

}  // namespace eyrie::server
