// FNV-1a: a short name for a long text, to see whether two texts are the same. Not for security.
#pragma once

#include <cstdint>
#include <string_view>

namespace eyrie::bench {

inline constexpr uint64_t kFnvStart = 14695981039346656037ULL;

// Goes on from an earlier hash, so that pieces can be hashed one after the other.
inline uint64_t fnv1a(std::string_view text, uint64_t hash = kFnvStart) {
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 1099511628211ULL;
  }
  return hash;
}

}  // namespace eyrie::bench
