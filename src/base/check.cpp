#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace eyrie {

void check_failed(std::string_view expression, std::string_view detail, const char* file,
                  int line) {
  fmt::print(stderr, "{}:{}: check failed: {}{}{}\n", file, line, expression,
             detail.empty() ? "" : ": ", detail);
  std::fflush(stderr);
  std::abort();
}

}  // namespace eyrie
