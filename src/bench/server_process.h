// A server started and stopped by the sweep. Its output goes to a log file; the process ends with
// the sweep, however that ends.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace eyrie::bench {

class ServerProcess {
 public:
  // Starts argv[0] with the rest as arguments.
  ServerProcess(const std::vector<std::string>& argv, const std::string& log_path);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // Returns the seconds until GET url answered 200. Error with the log's last lines when the
  // process ends first, or when it takes longer than timeout_s.
  double wait_ready(const std::string& url, double timeout_s);

  // SIGTERM, then SIGKILL after timeout_s. The exit code, or 128 + signal.
  int stop(double timeout_s);

 private:
  bool ended();  // reaps
  std::string log_tail() const;

  pid_t pid_ = -1;
  int exit_code_ = -1;
  std::string name_;
  std::string log_path_;
};

int find_free_port();

// This program's executable.
std::string own_executable();

}  // namespace eyrie::bench
