#include "bench/http.h"

#include <curl/curl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "base/check.h"
#include "base/error.h"

namespace eyrie::bench {
namespace {

// curl_global_init is not thread-safe in every build; one static keeps it to one call.
void init_curl_once() {
  static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
  CHECK_EQ(static_cast<int>(code), 0);
}

bool is_loopback_url(std::string_view url) {
  const size_t scheme = url.find("://");
  const std::string_view host = scheme == std::string_view::npos ? url : url.substr(scheme + 3);
  return host.starts_with("127.") || host.starts_with("localhost") || host.starts_with("[::1]") ||
         host.starts_with("0.0.0.0");
}

struct Transfer {
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  std::string body;
  HttpLoop::Callbacks callbacks;
  std::string reason;
  std::array<char, CURL_ERROR_SIZE> error{};

  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer() {
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
  }
};

int status_of(CURL* easy) {
  long status = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  return static_cast<int>(status);
}

size_t on_body(char* bytes, size_t size, size_t count, void* context) {
  auto& transfer = *static_cast<Transfer*>(context);
  if (transfer.callbacks.on_body) {
    transfer.callbacks.on_body(status_of(transfer.easy), {bytes, size * count});
  }
  return size * count;
}

// Keeps the reason phrase of the last status line ("HTTP/1.1 400 Bad Request").
size_t on_header(char* bytes, size_t size, size_t count, void* context) {
  const std::string_view line(bytes, size * count);
  if (line.starts_with("HTTP/")) {
    auto& reason = static_cast<Transfer*>(context)->reason;
    reason.clear();
    const size_t first = line.find(' ');
    const size_t second = first == line.npos ? line.npos : line.find(' ', first + 1);
    if (second != line.npos) reason = line.substr(second + 1);
    while (!reason.empty() && (reason.back() == '\r' || reason.back() == '\n')) reason.pop_back();
  }
  return size * count;
}

template <typename Value>
void set_option(CURL* easy, CURLoption option, Value value) {
  const CURLcode code = curl_easy_setopt(easy, option, value);
  CHECK(code == CURLE_OK, "libcurl option {}: {}", static_cast<int>(option),
        curl_easy_strerror(code));
}

void configure(Transfer& transfer, const HttpRequest& request) {
  CURL* easy = transfer.easy;
  set_option(easy, CURLOPT_URL, request.url.c_str());
  set_option(easy, CURLOPT_NOSIGNAL, 1L);
  set_option(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set_option(easy, CURLOPT_ERRORBUFFER, transfer.error.data());
  set_option(easy, CURLOPT_WRITEFUNCTION, on_body);
  set_option(easy, CURLOPT_WRITEDATA, &transfer);
  set_option(easy, CURLOPT_HEADERFUNCTION, on_header);
  set_option(easy, CURLOPT_HEADERDATA, &transfer);
  set_option(easy, CURLOPT_PRIVATE, &transfer);
  set_option(easy, CURLOPT_TIMEOUT_MS, std::lround(request.timeout_s * 1000.0));
  // A proxy set for the outside world must not sit between the client and this machine.
  if (is_loopback_url(request.url)) set_option(easy, CURLOPT_NOPROXY, "*");
  if (request.insecure) {
    set_option(easy, CURLOPT_SSL_VERIFYPEER, 0L);
    set_option(easy, CURLOPT_SSL_VERIFYHOST, 0L);
  }
  for (const auto& header : request.headers) {
    transfer.headers = curl_slist_append(transfer.headers, header.c_str());
  }
  if (request.method == "POST") {
    transfer.body = request.body;
    set_option(easy, CURLOPT_POST, 1L);
    set_option(easy, CURLOPT_POSTFIELDS, transfer.body.data());
    set_option(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(transfer.body.size()));
    // No "Expect: 100-continue" round trip before a long prompt.
    transfer.headers = curl_slist_append(transfer.headers, "Expect:");
  }
  set_option(easy, CURLOPT_HTTPHEADER, transfer.headers);
}

HttpResult result_of(const Transfer& transfer, CURLcode code) {
  HttpResult result;
  result.status = status_of(transfer.easy);
  result.reason = transfer.reason;
  if (code != CURLE_OK) {
    result.error = transfer.error[0] != '\0' ? transfer.error.data() : curl_easy_strerror(code);
    result.refused = code == CURLE_COULDNT_CONNECT;
  }
  return result;
}

}  // namespace

struct HttpLoop::Impl {
  CURLM* multi = nullptr;
  int epoll_fd = -1;
  bool timer_set = false;
  Clock::time_point timer;
  std::unordered_map<CURL*, std::unique_ptr<Transfer>> active;

