// Small integer helpers, by name.
#pragma once

#include <cstdint>
#include <limits>

#include "base/check.h"

namespace eyrie {

constexpr int64_t div_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t align_up(int64_t a, int64_t multiple) { return div_ceil(a, multiple) * multiple; }

template <typename To, typename From>
To checked_narrow(From value) {
  const To narrowed = static_cast<To>(value);
  CHECK(static_cast<From>(narrowed) == value && ((narrowed < To{}) == (value < From{})),
        "{} does not fit", value);
  return narrowed;
}

}  // namespace eyrie
