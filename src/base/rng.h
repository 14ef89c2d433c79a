// Counter-based noise: a value depends only on (seed, position, lane), never on how many were drawn
// before. That is what lets a seeded request give the same text with and without drafts, alone or
// in a batch. Generator: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", SC'11), checked in rng_test against the authors' published vectors.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace eyrie {

using PhiloxBlock = std::array<uint32_t, 4>;

inline PhiloxBlock philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  constexpr uint32_t kMul0 = 0xD2511F53, kMul1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kMul0} * counter[0];
    const uint64_t p1 = uint64_t{kMul1} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// The noise of one request: block(position, lane) gives four 32-bit words.
class NoiseStream {
 public:
  explicit NoiseStream(uint64_t seed)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)} {}

  PhiloxBlock block(uint64_t position, uint64_t lane) const {
    return philox4x32({static_cast<uint32_t>(lane), static_cast<uint32_t>(lane >> 32),
                       static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32)},
                      key_);
  }

 private:
  std::array<uint32_t, 2> key_;
};

// (0, 1): never 0, so a logarithm of it is finite.
inline double uniform_open(uint32_t high, uint32_t low) {
  const uint64_t bits = ((uint64_t{high} << 32) | low) >> 12;  // 52 bits
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-52;
}

}  // namespace eyrie
