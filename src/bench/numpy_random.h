// The random numbers numpy and Python's random would give for the same seed, bit for bit, so that
// `--seed 0` here asks a server for the very lengths and prompts that vLLM's client asks for.
// Algorithms: SeedSequence and PCG64 (O'Neill), MT19937 (Matsumoto and Nishimura), bounded integers
// by Lemire's multiply-shift, gamma by Marsaglia–Tsang (shape > 1) and Ahrens–Dieter (shape < 1).
// The tests hold vectors drawn with numpy 2 and CPython 3.11. Value types, not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace eyrie::bench {

__extension__ typedef unsigned __int128 uint128;  // NOLINT(modernize-use-using)

// numpy.random.default_rng(seed)
class NumpyGenerator {
 public:
  explicit NumpyGenerator(uint64_t seed);

  uint64_t next64();
  uint32_t next32();  // low half of a 64-bit word first; the high half is kept for the next call

  // integers(low, high): uniform in [low, high). A range of one value draws nothing.
  int64_t integer(int64_t low, int64_t high);
  std::vector<int64_t> integers(int64_t low, int64_t high, int64_t count);

 private:
  uint128 state_ = 0;
  uint128 increment_ = 0;
  bool has_half_ = false;
  uint32_t half_ = 0;
};

// The generator under numpy.random.seed(s) and under Python's random.seed(s); they differ in how
// the seed fills the state and in what they make of the words.
class MersenneTwister {
 public:
  static MersenneTwister numpy_seed(uint32_t seed);
  static MersenneTwister python_seed(uint64_t seed);

  uint32_t next32();
  double next_double();  // [0, 1) with 53 bits

  // numpy.random.randint(low, high): masked rejection.
  int64_t numpy_randint(int64_t low, int64_t high);
  std::vector<int64_t> numpy_randints(int64_t low, int64_t high, int64_t count);
  double numpy_gamma(double shape, double scale);

  // Python: random.shuffle as a permutation of 0..n-1, random.choices as indices.
  std::vector<int64_t> python_shuffle(int64_t n);
  std::vector<int64_t> python_choices(int64_t n, int64_t count);

 private:
  void fill(uint32_t seed);
  double exponential();
  double gauss();
  uint32_t python_below(uint32_t n);

  std::array<uint32_t, 624> words_{};
  int next_word_ = 624;
  bool has_gauss_ = false;
  double kept_gauss_ = 0.0;
};

}  // namespace eyrie::bench
