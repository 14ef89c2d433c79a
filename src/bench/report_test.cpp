#include "bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "bench/scratch_path.h"
#include "bench/serve.h"

namespace eyrie::bench {
namespace {

using testing::ElementsAre;

RequestRecord record(double start, int64_t prompt, int tokens) {
  RequestRecord r;
  r.ok = true;
  r.start = start;
  r.prompt_tokens = prompt;
  r.output_tokens = r.asked_tokens = tokens;
  r.token_source = TokenSource::kUsage;
  for (int i = 0; i < tokens; ++i) r.chunks.push_back({start + 0.5 + 0.1 * i, 1.0});
  r.text = "žlutý";
  return r;
}

ServeOptions some_options() {
  ServeOptions options;
  options.backend = "vllm";
  options.max_concurrency = 4;
  options.percentile_metrics = {"ttft", "tpot", "itl", "e2el"};
  options.percentiles = {99.0, 99.9};
  return options;
}

ServeRun some_run(const ServeOptions& options) {
  ServeRun run;
  run.date = "20261130-131500";
  run.model_id = "models/kimi-k2.5-nano";
  run.tokenizer_id = "tok";
  run.records = {record(0.0, 10, 5), record(0.0, 20, 5)};
  run.metrics = compute_metrics(run.records, 2.0, options.percentiles, options.goodput);
  return run;
}

// Labels, order, rulers and widths of vLLM's report; the figures are those of the timeline above.
TEST(ReportTextTest, LayoutOfTheWholeReport) {
  ServeOptions options = some_options();
  options.arrivals.request_rate = 5.0;
  options.goodput.ttft_ms = 600.0;
  ServeRun run = some_run(options);
  run.spec = SpecStats{.acceptance_rate = 61.23,
                       .acceptance_length = 3.449,
                       .num_drafts = 7,
                       .draft_tokens = 42,
                       .accepted_tokens = 17,
                       .per_position = {0.821, 0.5}};
  run.warnings = {"something to know"};
  EXPECT_EQ(report_text(options, run),
            "============ Serving Benchmark Result ============\n"
            "Successful requests:                     2         \n"
            "Failed requests:                         0         \n"
            "Maximum request concurrency:             4         \n"
            "Request rate configured (RPS):           5.00      \n"
            "Benchmark duration (s):                  2.00      \n"
            "Total input tokens:                      30        \n"
            "Total generated tokens:                  10        \n"
            "Request throughput (req/s):              1.00      \n"
            "Request goodput (req/s):                 1.00      \n"
            "Output token throughput (tok/s):         5.00      \n"
            "Peak output token throughput (tok/s):    10.00     \n"
            "Peak concurrent requests:                2.00      \n"
            "Total token throughput (tok/s):          20.00     \n"
            "---------------Time to First Token----------------\n"
            "Mean TTFT (ms):                          500.00    \n"
            "Median TTFT (ms):                        500.00    \n"
            "P99 TTFT (ms):                           500.00    \n"
            "P99.9 TTFT (ms):                         500.00    \n"
            "-----Time per Output Token (excl. 1st token)------\n"
            "Mean TPOT (ms):                          100.00    \n"
            "Median TPOT (ms):                        100.00    \n"
            "P99 TPOT (ms):                           100.00    \n"
            "P99.9 TPOT (ms):                         100.00    \n"
            "---------------Inter-token Latency----------------\n"
            "Mean ITL (ms):                           100.00    \n"
            "Median ITL (ms):                         100.00    \n"
            "P99 ITL (ms):                            100.00    \n"
            "P99.9 ITL (ms):                          100.00    \n"
            "----------------End-to-end Latency----------------\n"
            "Mean E2EL (ms):                          900.00    \n"
            "Median E2EL (ms):                        900.00    \n"
            "P99 E2EL (ms):                           900.00    \n"
            "P99.9 E2EL (ms):                         900.00    \n"
            "---------------Speculative Decoding---------------\n"
            "Acceptance rate (%):                     61.23     \n"
            "Acceptance length:                       3.45      \n"
            "Drafts:                                  7         \n"
            "Draft tokens:                            42        \n"
            "Accepted tokens:                         17        \n"
            "Per-position acceptance (%):\n"
            "  Position 0:                            82.10     \n"
            "  Position 1:                            50.00     \n"
            "==================================================\n"
            "WARNING: something to know\n");
}

TEST(ReportTextTest, LeavesOutWhatWasNotAsked) {
  ServeOptions options;
  const std::string text = report_text(options, some_run(options));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("Maximum request concurrency")));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("RPS")));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("goodput")));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("E2EL")));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("Speculative")));
}

