#include "bench/machine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

#include "base/human.h"
#include "base/threads.h"

namespace eyrie::bench {
namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

}  // namespace

std::string describe_machine() {
  const auto bytes =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  const int cores = available_cores();
  return fmt::format("{}, {} core{}, {}", cpu_model(), cores, cores == 1 ? "" : "s",
                     human_bytes(bytes));
}

}  // namespace eyrie::bench
