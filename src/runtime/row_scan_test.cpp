// Every width of SIMD this machine has, against the standard library.
#include "runtime/row_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace eyrie::runtime {
namespace {

std::vector<float> random_row(size_t size) {
  std::mt19937 rng(static_cast<uint32_t>(size));
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> row(size);
  for (float& x : row) x = normal(rng);
  return row;
}

TEST(RowScanTest, TheMaximumOfRowsOfEverySize) {
  for (const RowPasses& passes : row_passes()) {
    for (size_t size = 1; size < 200; ++size) {
      std::vector<float> row = random_row(size);
      const RowScan seen = passes.scan(row);
      EXPECT_EQ(seen.max, *std::max_element(row.begin(), row.end()));
      EXPECT_TRUE(seen.finite);
    }
    EXPECT_TRUE(passes.scan({}).finite);
  }
}

TEST(RowScanTest, WhatIsNotFiniteIsSeenAnywhere) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const RowPasses& passes : row_passes()) {
    for (const float bad : {std::nanf(""), -std::nanf("1"), kInfinity, -kInfinity}) {
      for (size_t i = 0; i < 131; ++i) {
        std::vector<float> row = random_row(131);
        row[i] = bad;
        EXPECT_FALSE(passes.scan(row).finite) << i;
      }
    }
    std::vector<float> row(131, std::numeric_limits<float>::max());
    EXPECT_TRUE(passes.scan(row).finite);
  }
}

TEST(RowScanTest, EveryValueAboveIsFoundInOrder) {
  for (const RowPasses& passes : row_passes()) {
    for (const size_t size : {1U, 31U, 32U, 33U, 64U, 100U, 257U}) {
      const std::vector<float> row = random_row(size);
      for (const float threshold : {-100.0F, 0.0F, 5.0F, row[size / 2], 100.0F}) {
        std::vector<size_t> expected, found;
        for (size_t i = 0; i < size; ++i) {
          if (row[i] >= threshold) expected.push_back(i);
        }
        for (size_t i = passes.find_at_least(row, 0, threshold); i < size;
             i = passes.find_at_least(row, i + 1, threshold)) {
          found.push_back(i);
        }
        EXPECT_EQ(found, expected);
      }
    }
  }
}

}  // namespace
}  // namespace eyrie::runtime
