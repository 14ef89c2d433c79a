// One logger for the process (spdlog underneath), to stderr: "INFO 11-30 13:06:26 [room] message".
// Progress bars and tables are for stdout and are not log lines.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace eyrie::log {

enum class Level { kDebug, kInfo, kWarning, kError, kOff };

void set_level(Level level);
void write(Level level, std::string_view message);

template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace eyrie::log
