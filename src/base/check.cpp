#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace eyrie {

void check_failed(std::string_view expression, std::string_view detail,
                  const std::source_location& where) {
  fmt::print(stderr, "{}:{}: check failed: {}{}{}\n", where.file_name(), where.line(), expression,
             detail.empty() ? "" : ": ", detail);
  std::fflush(stderr);
  std::abort();
}

}  // namespace eyrie
