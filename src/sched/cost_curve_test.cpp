#include "sched/cost_curve.h"

#include <gtest/gtest.h>

#include "sched/acceptance.h"
#include "sched/step_costs.h"

namespace eyrie::sched {
namespace {

TEST(CostCurveTest, DrawsStraightLinesBetweenWhatIsKnown) {
  CostCurve curve;
  EXPECT_FALSE(curve.known());
  EXPECT_EQ(curve.at(7), 0);
  curve.set(4, 1.0);
  EXPECT_DOUBLE_EQ(curve.at(1), 1.0);  // nothing is known to be cheaper
  EXPECT_DOUBLE_EQ(curve.at(8), 2.0);  // one point: in proportion
  curve.set(64, 7.0);
  EXPECT_DOUBLE_EQ(curve.at(4), 1.0);
  EXPECT_DOUBLE_EQ(curve.at(34), 4.0);
  EXPECT_DOUBLE_EQ(curve.at(50.5), 5.65);
  EXPECT_DOUBLE_EQ(curve.at(124), 13.0);  // the last slope goes on
  EXPECT_NEAR(curve.at(200000), 7.0 + 0.1 * (200000 - 64), 1e-6);
}

// One slow measurement at 128 rows must not make 256, or what lies beyond, free.
TEST(CostCurveTest, ANoisyPointMakesNothingFree) {
  CostCurve curve;
  for (int rows = 1; rows <= 256; rows *= 2) curve.set(rows, rows == 128 ? 300.0 : rows);
  EXPECT_GE(curve.at(256), curve.at(128));
  EXPECT_GT(curve.at(1024) - curve.at(512), 256);
  for (int i = 0; i < 400; ++i) curve.observe(128, 128.0);
  EXPECT_NEAR(curve.at(128), 128, 8);
  EXPECT_LE(curve.at(96), curve.at(128));
  EXPECT_GE(curve.at(256), curve.at(128));
}

TEST(CostCurveTest, ServiceReplacesTheCalibrationQuickly) {
  CostCurve curve;
  curve.set(1, 2.5);
  curve.set(16, 5.0);
  for (int i = 0; i < 4; ++i) curve.observe(1, 1.0);
  EXPECT_NEAR(curve.at(1), 1.0, 0.25);
  for (int i = 0; i < 16; ++i) curve.observe(1, 1.0);
  EXPECT_NEAR(curve.at(1), 1.0, 0.08);
  EXPECT_GT(curve.at(16), 4.0);                         // far from there: nearly as it was
  for (int i = 0; i < 20; ++i) curve.observe(14, 3.0);  // between two points: moves both
  EXPECT_NEAR(curve.at(14), 3.0, 0.1);
}

TEST(CostCurveTest, FollowsAMachineThatChangesButNotAHiccup) {
  CostCurve curve;
  curve.set(16, 2.0);
  for (int i = 0; i < 200; ++i) {
    curve.observe(16, 2.0);
    curve.forget_a_little();
  }
  const double common = curve.observe(16, 100.0);
  curve.scale(1 + common);
  EXPECT_LT(curve.at(16), 2.1);
  for (int i = 0; i < 400; ++i) {
    curve.scale(1 + curve.observe(16, 3.0));
    curve.forget_a_little();
  }
  EXPECT_NEAR(curve.at(16), 3.0, 0.03);
}

// What was not seen for a while is doubted, and one measurement says more than it would have.
TEST(CostCurveTest, DoubtsFadeWithMeasurementsAndComeBackWithTime) {
  CostCurve curve;
  curve.set(4, 1.0);
  EXPECT_LT(curve.hopeful_at(4), 0.5);
  for (int i = 0; i < 50; ++i) curve.observe(4, 1.0);
  EXPECT_GT(curve.hopeful_at(4), 0.98);
  for (int i = 0; i < 1000; ++i) curve.forget_a_little();
  EXPECT_LT(curve.hopeful_at(4), 0.5);
  curve.observe(4, 2.0);
  EXPECT_GT(curve.at(4), 1.5);
}

StepTimes eight_rows(double forward_seconds) {
  StepTimes times;
  times.num_rows = 8;
  times.forward_seconds = forward_seconds;
  return times;
}

StepCosts eight_rows_and_drafts() {
  StepTimes times = eight_rows(1);
  times.num_followed = 4;
  times.follow_seconds = 0.5;
  times.passes = {{.num_rows = 4, .forward_seconds = 0, .guess_seconds = 0.1},
                  {.num_rows = 4, .forward_seconds = 0.3, .guess_seconds = 0.1}};
  StepCosts costs;
  costs.set(times);
  return costs;
}

TEST(StepCostsTest, AllShapesSlowDownTogether) {
  StepCosts costs = eight_rows_and_drafts();
  EXPECT_DOUBLE_EQ(costs.chain.at(4), 0.3);
  for (int i = 0; i < 100; ++i) costs.observe(eight_rows(1));
  for (int i = 0; i < 400; ++i) costs.observe(eight_rows(1.2));
  EXPECT_NEAR(costs.forward.at(8), 1.2, 0.01);
  EXPECT_GT(costs.chain.at(4), 0.3 * 1.1);  // never seen since, and yet dearer
}

// What is news about a shape is no news about the machine.
TEST(StepCostsTest, AWrongCalibrationOfOneShapeStaysItsOwn) {
  StepCosts costs = eight_rows_and_drafts();
  for (int i = 0; i < 100; ++i) costs.observe(eight_rows(2));
  EXPECT_NEAR(costs.forward.at(8), 2, 0.05);
  EXPECT_LT(costs.chain.at(4), 0.3 * 1.25);
}

TEST(StepCostsTest, UnsettledStepsOnlyTellOfFarLess) {
  StepCosts costs = eight_rows_and_drafts();
  costs.observe(eight_rows(1.8), true, /*settled=*/false);
  EXPECT_DOUBLE_EQ(costs.forward.at(8), 1);
  costs.observe(eight_rows(0.4), true, /*settled=*/false);
  EXPECT_LT(costs.forward.at(8), 0.8);
}

TEST(AcceptanceTest, ASequenceStartsFromAllAndGoesItsOwnWay) {
  Acceptance acceptance(3);
  DraftRecord good, bad;
  const double first = acceptance.conditional(good, 0);
  EXPECT_GT(first, 0.5);
  EXPECT_LT(acceptance.conditional(good, 2), first);
  for (int i = 0; i < 30; ++i) {
    acceptance.note(good, 3, 3);
    acceptance.note(bad, 3, 0);
  }
  EXPECT_GT(acceptance.conditional(good, 0), 0.85);
  EXPECT_LT(acceptance.conditional(bad, 0), 0.15);
  EXPECT_NEAR(acceptance.of_everybody(0), 0.5, 0.1);
  // What lies behind a wrong draft was not tried: only the good one speaks of it.
  EXPECT_GT(acceptance.of_everybody(1), 0.85);
  DraftRecord fresh;
  EXPECT_NEAR(acceptance.conditional(fresh, 0), acceptance.of_everybody(0), 1e-9);
}

}  // namespace
}  // namespace eyrie::sched