std::vector<std::string> keys(const nlohmann::ordered_json& object) {
  std::vector<std::string> names;
  for (const auto& item : object.items()) names.push_back(item.key());
  return names;
}

TEST(ResultJsonTest, KeysAreVllms) {
  ServeOptions options = some_options();
  options.percentile_metrics = {"ttft", "itl"};
  options.metadata = {{"gpu", "none"}};
  ServeRun run = some_run(options);
  run.spec = SpecStats{};
  EXPECT_THAT(
      keys(result_json(options, run)),
      ElementsAre(
          "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts",
          "gpu", "request_rate", "burstiness", "max_concurrency", "duration", "completed", "failed",
          "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput",
          "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
          "max_concurrent_requests", "rtfx", "mean_ttft_ms", "median_ttft_ms", "std_ttft_ms",
          "p99_ttft_ms", "p99.9_ttft_ms", "mean_itl_ms", "median_itl_ms", "std_itl_ms",
          "p99_itl_ms", "p99.9_itl_ms", "spec_decode_acceptance_rate",
          "spec_decode_acceptance_length", "spec_decode_num_drafts", "spec_decode_draft_tokens",
          "spec_decode_accepted_tokens", "spec_decode_per_position_acceptance_rates", "eyrie"));
  const auto json = result_json(options, run);
  EXPECT_EQ(json["request_rate"], "inf");
  EXPECT_TRUE(json["request_goodput"].is_null());
  EXPECT_TRUE(json["label"].is_null());
  EXPECT_DOUBLE_EQ(json["total_token_throughput"].get<double>(), 20.0);
}

TEST(ResultJsonTest, DetailHasOneEntryARequest) {
  ServeOptions options = some_options();
  options.save_detailed = true;
  ServeRun run = some_run(options);
  RequestRecord failed;
  failed.error = "HTTP 400";
  run.records.push_back(failed);
  const auto json = result_json(options, run);
  for (const char* key :
       {"input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors"}) {
    EXPECT_EQ(json[key].size(), 3U) << key;
  }
  EXPECT_EQ(json["itls"][0].size(), 4U);  // one a token but the first
  EXPECT_EQ(json["itls"][2].size(), 0U);
  EXPECT_EQ(json["errors"][2], "HTTP 400");
}

TEST(ResultFileTest, NamesAsVllmDoes) {
  ServeOptions options = some_options();
  const ServeRun run = some_run(options);
  EXPECT_EQ(result_file_name(options, run),
            "vllm-infqps-concurrency4-kimi-k2.5-nano-20261130-131500.json");
  options.arrivals.request_rate = 5.0;
  options.max_concurrency.reset();
  options.label = "mine";
  EXPECT_EQ(result_file_name(options, run), "mine-5.0qps-kimi-k2.5-nano-20261130-131500.json");
  options.result_filename = "x.json";
  EXPECT_EQ(result_file_name(options, run), "x.json");
  EXPECT_EQ(python_float(0.25), "0.25");
  EXPECT_EQ(python_float(std::numeric_limits<double>::infinity()), "inf");
}

TEST(ResultFileTest, AppendsOneObjectALine) {
  ServeOptions options = some_options();
  options.result_dir = scratch_path("bench_results/deep");
  options.result_filename = "r.json";
  std::filesystem::remove_all(options.result_dir);
  options.append_result = true;
  const ServeRun run = some_run(options);
  save_result(options, run);
  const std::string path = save_result(options, run);
  std::ifstream file(path);
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    EXPECT_EQ(nlohmann::json::parse(line)["completed"], 2);
  }
  EXPECT_EQ(lines, 2);
}

}  // namespace
}  // namespace eyrie::bench
