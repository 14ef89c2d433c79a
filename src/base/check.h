// Checks of invariants: a failed one is a bug of ours, so it prints both values, the expression and
// the place, and aborts. CHECK stays on in release builds; DCHECK is for hot loops and debug
// builds. A wrong file or flag is not a bug: throw eyrie::Error (base/error.h).
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace eyrie {

[[noreturn]] void check_failed(std::string_view expression, std::string_view detail,
                               const char* file, int line);

namespace detail {
template <typename A, typename B>
[[noreturn]] void check_op_failed(std::string_view expression, const A& a, const B& b,
                                  const char* file, int line) {
  check_failed(expression, fmt::format("{} vs {}", a, b), file, line);
}
}  // namespace detail

}  // namespace eyrie

// CHECK(condition) or CHECK(condition, "format {}", value)
#define CHECK(condition, ...)                                                               \
  do {                                                                                      \
    if (!(condition)) [[unlikely]] {                                                        \
      ::eyrie::check_failed(#condition, ::fmt::format("" __VA_ARGS__), __FILE__, __LINE__); \
    }                                                                                       \
  } while (false)

#define EYRIE_CHECK_OP(a, op, b)                                                                   \
  do {                                                                                             \
    const auto& check_a_ = (a);                                                                    \
    const auto& check_b_ = (b);                                                                    \
    if (!(check_a_ op check_b_)) [[unlikely]] {                                                    \
      ::eyrie::detail::check_op_failed(#a " " #op " " #b, check_a_, check_b_, __FILE__, __LINE__); \
    }                                                                                              \
  } while (false)

#define CHECK_EQ(a, b) EYRIE_CHECK_OP(a, ==, b)
#define CHECK_NE(a, b) EYRIE_CHECK_OP(a, !=, b)
#define CHECK_LT(a, b) EYRIE_CHECK_OP(a, <, b)
#define CHECK_LE(a, b) EYRIE_CHECK_OP(a, <=, b)
#define CHECK_GT(a, b) EYRIE_CHECK_OP(a, >, b)
#define CHECK_GE(a, b) EYRIE_CHECK_OP(a, >=, b)

#ifdef NDEBUG
#define DCHECK(condition, ...) \
  do {                         \
  } while (false && (condition))
#else
#define DCHECK(condition, ...) CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
