#include "checkpoint/dummy.h"

namespace eyrie::checkpoint {
namespace {

// splitmix64: eight well-mixed bytes a step, so making gigabytes takes seconds.
uint64_t next_word(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Near enough to a normal for a load test: the sum of four uniform bytes, mean 510, variance
// 4·(256² − 1)/12.
float bell(uint32_t sum) {
  constexpr float kScale = kDummyStddev / 147.801f;
  return (static_cast<float>(sum) - 510.0f) * kScale;
}

// The sums of the four bytes of each half of a word, in the lowest bits of the halves.
uint64_t byte_sums(uint64_t word) {
  constexpr uint64_t kEvenBytes = 0x00ff00ff00ff00ff;
  const uint64_t pairs = (word & kEvenBytes) + ((word >> 8) & kEvenBytes);
  return (pairs + (pairs >> 16)) & 0x0000ffff0000ffff;
}

}  // namespace

// FNV-1a.
uint64_t name_hash(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

void dummy_row(std::string_view name, int64_t row, std::span<float> out) {
  uint64_t state = name_hash(name) + static_cast<uint64_t>(row) * 0xd1342543de82ef95u;
  for (size_t i = 0; i < out.size(); i += 2) {
    const uint64_t sums = byte_sums(next_word(&state));
    out[i] = bell(static_cast<uint32_t>(sums));
    if (i + 1 < out.size()) out[i + 1] = bell(static_cast<uint32_t>(sums >> 32));
  }
}

float dummy_constant(std::string_view name) { return name.ends_with("bias") ? 0.0f : 1.0f; }

}  // namespace eyrie::checkpoint
