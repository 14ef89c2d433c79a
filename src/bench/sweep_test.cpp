#include "bench/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "bench/scratch_path.h"
#include "bench/sweep_tables.h"
#include "bench/sweep_testing.h"

namespace eyrie::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Records what a sweep does; measures 100 tok/s × C, or throws where it is told to.
class FakeBackend final : public SweepBackend {
 public:
  void start_server(const SweepConfig& config) override { log.push_back("start " + config.name); }
  OrderedJson measure(const SweepConfig& config, const ServeOptions& options) override {
    const int64_t c = *options.max_concurrency;
    log.push_back(config.name + " " + std::to_string(c));
    if (static_cast<int>(log.size()) > die_after) throw Error("power cut");
    OrderedJson result = fake_result(100.0 * static_cast<double>(c));
    result["failed"] = failed;
    return result;
  }
  void stop_server() override { log.push_back("stop"); }

  std::vector<std::string> log;
  int die_after = 1000;
  int failed = 0;
};

SweepPlan some_plan() {
  SweepPlan plan;
  plan.model = "nano";
  plan.configs = {{"none", {}}, {"fp8", {"--speculative-config", "{}"}}};
  plan.concurrencies = {1, 4};
  plan.machine = "this one";
  plan.program = "eyrie#1";
  return plan;
}

std::string fresh_store(const char* name) {
  const std::string path = scratch_path(name);
  std::filesystem::remove(path);
  return path;
}

SweepResult run(const SweepPlan& plan, RunStore& store, SweepBackend& backend) {
  SweepResult result;
  result.configs = plan.configs;
  result.concurrencies = plan.concurrencies;
  run_sweep(plan, store, backend, {}, result);
  return result;
}

TEST(SweepTest, RunsEveryPointWithOneServerAtATime) {
  RunStore store(fresh_store("every.sqlite"));
  FakeBackend backend;
  const auto result = run(some_plan(), store, backend);
  EXPECT_THAT(backend.log, ElementsAre("start none", "none 1", "none 4", "stop", "start fp8",
                                       "fp8 1", "fp8 4", "stop"));
  EXPECT_EQ(result.points.size(), 4U);
  EXPECT_EQ(store.size(), 4);
}

TEST(SweepTest, GoesOnWhereItWasInterrupted) {
  RunStore store(fresh_store("resume.sqlite"));
  FakeBackend first;
  first.die_after = 5;
  EXPECT_THROW(run(some_plan(), store, first), Error);
  EXPECT_EQ(first.log.back(), "stop");  // the server does not outlive the sweep
  FakeBackend second;
  const auto result = run(some_plan(), store, second);
  EXPECT_THAT(second.log, ElementsAre("start fp8", "fp8 1", "fp8 4", "stop"));
  EXPECT_TRUE(result.find(0, 1)->from_store);
  EXPECT_FALSE(result.find(1, 1)->from_store);
  EXPECT_DOUBLE_EQ(result.find(0, 4)->run().total_tok_s, 400.0);
  FakeBackend third;
  run(some_plan(), store, third);
  EXPECT_TRUE(third.log.empty());
}

TEST(SweepTest, AnotherQuestionIsMeasuredAgain) {
  const auto plan = some_plan();
  const auto key = [](const SweepPlan& p) { return sweep_key(p, p.configs[1], 4, 0); };
  const std::string base = key(plan);
  const auto changed = [&](auto&& change) {
    SweepPlan other = some_plan();
    change(other);
    return key(other);
  };
  EXPECT_EQ(changed([](SweepPlan&) {}), base);
  EXPECT_NE(changed([](SweepPlan& p) { p.machine = "another"; }), base);
  EXPECT_NE(changed([](SweepPlan& p) { p.program = "eyrie#2"; }), base);
  EXPECT_NE(changed([](SweepPlan& p) { p.model = "other"; }), base);
  EXPECT_NE(changed([](SweepPlan& p) { p.configs[1].args[1] = "{\"k\":1}"; }), base);
  EXPECT_NE(changed([](SweepPlan& p) { p.common_args = {"--x"}; }), base);
  EXPECT_NE(changed([](SweepPlan& p) { p.client.dataset.seed = 1; }), base);
  EXPECT_NE(changed([](SweepPlan& p) { p.client.dataset.output_len = 9; }), base);
  EXPECT_NE(changed([](SweepPlan& p) { p.client.sampling["temperature"] = 0; }), base);
  EXPECT_NE(changed([](SweepPlan& p) { p.prompts_per_concurrency = 2; }), base);
  EXPECT_NE(sweep_key(plan, plan.configs[1], 8, 0), base);
  EXPECT_NE(sweep_key(plan, plan.configs[1], 4, 1), base);
}

TEST(SweepTest, RunsWithFailuresAreShownButNotKept) {
  RunStore store(fresh_store("failed.sqlite"));
  FakeBackend backend;
  backend.failed = 3;
  const auto result = run(some_plan(), store, backend);
  EXPECT_EQ(result.points.size(), 4U);
  EXPECT_EQ(store.size(), 0);
  EXPECT_THAT(live_row(result, result.points[0]), HasSubstr("3 failed"));
}

