// HTTP for the benchmark: many streaming requests on one thread. libcurl does HTTP, TLS and
// keep-alive; epoll tells which of up to a few thousand sockets has news, so a wait costs the
// sockets that are ready and not all of them. That matters because client and server often share
// the cores. Everything here, callbacks included, runs on the thread that calls step().
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace eyrie::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

struct HttpRequest {
  std::string method = "GET";
  std::string url;
  std::string body;                  // sent with POST
  std::vector<std::string> headers;  // "Name: value"
  bool insecure = false;             // do not check the server's certificate
  double timeout_s = 6 * 3600;       // whole exchange
};

struct HttpResult {
  int status = 0;        // 0 when no answer came
  std::string reason;    // reason phrase of the status line
  std::string error;     // why the exchange broke off, empty when it did not
  bool refused = false;  // nobody listens there
};

class HttpLoop {
 public:
  struct Callbacks {
    std::function<void(int status, std::string_view bytes)> on_body;
    std::function<void(const HttpResult&)> on_done;  // exactly once; may start further requests
  };

  // Keeps up to max_connections idle connections for reuse; more may be open at a time.
  explicit HttpLoop(int max_connections);
  ~HttpLoop();
  HttpLoop(const HttpLoop&) = delete;
  HttpLoop& operator=(const HttpLoop&) = delete;

  void start(const HttpRequest& request, Callbacks callbacks);
  int num_active() const;

  // Waits at most timeout_s for news, then runs the callbacks that are due.
  void step(double timeout_s);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct HttpResponse {
  HttpResult result;
  std::string body;
  bool ok() const { return result.error.empty() && result.status == 200; }
};

// One blocking exchange.
HttpResponse http_fetch(const HttpRequest& request);

// Lets this process hold as many sockets as the system allows (the soft limit is often 1024).
void raise_open_file_limit();

}  // namespace eyrie::bench
