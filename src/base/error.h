// The world is wrong at start (bad checkpoint, missing file, impossible flag): throw an Error whose
// one sentence names the file, field or flag, the value, and what would be accepted. Caught in main
// and at the engine thread's edge, nowhere between. Expected failures in service are Result values.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace eyrie {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}

  // The same error with what we were doing in front: "loading X: …".
  [[nodiscard]] Error within(const std::string& context) const {
    return Error(context + ": " + what());
  }
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

// Runs fn; an Error that leaves it gets the context in front.
template <typename Fn>
auto with_context(const std::string& context, Fn&& fn) {
  try {
    return std::forward<Fn>(fn)();
  } catch (const Error& error) {
    throw error.within(context);
  }
}

}  // namespace eyrie
