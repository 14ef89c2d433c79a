// The program's version, as reported by --version, /version and log lines.
#pragma once

#include <string_view>

namespace eyrie {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace eyrie