  // libcurl says which events it wants from a socket.
  static int on_socket(CURL*, curl_socket_t socket, int what, void* context, void* known) {
    auto& self = *static_cast<Impl*>(context);
    if (what == CURL_POLL_REMOVE) {
      // Fails harmlessly when libcurl has closed the socket already.
      epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, socket, nullptr);
      curl_multi_assign(self.multi, socket, nullptr);
      return 0;
    }
    epoll_event event{};
    event.data.fd = socket;
    if ((what & CURL_POLL_IN) != 0) event.events |= EPOLLIN;
    if ((what & CURL_POLL_OUT) != 0) event.events |= EPOLLOUT;
    const int operation = known == nullptr ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (epoll_ctl(self.epoll_fd, operation, socket, &event) != 0) {
      // A number reused by the system may still be known to epoll, or no longer.
      epoll_ctl(self.epoll_fd, errno == EEXIST ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, socket, &event);
    }
    curl_multi_assign(self.multi, socket, context);
    return 0;
  }

  static int on_timer(CURLM*, long timeout_ms, void* context) {
    auto& self = *static_cast<Impl*>(context);
    self.timer_set = timeout_ms >= 0;
    if (self.timer_set) self.timer = Clock::now() + std::chrono::milliseconds(timeout_ms);
    return 0;
  }

  void act(curl_socket_t socket, int events) {
    int running = 0;
    const CURLMcode code = curl_multi_socket_action(multi, socket, events, &running);
    CHECK(code == CURLM_OK, "libcurl: {}", curl_multi_strerror(code));
  }

  void finish_done() {
    int left = 0;
    while (CURLMsg* message = curl_multi_info_read(multi, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      CURL* easy = message->easy_handle;
      const CURLcode code = message->data.result;
      const auto found = active.find(easy);
      CHECK(found != active.end());
      const std::unique_ptr<Transfer> transfer = std::move(found->second);
      active.erase(found);
      curl_multi_remove_handle(multi, easy);
      if (transfer->callbacks.on_done) transfer->callbacks.on_done(result_of(*transfer, code));
    }
  }
};

HttpLoop::HttpLoop(int max_connections) : impl_(std::make_unique<Impl>()) {
  init_curl_once();
  impl_->multi = curl_multi_init();
  impl_->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  CHECK(impl_->multi != nullptr && impl_->epoll_fd >= 0);
  curl_multi_setopt(impl_->multi, CURLMOPT_SOCKETFUNCTION, &Impl::on_socket);
  curl_multi_setopt(impl_->multi, CURLMOPT_SOCKETDATA, impl_.get());
  curl_multi_setopt(impl_->multi, CURLMOPT_TIMERFUNCTION, &Impl::on_timer);
  curl_multi_setopt(impl_->multi, CURLMOPT_TIMERDATA, impl_.get());
  curl_multi_setopt(impl_->multi, CURLMOPT_MAXCONNECTS, static_cast<long>(max_connections));
}

HttpLoop::~HttpLoop() {
  for (auto& [easy, transfer] : impl_->active) curl_multi_remove_handle(impl_->multi, easy);
  impl_->active.clear();
  curl_multi_cleanup(impl_->multi);
  ::close(impl_->epoll_fd);
}

void HttpLoop::start(const HttpRequest& request, Callbacks callbacks) {
  auto transfer = std::make_unique<Transfer>();
  transfer->easy = curl_easy_init();
  CHECK(transfer->easy != nullptr);
  transfer->callbacks = std::move(callbacks);
  configure(*transfer, request);
  CURL* easy = transfer->easy;
  impl_->active.emplace(easy, std::move(transfer));
  const CURLMcode code = curl_multi_add_handle(impl_->multi, easy);
  CHECK(code == CURLM_OK, "libcurl: {}", curl_multi_strerror(code));
}

int HttpLoop::num_active() const { return static_cast<int>(impl_->active.size()); }

void HttpLoop::step(double timeout_s) {
  if (impl_->timer_set) {
    timeout_s = std::min(timeout_s, seconds_between(Clock::now(), impl_->timer));
  }
  constexpr int kBatch = 256;
  std::array<epoll_event, kBatch> events;
  const int wait_ms = static_cast<int>(std::ceil(std::max(0.0, timeout_s) * 1000.0));
  const int ready = epoll_wait(impl_->epoll_fd, events.data(), kBatch, wait_ms);
  for (int i = 0; i < ready; ++i) {
    const auto& event = events[static_cast<size_t>(i)];
    int flags = 0;
    if ((event.events & EPOLLIN) != 0) flags |= CURL_CSELECT_IN;
    if ((event.events & EPOLLOUT) != 0) flags |= CURL_CSELECT_OUT;
    if ((event.events & (EPOLLERR | EPOLLHUP)) != 0) flags |= CURL_CSELECT_ERR;
    impl_->act(event.data.fd, flags);
  }
  if (impl_->timer_set && Clock::now() >= impl_->timer) {
    impl_->timer_set = false;  // libcurl sets it anew if it wants another call
    impl_->act(CURL_SOCKET_TIMEOUT, 0);
  }
  impl_->finish_done();
}

HttpResponse http_fetch(const HttpRequest& request) {
  HttpResponse response;
  HttpLoop loop(1);
  loop.start(request, {.on_body = [&](int, std::string_view bytes) { response.body += bytes; },
                       .on_done = [&](const HttpResult& result) { response.result = result; }});
  while (loop.num_active() > 0) loop.step(1.0);
  return response;
}

void raise_open_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace eyrie::bench
