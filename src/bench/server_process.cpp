#include "bench/server_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/mapped_file.h"
#include "bench/http.h"
#include "bench/shell_words.h"

namespace eyrie::bench {
namespace {

constexpr useconds_t kPollMicros = 20'000;

}  // namespace

ServerProcess::ServerProcess(const std::vector<std::string>& argv, const std::string& log_path)
    : name_(join_shell_words(argv)), log_path_(log_path) {
  const int log = ::open(log_path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (log < 0) fail("cannot write the server's log {}: {}", log_path, std::strerror(errno));
  std::vector<char*> arguments;
  for (const auto& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) fail("cannot start {}: {}", argv[0], std::strerror(errno));
  if (pid_ == 0) {
    // The child: only async-signal-safe calls until exec.
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(127);
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
    ::execvp(arguments[0], arguments.data());
    const char* reason = std::strerror(errno);
    [[maybe_unused]] auto written = ::write(STDERR_FILENO, reason, std::strlen(reason));
    ::_exit(127);
  }
  ::close(log);
}

ServerProcess::~ServerProcess() {
  constexpr double kPatience = 5.0;
  if (pid_ > 0) stop(kPatience);
}

bool ServerProcess::ended() {
  if (pid_ < 0) return true;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  pid_ = -1;
  return true;
}

double ServerProcess::wait_ready(const std::string& url, double timeout_s) {
  const auto begin = Clock::now();
  HttpRequest request;
  request.url = url;
  request.timeout_s = 5.0;
  while (true) {
    if (http_fetch(request).ok()) return seconds_between(begin, Clock::now());
    if (ended()) {
      fail("the server ended with code {} before it was ready\n  command: {}\n{}", exit_code_,
           name_, log_tail());
    }
    if (seconds_between(begin, Clock::now()) > timeout_s) {
      fail("the server was not ready after {} s\n  command: {}\n{}", timeout_s, name_, log_tail());
    }
    ::usleep(kPollMicros);
  }
}

int ServerProcess::stop(double timeout_s) {
  if (ended()) return exit_code_;
  ::kill(pid_, SIGTERM);
  const auto begin = Clock::now();
  while (!ended()) {
    if (seconds_between(begin, Clock::now()) > timeout_s) ::kill(pid_, SIGKILL);
    ::usleep(kPollMicros);
  }
  return exit_code_;
}

std::string ServerProcess::log_tail() const {
  constexpr size_t kBytes = 2000;
  std::string text = read_text_file(log_path_);
  if (text.size() > kBytes) {
    const size_t line = text.find('\n', text.size() - kBytes);
    text = text.substr(line == std::string::npos ? text.size() - kBytes : line + 1);
  }
  return "  log " + log_path_ + (text.empty() ? " is empty" : " ends:\n" + text);
}

int find_free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool ok = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int port = ntohs(address.sin_port);
  if (fd >= 0) ::close(fd);
  if (!ok) fail("no free port on 127.0.0.1: {}", std::strerror(errno));
  return port;
}

std::string own_executable() {
  std::error_code code;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", code);
  if (code) fail("/proc/self/exe: {}", code.message());
  return path.string();
}

}  // namespace eyrie::bench
