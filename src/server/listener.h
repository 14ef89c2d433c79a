// A bound, listening TCP socket. Made before the model loads, so that a taken port is known at once
// and early clients queue in the backlog until the server answers them.
#pragma once

#include <cstdint>
#include <string>

namespace eyrie::server {

class Listener {
 public:
  // host: an address, a name, or "" and "0.0.0.0" for all IPv4 interfaces, "::" for all. port 0
  // takes a free one. Error names host, port and the reason.
  Listener(const std::string& host, int port);
  ~Listener();
  Listener(Listener&& other) noexcept;
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const std::string& host() const { return host_; }
  int port() const { return port_; }
  int family() const { return family_; }  // AF_INET or AF_INET6
  int release();                          // the descriptor; the caller closes it

 private:
  std::string host_;
  int port_ = 0;
  int family_ = 0;
  int fd_ = -1;
};

}  // namespace eyrie::server
