#include "apps/eyrie/bench_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/mapped_file.h"
#include "bench/shell_words.h"
#include "bench/store.h"

namespace eyrie::apps {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

bench::ServeOptions options(const std::string& line) {
  return serve_options_from(parse_flags(bench_client_flags(), bench::split_shell_words(line)));
}

std::string message(const std::string& line) {
  try {
    options(line);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(BenchFlagsTest, DefaultsAreVllms) {
  const auto o = options("");
  EXPECT_EQ(o.backend, "openai");
  EXPECT_EQ(o.base(), "http://127.0.0.1:8000");
  EXPECT_EQ(o.dataset.name, "random");
  EXPECT_EQ(o.dataset.num_prompts, 1000);
  EXPECT_EQ(o.dataset.input_len, 1024);
  EXPECT_EQ(o.dataset.output_len, 128);
  EXPECT_TRUE(std::isinf(o.arrivals.request_rate));
  EXPECT_FALSE(o.max_concurrency.has_value());
  EXPECT_THAT(o.percentile_metrics, ElementsAre("ttft", "tpot", "itl"));
  EXPECT_THAT(o.percentiles, ElementsAre(99.0));
  EXPECT_EQ(o.dataset.effective_mode(), bench::RangeMode::kVllm);
}

TEST(BenchFlagsTest, TheTutorialsCommand) {
  const auto o = options(
      "--model amd/Kimi-K2.5-MXFP4 --backend vllm --dataset-name random --random-input-len 1024 "
      "--random-output-len 1024 --random-range-ratio 0.8 --num-prompts 40 --max-concurrency 4 "
      "--request-rate inf --ignore-eos --use-chat-template --trust-remote-code");
  EXPECT_EQ(o.model, "amd/Kimi-K2.5-MXFP4");
  EXPECT_EQ(o.dataset.effective_mode(), bench::RangeMode::kInferenceX);
  EXPECT_EQ(o.dataset.input_range_ratio, 0.8);
  EXPECT_EQ(o.dataset.output_range_ratio, 0.8);
  EXPECT_EQ(o.max_concurrency, 4);
  EXPECT_TRUE(o.ignore_eos);
  EXPECT_FALSE(o.port_given);
}

TEST(BenchFlagsTest, EveryKindOfValue) {
  const auto o = options(
      "--random-range-ratio '{\"input\": 0.1, \"output\": 0.2}' --random_range_ratio_mode sglang "
      "--metric-percentiles 50,99.9 --percentile-metrics e2el,ttft --goodput ttft:100 tpot:5.5 "
      "--header A=b=c X=1 --metadata k=v --temperature 0 --top-k 5 --extra-body.seed 7 "
      "--chat-template-kwargs.thinking false --input-len 10 --random-output-len 5 --output-len 6 "
      "--custom-output-len -1 --port 1 --seed 3");
  EXPECT_EQ(o.dataset.input_range_ratio, 0.1);
  EXPECT_EQ(o.dataset.output_range_ratio, 0.2);
  EXPECT_EQ(o.dataset.effective_mode(), bench::RangeMode::kInferenceX);
  EXPECT_THAT(o.percentiles, ElementsAre(50.0, 99.9));
  EXPECT_THAT(o.percentile_metrics, ElementsAre("e2el", "ttft"));
  EXPECT_EQ(o.goodput.ttft_ms, 100.0);
  EXPECT_EQ(o.goodput.tpot_ms, 5.5);
  EXPECT_FALSE(o.goodput.e2el_ms.has_value());
  EXPECT_THAT(o.headers, ElementsAre("A: b=c", "X: 1"));
  EXPECT_THAT(o.metadata, ElementsAre(std::pair<std::string, std::string>("k", "v")));
  EXPECT_EQ(o.sampling["temperature"], 0.0);
  EXPECT_EQ(o.sampling["top_k"], 5);
  EXPECT_EQ(o.chat_template_kwargs["thinking"], false);
  EXPECT_EQ(o.extra_body["seed"], 7);
  EXPECT_EQ(o.dataset.input_len, 10);
  EXPECT_EQ(o.dataset.output_len, 5);
  EXPECT_EQ(o.dataset.custom_output_len, -1);
  EXPECT_EQ(o.dataset.seed, 3U);
  EXPECT_TRUE(o.port_given);
}

TEST(BenchFlagsTest, NamesTheWrongValue) {
  EXPECT_THAT(message("--random-range-ratio x"), HasSubstr("--random-range-ratio takes numbers"));
  EXPECT_THAT(message("--random-range-ratio '{\"input\": 1}'"), HasSubstr("needs numbers"));
  EXPECT_THAT(message("--random-range-ratio-mode x"), HasSubstr("vllm or inferencex"));
  EXPECT_THAT(message("--goodput itl:5"), HasSubstr("limits exist for ttft, tpot and e2el"));
  EXPECT_THAT(message("--goodput ttft"), HasSubstr("KEY:VALUE"));
  EXPECT_THAT(message("--header nothing"), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(message("--metric-percentiles 9x"), HasSubstr("takes numbers"));
  EXPECT_THAT(message("--random-output-len 0"), HasSubstr("output 1"));
  EXPECT_THAT(message("--seed -1"), HasSubstr("at least 0"));
  EXPECT_THAT(message("--num-prompt many"), HasSubstr("--num-prompts takes a whole number"));
}

// The sweep from its command line, servers played by the tests' fake.
class SweepCommand : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("python3 -c '' 2>/dev/null") != 0) {
      GTEST_SKIP() << "the fake server needs python3 in the PATH";
    }
    fs::remove_all(out);
    std::ofstream file(prompts);
    for (int i = 0; i < 8; ++i) file << "{\"prompt\":\"p " << i << "\",\"output_tokens\":8}\n";
  }
  int sweep(const std::string& more) const {
    return run_bench_sweep(bench::split_shell_words(
        "fake --server tests/e2e/fake_server.py --config none --config \"BF16 "
        "draft=--speculative-config '{\\\"model\\\":\\\"d\\\",\\\"num_speculative_tokens\\\":3}'\" "
        "--concurrency 1,2 --prompts-per-concurrency 2 --dataset-name custom --dataset-path " +
        prompts + " --skip-chat-template --disable-tqdm --reference amd-mi355x-tp4 --out " + out +
        " " + more));
  }
  // A folder of this process: tests run side by side.
  const std::string out = testing::TempDir() + "/sweep_command_" + std::to_string(getpid());
  const std::string prompts = testing::TempDir() + "/sweep_prompts_" + std::to_string(getpid());
};

TEST_F(SweepCommand, WritesItsReportsAndResumes) {
  ASSERT_EQ(sweep(""), 0);
  EXPECT_EQ(bench::RunStore(out + "/runs.sqlite").size(), 4);
  const auto json = nlohmann::json::parse(read_text_file(out + "/sweep.json"));
  ASSERT_EQ(json["points"].size(), 4U);
  EXPECT_EQ(json["points"][3]["config"], "BF16 draft");
  EXPECT_EQ(json["points"][3]["concurrency"], 2);
  EXPECT_DOUBLE_EQ(json["points"][3]["acceptance_length"].get<double>(), 3.0);
  EXPECT_FALSE(json["points"][3]["from_store"].get<bool>());
  EXPECT_EQ(json["points"][3]["runs"][0]["completed"], 4);
  EXPECT_GT(json["verdicts"].size(), 4U);
  EXPECT_THAT(read_text_file(out + "/report.html"), HasSubstr("</svg>"));
  EXPECT_THAT(read_text_file(out + "/sweep.md"), HasSubstr("| BF16 draft"));
  EXPECT_THAT(read_text_file(out + "/logs/none.log"), HasSubstr("listening"));

  ASSERT_EQ(sweep("--concurrency 1,2,3"), 0);
  const auto again = nlohmann::json::parse(read_text_file(out + "/sweep.json"));
  ASSERT_EQ(again["points"].size(), 6U);
  EXPECT_TRUE(again["points"][0]["from_store"].get<bool>());
  EXPECT_FALSE(again["points"][2]["from_store"].get<bool>());
  EXPECT_EQ(again["points"][0]["total_token_throughput"],
            json["points"][0]["total_token_throughput"]);
}

TEST_F(SweepCommand, AServerThatCannotStartEndsTheSweepWithItsWords) {
  try {
    sweep("--serve-args '--die \"no such file\"'");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no such file"));
  }
}

TEST_F(SweepCommand, BadCommandLines) {
  const auto wrong = [&](const std::string& more) {
    try {
      sweep(more);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(wrong("another"), HasSubstr("takes one MODEL"));
  EXPECT_THAT(wrong("--concurrency 4,x"), HasSubstr("--concurrency 4,x"));
  EXPECT_THAT(wrong("--config none"), HasSubstr("two configurations"));
  EXPECT_THAT(wrong("--num-prompts 5"), HasSubstr("--num-prompts"));
  EXPECT_THAT(wrong("--repeats 0"), HasSubstr("--repeats"));
}

}  // namespace
}  // namespace eyrie::apps
