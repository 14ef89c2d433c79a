// What may go wrong in service (context too long, bad JSON, queue full) is a value, not an
// exception.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace eyrie {

// The kinds a server maps to one status each.
enum class FailureKind {
  kInvalidArgument,  // 400
  kUnauthorized,     // 401
  kNotFound,         // 404
  kTooLarge,         // 413
  kOverloaded,       // 429, may succeed later
  kUnavailable,      // 503, shutting down or engine dead
  kTimeout,          // 504, took longer than a request may
  kInternal,         // 500
};

struct Failure {
  FailureKind kind = FailureKind::kInvalidArgument;
  std::string message;  // one sentence: field, value, what is accepted
  std::string param;    // the request field at fault, may be empty
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}            // NOLINT: implicit by design
  Result(Failure failure) : state_(std::move(failure)) {}  // NOLINT: implicit by design

  bool ok() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return ok(); }

  T& value() & {
    check();
    return std::get<T>(state_);
  }
  const T& value() const& {
    check();
    return std::get<T>(state_);
  }
  T&& value() && {
    check();
    return std::get<T>(std::move(state_));
  }
  const Failure& failure() const {
    CHECK(!ok());
    return std::get<Failure>(state_);
  }

  T* operator->() { return &value(); }
  T& operator*() & { return value(); }

 private:
  void check() const { CHECK(ok(), "{}", std::get<Failure>(state_).message); }
  std::variant<T, Failure> state_;
};

}  // namespace eyrie