TEST(SweepTest, FreshMeasuresWhatTheStoreHas) {
  RunStore store(fresh_store("fresh.sqlite"));
  FakeBackend backend;
  run(some_plan(), store, backend);
  auto plan = some_plan();
  plan.fresh = true;
  FakeBackend again;
  run(plan, store, again);
  EXPECT_EQ(again.log.size(), 8U);
}

TEST(SweepTest, TheClientAsksTenPromptsAConcurrency) {
  auto plan = some_plan();
  const auto options = options_for(plan, 64);
  EXPECT_EQ(options.dataset.num_prompts, 640);
  EXPECT_EQ(options.max_concurrency, 64);
  EXPECT_EQ(options.num_warmups, 8);
  EXPECT_EQ(options_for(plan, 2).num_warmups, 2);
  plan.warmups_given = true;
  EXPECT_EQ(options_for(plan, 64).num_warmups, 0);
}

TEST(SweepConfigTest, NameAndFlags) {
  const auto config = parse_sweep_config("bf16=--speculative-config '{\"model\": \"d\"}' --x=1");
  EXPECT_EQ(config.name, "bf16");
  EXPECT_THAT(config.args, ElementsAre("--speculative-config", "{\"model\": \"d\"}", "--x=1"));
  EXPECT_TRUE(parse_sweep_config("no-spec").args.empty());
  EXPECT_THROW(parse_sweep_config("--port 1"), Error);
  EXPECT_THROW(parse_sweep_config("=--port"), Error);
}

TEST(SweepResultTest, MedianOfRepeatsAndTheirSpread) {
  SweepPoint point;
  for (const double tok_s : {110.0, 100.0, 104.0}) point.add(fake_result(tok_s), false);
  EXPECT_DOUBLE_EQ(point.run().total_tok_s, 104.0);
  EXPECT_NEAR(point.spread(), 10.0 / 104.0, 1e-12);
}

TEST(SweepResultTest, SpeedupsAndAcceptance) {
  SweepResult result = fake_sweep({{100, 200}, {150, 0}}, {4, 8});
  EXPECT_DOUBLE_EQ(*result.speedup(*result.find(1, 4)), 1.5);
  EXPECT_EQ(result.find(1, 8), nullptr);
  result.devices = 4;
  EXPECT_DOUBLE_EQ(result.per_device(*result.find(0, 8)), 50.0);
  SweepPoint spec;
  spec.config_idx = 1;
  spec.concurrency = 16;
  OrderedJson run = fake_result(1.0);
  run["spec_decode_acceptance_length"] = 2.5;
  run["spec_decode_num_drafts"] = 300;
  run["spec_decode_per_position_acceptance_rates"] = {1.0, 0.5};
  spec.add(run, false);
  run["spec_decode_num_drafts"] = 100;
  run["spec_decode_per_position_acceptance_rates"] = {0.2, 0.1};
  spec.add(run, false);
  result.points.push_back(spec);
  EXPECT_THAT(result.acceptance_per_position(1),
              ElementsAre(testing::DoubleNear(0.8, 1e-12), testing::DoubleNear(0.4, 1e-12)));
  EXPECT_TRUE(result.acceptance_per_position(0).empty());
  EXPECT_FALSE(result.speedup(spec).has_value());  // the baseline was not run at 16
}

TEST(SweepResultTest, SaysWhetherGreedyAnswersAgree) {
  SweepResult result = fake_sweep({{100, 200}, {150, 300}}, {4, 8});
  for (auto& point : result.points) {
    point.runs[0].answers = std::to_string(point.concurrency);
  }
  EXPECT_EQ(result.answers_sentence(), "");  // sampled: nothing to compare
  result.greedy = true;
  EXPECT_THAT(result.answers_sentence(),
              HasSubstr("those of c0, character for character, in all 2"));
  result.points[3].runs[0].answers = "other";
  EXPECT_EQ(result.answers_sentence(), "Greedy answers differ from those of c0: c1 C=8.");
  result.points[3].runs[0].failed = 1;  // answers are missing, not different
  EXPECT_THAT(result.answers_sentence(), HasSubstr("in all 1 runs"));
}

TEST(SweepTablesTest, LiveRowsStandUnderTheirHeader) {
  const SweepResult result = fake_sweep({{100, 200}, {150, 300}}, {4, 8});
  const std::string header = live_header(result);
  const std::string row = live_row(result, *result.find(1, 8));
  EXPECT_EQ(row.find("300.0") + 5, header.find("tok/s") + 5);
  EXPECT_THAT(row, HasSubstr("1.50×"));
}

TEST(SweepTablesTest, AWarningOfManyRunsIsSaidOnce) {
  SweepResult result = fake_sweep({{100, 200}}, {4, 8});
  for (auto& point : result.points) {
    point.runs[0].warnings = {"it failed " + std::to_string(point.concurrency) + " times"};
  }
  result.points[1].runs[0].warnings.push_back("only here");
  EXPECT_THAT(
      sweep_warnings(result),
      ElementsAre("in 2 of 2 runs, the last c0 C=8: it failed 8 times", "c0 C=8: only here"));
}

}  // namespace
}  // namespace eyrie::bench
