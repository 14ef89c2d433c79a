#include "server/listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"

namespace eyrie::server {
namespace {

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return address.ss_family == AF_INET6
             ? ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port)
             : ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

Listener::Listener(const std::string& host, int port) : host_(host.empty() ? "0.0.0.0" : host) {
  if (port < 0 || port > 65535) fail("--port must be between 0 and 65535, got {}", port);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host_.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) fail("--host {}: {}", host_, gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);

  std::string reason = "no address";
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    const int fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC, info->ai_protocol);
    if (fd < 0) continue;
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) {
      fd_ = fd;
      family_ = info->ai_family;
      port_ = port_of(fd);
      return;
    }
    reason = std::strerror(errno);
    close(fd);
  }
  fail("cannot listen on {}:{}: {}", host_, port, reason);
}

Listener::~Listener() {
  if (fd_ >= 0) close(fd_);
}

Listener::Listener(Listener&& other) noexcept
    : host_(std::move(other.host_)),
      port_(other.port_),
      family_(other.family_),
      fd_(std::exchange(other.fd_, -1)) {}

int Listener::release() { return std::exchange(fd_, -1); }

}  // namespace eyrie::server
