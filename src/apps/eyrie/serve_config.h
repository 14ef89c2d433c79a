// From `serve`'s flags to the values the rooms take. Each value is checked here, once, and an Error
// names the flag; what only the loaded model can tell (lengths, memory) is checked in serve.cpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/eyrie/flag_parser.h"
#include "apps/eyrie/kv_plan.h"
#include "chat/template.h"
#include "runtime/runner.h"
#include "server/config.h"

namespace eyrie::apps {

// --speculative-config: who proposes tokens, and how many a step.
struct SpeculativeConfig {
  std::string model;                          // of an EAGLE-3 draft; empty: n-gram look-up
  std::optional<runtime::NgramConfig> ngram;  // method ngram
  int32_t num_speculative_tokens = 0;         // the most; with adaptive off, the number
  bool adaptive = true;
  // "fp8": the draft's lm_head in FP8, whatever its file has; "checkpoint": as it is; "auto" or
  // empty: FP8 on a GPU.
  std::string draft_lm_head;
  // Chances that draft j and all before it are accepted, whatever the target says; empty: the
  // truth.
  std::vector<double> synthetic_acceptance;
};

struct ServeConfig {
  std::string model;       // as given; reported as the served name
  std::string model_path;  // the folder
  std::string tokenizer_path;
  std::optional<SpeculativeConfig> speculative;
  std::string host;
  int port = 8000;

  runtime::RunnerConfig runner;
  KvDemand kv;  // the user's part of it
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  bool enable_prefix_caching = true;
  uint64_t seed = 0;
  bool log_stats = true;
  int shutdown_seconds = 30;
  int32_t max_queued_requests = 4096;       // sequences beyond max_num_seqs; more get 429
  std::chrono::seconds step_deadline{120};  // /health needs a finished step within it
  std::chrono::seconds log_interval{10};    // of the statistics lines

  chat::TemplateSource chat_template;
  server::ServerConfig server;  // names, keys, parsers, limits; lengths come with the model
  bool tokenizer_info = false;  // serve /tokenizer_info
  std::string generation_config = "auto";
  nlohmann::json override_generation_config;

  std::vector<std::string> notes;  // one line for each accepted flag that does nothing here
};

ServeConfig serve_config_from(const ParsedFlags& flags);

std::optional<SpeculativeConfig> parse_speculative_config(const nlohmann::json& json);

// generation_config.json of the checkpoint (unless --generation-config vllm), then the overrides.
server::SamplingDefaults sampling_defaults(const ServeConfig& config);

}  // namespace eyrie::apps
