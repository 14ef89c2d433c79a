#include "bench/numpy_random.h"

#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"

namespace eyrie::bench {
namespace {

constexpr int kPoolWords = 4;

// The hash of numpy's SeedSequence: its constant moves on with every word it has seen.
class SeedHash {
 public:
  SeedHash(uint32_t start, uint32_t multiplier) : constant_(start), multiplier_(multiplier) {}
  uint32_t operator()(uint32_t value) {
    value ^= constant_;
    constant_ *= multiplier_;
    value *= constant_;
    return value ^ (value >> 16);
  }

 private:
  uint32_t constant_;
  uint32_t multiplier_;
};

uint32_t seed_mix(uint32_t x, uint32_t y) {
  const uint32_t mixed = 0xca01f9ddU * x - 0x4973f715U * y;
  return mixed ^ (mixed >> 16);
}

// Four 64-bit words of state from a seed of at most 64 bits (SeedSequence(seed).generate_state).
std::array<uint64_t, 4> seed_sequence(uint64_t seed) {
  const std::array<uint32_t, kPoolWords> entropy = {static_cast<uint32_t>(seed),
                                                    static_cast<uint32_t>(seed >> 32), 0, 0};
  std::array<uint32_t, kPoolWords> pool{};
  SeedHash in(0x43b0d7e5U, 0x931e8875U);
  for (size_t i = 0; i < kPoolWords; ++i) pool[i] = in(entropy[i]);
  for (size_t source = 0; source < kPoolWords; ++source) {
    for (size_t target = 0; target < kPoolWords; ++target) {
      if (source != target) pool[target] = seed_mix(pool[target], in(pool[source]));
    }
  }
  std::array<uint64_t, 4> state{};
  SeedHash out(0x8b51f9ddU, 0x58f38dedU);
  for (size_t i = 0; i < 8; ++i) {
    const uint64_t word = out(pool[i % kPoolWords]);
    state[i / 2] |= word << (32 * (i % 2));
  }
  return state;
}

constexpr uint128 kPcgMultiplier = (uint128{0x2360ED051FC65DA4ULL} << 64) | 0x4385DF649FCCF645ULL;

}  // namespace

NumpyGenerator::NumpyGenerator(uint64_t seed) {
  const auto words = seed_sequence(seed);
  const uint128 start = (uint128{words[0]} << 64) | words[1];
  const uint128 stream = (uint128{words[2]} << 64) | words[3];
  increment_ = (stream << 1) | 1;
  state_ = (increment_ + start) * kPcgMultiplier + increment_;
}

uint64_t NumpyGenerator::next64() {
  state_ = state_ * kPcgMultiplier + increment_;
  const auto high = static_cast<uint64_t>(state_ >> 64);
  const auto low = static_cast<uint64_t>(state_);
  return std::rotr(high ^ low, static_cast<int>(high >> 58));
}

uint32_t NumpyGenerator::next32() {
  if (has_half_) {
    has_half_ = false;
    return half_;
  }
  const uint64_t word = next64();
  has_half_ = true;
  half_ = static_cast<uint32_t>(word >> 32);
  return static_cast<uint32_t>(word);
}

int64_t NumpyGenerator::integer(int64_t low, int64_t high) {
  CHECK_LT(low, high);
  const auto span = static_cast<uint64_t>(high - low - 1);
  CHECK(span < std::numeric_limits<uint32_t>::max(), "range of {} values", span);
  if (span == 0) return low;
  const auto count = static_cast<uint32_t>(span + 1);
  uint64_t product = uint64_t{next32()} * count;
  if (static_cast<uint32_t>(product) < count) {
    const uint32_t threshold = (std::numeric_limits<uint32_t>::max() - (count - 1)) % count;
    while (static_cast<uint32_t>(product) < threshold) product = uint64_t{next32()} * count;
  }
  return low + static_cast<int64_t>(product >> 32);
}

std::vector<int64_t> NumpyGenerator::integers(int64_t low, int64_t high, int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  for (auto& value : values) value = integer(low, high);
  return values;
}

void MersenneTwister::fill(uint32_t seed) {
  for (uint32_t i = 0; i < words_.size(); ++i) {
    words_[i] = seed;
    seed = 1812433253U * (seed ^ (seed >> 30)) + i + 1;
  }
  next_word_ = static_cast<int>(words_.size());
}

MersenneTwister MersenneTwister::numpy_seed(uint32_t seed) {
  MersenneTwister twister;
  twister.fill(seed);
  return twister;
}

// Python seeds by an array of words (the generator's "init by array"), even for small numbers.
MersenneTwister MersenneTwister::python_seed(uint64_t seed) {
  std::vector<uint32_t> key = {static_cast<uint32_t>(seed)};
  if (seed >> 32 != 0) key.push_back(static_cast<uint32_t>(seed >> 32));
  MersenneTwister twister;
  twister.fill(19650218U);
  auto& words = twister.words_;
  const auto previous = [&](size_t i) { return words[i - 1] ^ (words[i - 1] >> 30); };
  size_t i = 1;
  const auto advance = [&] {
    if (++i == words.size()) {
      words[0] = words.back();
      i = 1;
    }
  };
  for (size_t step = 0; step < words.size(); ++step) {
    const size_t k = step % key.size();
    words[i] = (words[i] ^ (previous(i) * 1664525U)) + key[k] + static_cast<uint32_t>(k);
    advance();
  }
  for (size_t step = 0; step + 1 < words.size(); ++step) {
    words[i] = (words[i] ^ (previous(i) * 1566083941U)) - static_cast<uint32_t>(i);
    advance();
  }
  words[0] = 0x80000000U;
  return twister;
}

uint32_t MersenneTwister::next32() {
  constexpr size_t kSize = 624, kShift = 397;
  if (next_word_ == static_cast<int>(kSize)) {
    for (size_t i = 0; i < kSize; ++i) {
      const uint32_t joined = (words_[i] & 0x80000000U) | (words_[(i + 1) % kSize] & 0x7fffffffU);
      words_[i] =
          words_[(i + kShift) % kSize] ^ (joined >> 1) ^ ((joined & 1U) != 0 ? 0x9908b0dfU : 0U);
    }
    next_word_ = 0;
  }
  uint32_t word = words_[static_cast<size_t>(next_word_++)];
  word ^= word >> 11;
  word ^= (word << 7) & 0x9d2c5680U;
  word ^= (word << 15) & 0xefc60000U;
  return word ^ (word >> 18);
}

double MersenneTwister::next_double() {
  const uint32_t high = next32() >> 5;
  const uint32_t low = next32() >> 6;
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

int64_t MersenneTwister::numpy_randint(int64_t low, int64_t high) {
  CHECK_LT(low, high);
  const auto span = static_cast<uint64_t>(high - low - 1);
  CHECK(span <= std::numeric_limits<uint32_t>::max(), "range of {} values", span);
  if (span == 0) return low;
  const auto mask = static_cast<uint32_t>((uint64_t{1} << std::bit_width(span)) - 1);
  uint32_t word = next32() & mask;
  while (word > span) word = next32() & mask;
  return low + word;
}

std::vector<int64_t> MersenneTwister::numpy_randints(int64_t low, int64_t high, int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  for (auto& value : values) value = numpy_randint(low, high);
  return values;
}

double MersenneTwister::exponential() { return -std::log(1.0 - next_double()); }

// Polar method; the pair's first value is kept, its second returned first, as numpy does.
double MersenneTwister::gauss() {
  if (has_gauss_) {
    has_gauss_ = false;
    return kept_gauss_;
  }
  double x = 0.0, y = 0.0, norm = 0.0;
  do {
    x = 2.0 * next_double() - 1.0;
    y = 2.0 * next_double() - 1.0;
    norm = x * x + y * y;
  } while (norm >= 1.0 || norm == 0.0);
  const double factor = std::sqrt(-2.0 * std::log(norm) / norm);
  kept_gauss_ = factor * x;
  has_gauss_ = true;
  return factor * y;
}

double MersenneTwister::numpy_gamma(double shape, double scale) {
  CHECK(shape > 0.0 && scale >= 0.0, "gamma({}, {})", shape, scale);
  if (shape == 1.0) return scale * exponential();
  if (shape < 1.0) {
    while (true) {
      const double uniform = next_double();
      const double bound = exponential();
      if (uniform <= 1.0 - shape) {
        const double candidate = std::pow(uniform, 1.0 / shape);
        if (candidate <= bound) return scale * candidate;
      } else {
        const double excess = -std::log((1.0 - uniform) / shape);
        const double candidate = std::pow(1.0 - shape + shape * excess, 1.0 / shape);
        if (candidate <= bound + excess) return scale * candidate;
      }
    }
  }
  const double d = shape - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    double normal = 0.0, root = 0.0;
    do {
      normal = gauss();
      root = 1.0 + c * normal;
    } while (root <= 0.0);
    const double cube = root * root * root;
    const double uniform = next_double();
    const double square = normal * normal;
    if (uniform < 1.0 - 0.0331 * square * square) return scale * d * cube;
    if (std::log(uniform) < 0.5 * square + d * (1.0 - cube + std::log(cube))) {
      return scale * d * cube;
    }
  }
}

uint32_t MersenneTwister::python_below(uint32_t n) {
  const int bits = std::bit_width(n);
  uint32_t value = next32() >> (32 - bits);
  while (value >= n) value = next32() >> (32 - bits);
  return value;
}

std::vector<int64_t> MersenneTwister::python_shuffle(int64_t n) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  for (size_t i = order.size(); i-- > 1;) {
    std::swap(order[i], order[python_below(static_cast<uint32_t>(i + 1))]);
  }
  return order;
}

std::vector<int64_t> MersenneTwister::python_choices(int64_t n, int64_t count) {
  std::vector<int64_t> picks(static_cast<size_t>(count));
  for (auto& pick : picks) {
    pick = static_cast<int64_t>(std::floor(next_double() * static_cast<double>(n)));
  }
  return picks;
}

}  // namespace eyrie::bench
