#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "server/config.h"
#include "server/http_metrics.h"

namespace eyrie::server {
namespace {

using testing::HasSubstr;
using testing::Not;

ServerConfig config() {
  ServerConfig config;
  config.served_model_names = {"na\"no"};
  config.cache_config_labels = {{"block_size", "16"}, {"num_gpu_blocks", "64"}};
  return config;
}

TEST(MetricsTest, NamesAndLabelsAreThoseClientsReadByName) {
  engine::EngineStats stats(4096, 2);
  stats.num_running = 3;
  stats.num_drafts = 10;
  stats.num_draft_tokens = 20;
  stats.num_accepted_tokens = 15;
  stats.accepted_per_position = {9, 6};
  stats.finished = {4, 3, 2, 1};
  stats.time_to_first_token.observe(0.03);
  stats.iteration_tokens.observe(8);
  const std::string text = metrics_text(stats, config(), HttpMetrics());
  const std::string labels = R"({engine="0",model_name="na\"no"})";
  EXPECT_THAT(text, HasSubstr("vllm:num_requests_running" + labels + " 3\n"));
  EXPECT_THAT(text, HasSubstr("reason=\"deferred\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("sleep_state=\"awake\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE vllm:spec_decode_num_drafts_total counter\n"));
  EXPECT_THAT(text, HasSubstr("vllm:spec_decode_num_accepted_tokens_total" + labels + " 15\n"));
  EXPECT_THAT(text, HasSubstr("vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\","
                              "model_name=\"na\\\"no\",position=\"1\"} 6\n"));
  EXPECT_THAT(text, HasSubstr("finished_reason=\"length\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("vllm:cache_config_info{engine=\"0\",block_size=\"16\","
                              "num_gpu_blocks=\"64\"} 1.0\n"));
  EXPECT_THAT(text, HasSubstr("vllm:time_to_first_token_seconds_bucket{engine=\"0\",model_name="
                              "\"na\\\"no\",le=\"0.02\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("le=\"0.04\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("vllm:iteration_tokens_total_bucket"));
  EXPECT_THAT(text, HasSubstr("le=\"1.0\"}"));
}

TEST(MetricsTest, NoSpeculationNoCounters) {
  EXPECT_THAT(metrics_text(engine::EngineStats(64, 0), config(), HttpMetrics()),
              Not(HasSubstr("spec_decode")));
  ServerConfig quiet = config();
  quiet.engine_metrics = false;
  EXPECT_THAT(metrics_text(engine::EngineStats(64, 2), quiet, HttpMetrics()),
              Not(HasSubstr("vllm:")));
}

// The text format: every sample belongs to a family announced once, and no series comes twice.
TEST(MetricsTest, TextIsWellFormed) {
  HttpMetrics http;
  http.observe("/v1/completions", "POST", 200, 0.2, 100, 2000);
  http.observe("/v1/completions", "POST", 429, 0.001, 50, 30);
  http.observe("none", "GET", 404, 0.001, 0, 10);
  std::istringstream text(metrics_text(engine::EngineStats(4096, 3), config(), http));
  std::set<std::string> families;
  std::set<std::string> series;
  std::string line;
  while (std::getline(text, line)) {
    std::istringstream words(line);
    std::string first, second, third;
    words >> first >> second >> third;
    if (first == "#") {
      if (second == "TYPE") {
        EXPECT_TRUE(families.insert(third).second) << line;
      }
      continue;
    }
    const size_t space = line.rfind(' ');
    ASSERT_NE(space, std::string::npos) << line;
    EXPECT_TRUE(series.insert(line.substr(0, space)).second) << line;
    EXPECT_NO_THROW(std::stod(line.substr(space + 1))) << line;
    std::string name = line.substr(0, line.find_first_of("{ "));
    for (const char* suffix : {"_bucket", "_count", "_sum"}) {
      const size_t at = name.rfind(suffix);
      const bool ends = at != std::string::npos && at + std::string(suffix).size() == name.size();
      if (ends && !families.contains(name)) name = name.substr(0, at);
    }
    EXPECT_TRUE(families.contains(name)) << line;
  }
  EXPECT_TRUE(series.contains(
      R"(http_requests_total{handler="/v1/completions",method="POST",status="4xx"})"));
}

}  // namespace
}  // namespace eyrie::server
