#include "bench/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/sweep_testing.h"

namespace eyrie::bench {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kNames = {"no-spec", "bf16", "Eagle3-FP8"};

Reference published() { return load_reference("amd-mi355x-tp4"); }

// The verdict whose criterion contains the text.
Verdict find(const std::vector<Verdict>& verdicts, const std::string& text) {
  for (const auto& verdict : verdicts) {
    if (verdict.criterion.find(text) != std::string::npos) return verdict;
  }
  ADD_FAILURE() << "no verdict on " << text;
  return {};
}

TEST(VerdictTest, TheTutorialsRunMeetsEverything) {
  // The published figures themselves, as totals of four devices.
  std::vector<std::vector<double>> totals(3);
  std::vector<int64_t> concurrencies;
  for (const auto& row : published().rows) {
    concurrencies.push_back(row.concurrency);
    for (size_t i = 0; i < 3; ++i) totals[i].push_back(row.per_device[i] * 4.0);
  }
  SweepResult result = fake_sweep(totals, concurrencies, kNames);
  result.devices = 4;
  for (const auto& verdict : judge(published(), result, {.noise = 0.03, .same_hardware = true})) {
    EXPECT_EQ(verdict.outcome, Outcome::kMet) << verdict.criterion << ": " << verdict.detail;
  }
  const auto elsewhere = judge(published(), result, {});
  EXPECT_EQ(find(elsewhere, "no draft at C = 4").outcome, Outcome::kNotCompared);
}

TEST(VerdictTest, SaysWhatWasNotRun) {
  const auto result = fake_sweep({{100, 200}, {160, 300}, {170, 320}}, {1, 4}, kNames);
  const auto verdicts = judge(published(), result, {});
  EXPECT_EQ(find(verdicts, "FP8 EAGLE-3: 1.76× over no draft at C = 64").outcome, Outcome::kNotRun);
  const auto at4 = find(verdicts, "FP8 EAGLE-3: 2.00× over no draft at C = 4");
  EXPECT_EQ(at4.outcome, Outcome::kNotMet);
  EXPECT_THAT(at4.detail, HasSubstr("ours 1.60×"));
}

TEST(VerdictTest, Fp8AgainstBf16WithinTheStatedNoise) {
  const auto outcome = [](double fp8, double noise) {
    const auto result = fake_sweep({{100}, {150}, {fp8}}, {4}, kNames);
    return find(judge(published(), result, {.noise = noise}), "at least as fast");
  };
  EXPECT_EQ(outcome(151, 0.03).outcome, Outcome::kMet);
  EXPECT_EQ(outcome(147, 0.03).outcome, Outcome::kMet);
  EXPECT_EQ(outcome(140, 0.03).outcome, Outcome::kNotMet);
  EXPECT_THAT(outcome(140, 0.03).detail, HasSubstr("C=4: 6.7 % slower"));
  EXPECT_EQ(outcome(140, 0.10).outcome, Outcome::kMet);
  EXPECT_THAT(outcome(147, 0.03).detail, HasSubstr("3.0 % (assumed"));
  const auto two = fake_sweep({{100}, {150}}, {4}, {"no-spec", "bf16"});
  EXPECT_EQ(find(judge(published(), two, {}), "at least as fast").outcome, Outcome::kNotRun);
}

TEST(VerdictTest, MeasuredSpreadWidensTheNoise) {
  auto result = fake_sweep({{100}, {150}, {140}}, {4}, kNames);
  for (auto& point : result.points) {
    if (point.config_idx == 2) point.add(fake_result(155), false);
  }
  const auto verdict = find(judge(published(), result, {}), "at least as fast");
  EXPECT_EQ(verdict.outcome, Outcome::kMet);
  EXPECT_THAT(verdict.detail, HasSubstr("spread of the repeats"));
}

TEST(VerdictTest, LowRowsSayWhatToCheckAndWhatWasInEffect) {
  auto result = fake_sweep({{100}, {110}, {190}}, {4}, kNames);
  result.common_args = {"-tp", "1", "--no-enable-prefix-caching"};
  result.configs[1].args = {"--tensor-parallel-size=2"};
  const auto verdict = find(judge(published(), result, {}), "20 % or more below");
  EXPECT_EQ(verdict.outcome, Outcome::kNotMet);
  EXPECT_THAT(verdict.detail, HasSubstr("bf16 C=4: 1.10× of 1.90×"));
  EXPECT_THAT(verdict.detail, HasSubstr("--tensor-parallel-size 4: here 2"));
  EXPECT_THAT(verdict.detail, HasSubstr("--mm-encoder-tp-mode data: here weights"));
  EXPECT_THAT(verdict.detail, HasSubstr("--no-enable-prefix-caching: here given"));
  EXPECT_THAT(verdict.detail, HasSubstr("VLLM_ROCM_USE_AITER=1 (read by vLLM on ROCm): here"));
}

TEST(VerdictTest, AbsoluteFiguresOnTheSameHardware) {
  const auto result = fake_sweep({{50}, {100}, {100}}, {4}, kNames);
  const auto verdict =
      find(judge(published(), result, {.noise = 0.03, .same_hardware = true}), "no draft at C = 4");
  EXPECT_EQ(verdict.outcome, Outcome::kNotMet);
  EXPECT_THAT(verdict.detail, HasSubstr("C=4: 50.0 of 82.7"));
  EXPECT_THAT(verdict.detail, HasSubstr("not run: C = 8 16 32 64"));
}

}  // namespace
}  // namespace eyrie::bench
