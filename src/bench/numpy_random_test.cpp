#include "bench/numpy_random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

// Every expected number here was printed by numpy 2.4 or CPython 3.11, or is a vector of vLLM's
// client for --seed 0 --num-prompts 40 --random-input-len 1024 --random-range-ratio 0.8.
namespace eyrie::bench {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

std::vector<int64_t> head(const std::vector<int64_t>& values, size_t n) {
  return {values.begin(), values.begin() + static_cast<int64_t>(n)};
}

TEST(NumpyGeneratorTest, RawWordsEqualPcg64) {
  NumpyGenerator zero(0);
  EXPECT_EQ(zero.next64(), 11749869230777074271ULL);
  EXPECT_EQ(zero.next64(), 4976686463289251617ULL);
  EXPECT_EQ(zero.next64(), 755828109848996024ULL);
  NumpyGenerator wide(12345678901234ULL);  // a seed of two 32-bit words
  EXPECT_EQ(wide.next64(), 7496343037614434180ULL);
  EXPECT_EQ(wide.next64(), 483370428031952295ULL);
}

TEST(NumpyGeneratorTest, DrawsTheLengthsOfTheReferenceRun) {
  NumpyGenerator rng(0);
  const auto inputs = rng.integers(204, 1845, 40);
  const auto outputs = rng.integers(204, 1845, 40);
  const auto offsets = rng.integers(0, 163840, 40);
  EXPECT_THAT(head(inputs, 8), ElementsAre(1599, 1249, 1042, 646, 709, 271, 327, 231));
  EXPECT_EQ(std::accumulate(inputs.begin(), inputs.end(), int64_t{0}), 40409);
  EXPECT_THAT(head(outputs, 8), ElementsAre(865, 250, 212, 407, 217, 1304, 1066, 1266));
  EXPECT_EQ(std::accumulate(outputs.begin(), outputs.end(), int64_t{0}), 43822);
  EXPECT_THAT(head(offsets, 8),
              ElementsAre(110221, 93639, 41714, 52735, 117884, 97370, 82643, 55363));
}

TEST(NumpyGeneratorTest, ARangeOfOneValueDrawsNothing) {
  NumpyGenerator rng(0);
  EXPECT_THAT(rng.integers(1024, 1025, 3), ElementsAre(1024, 1024, 1024));
  EXPECT_THAT(rng.integers(0, 163840, 8),
              ElementsAre(139366, 104359, 83744, 44201, 50434, 6713, 12327, 2707));
}

TEST(NumpyGeneratorTest, KeepsTheHalfWordAcrossRanges) {
  NumpyGenerator rng(42);
  EXPECT_THAT(rng.integers(0, 7, 5), ElementsAre(0, 5, 4, 3, 3));
  EXPECT_THAT(rng.integers(0, (int64_t{1} << 31) + 5, 4),
              ElementsAre(184566854, 432652534, 202244314, 1130605000));
}

TEST(MersenneTwisterTest, LegacyRandintEqualsNumpy) {
  auto rng = MersenneTwister::numpy_seed(0);
  const auto inputs = rng.numpy_randints(819, 1025, 40);
  const auto outputs = rng.numpy_randints(819, 1025, 40);
  const auto offsets = rng.numpy_randints(0, 163840, 40);
  EXPECT_THAT(head(inputs, 8), ElementsAre(991, 866, 936, 1011, 886, 1014, 922, 828));
  EXPECT_EQ(std::accumulate(inputs.begin(), inputs.end(), int64_t{0}), 37068);
  EXPECT_THAT(head(outputs, 8), ElementsAre(851, 1012, 828, 1004, 946, 851, 850, 1021));
  EXPECT_EQ(std::accumulate(outputs.begin(), outputs.end(), int64_t{0}), 36709);
  EXPECT_THAT(head(offsets, 8),
              ElementsAre(63360, 9781, 150412, 27257, 147370, 12372, 135492, 111366));
}

TEST(MersenneTwisterTest, GammaEqualsNumpyForEveryShape) {
  const auto draw = [](double shape, double scale, int count) {
    auto rng = MersenneTwister::numpy_seed(0);
    std::vector<double> values;
    for (int i = 0; i < count; ++i) values.push_back(rng.numpy_gamma(shape, scale));
    return values;
  };
  const std::vector<double> one = {0.397937254081555, 0.6279653814829189, 0.4616115729020344};
  const std::vector<double> half = {0.6080037795214088,  0.7565434401356311, 0.3589667780057752,
                                    0.38296513492132056, 1.7592170793623914, 0.6569854142435766};
  const std::vector<double> three = {6.709150495889244,  3.3749491770181193, 7.026698900174637,
                                     1.3679666436263527, 2.501637422769129,  3.3949382714055067};
  const auto near = [](const std::vector<double>& expected) {
    std::vector<testing::Matcher<double>> matchers;
    for (const double value : expected) matchers.push_back(testing::DoubleNear(value, 1e-12));
    return matchers;
  };
  EXPECT_THAT(draw(1.0, 0.5, 3), ElementsAreArray(near(one)));
  EXPECT_THAT(draw(0.5, 2.0, 6), ElementsAreArray(near(half)));
  EXPECT_THAT(draw(3.0, 1.0, 6), ElementsAreArray(near(three)));
}

TEST(MersenneTwisterTest, ShuffleAndChoicesEqualPython) {
  auto rng = MersenneTwister::python_seed(0);
  EXPECT_THAT(rng.python_shuffle(10), ElementsAre(7, 8, 1, 5, 3, 4, 2, 0, 9, 6));
  EXPECT_THAT(rng.python_choices(10, 6), ElementsAre(3, 8, 2, 1, 1, 0));
  EXPECT_THAT(MersenneTwister::python_seed(7).python_shuffle(5), ElementsAre(4, 0, 3, 1, 2));
  EXPECT_THAT(MersenneTwister::python_seed(0).python_choices(10, 6), ElementsAre(8, 7, 4, 2, 5, 4));
  EXPECT_TRUE(MersenneTwister::python_seed(0).python_shuffle(0).empty());
  EXPECT_THAT(MersenneTwister::python_seed(0).python_shuffle(1), ElementsAre(0));
}

TEST(MersenneTwisterTest, PythonSeedsOfTwoWords) {
  auto rng = MersenneTwister::python_seed((uint64_t{1} << 40) + 3);
  EXPECT_DOUBLE_EQ(rng.next_double(), 0.21978710637116716);
  EXPECT_DOUBLE_EQ(rng.next_double(), 0.5494687768352203);
}

}  // namespace
}  // namespace eyrie::bench
