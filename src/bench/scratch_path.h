// Where a test may write: apart for every process, since tests run side by side.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace eyrie::bench {

inline std::string scratch_path(const std::string& name) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) /
                                       ("eyrie_bench_test_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  return (folder / name).string();
}

}  // namespace eyrie::bench
