// What `bench serve` was asked for: one value, filled by the command line (or by the sweep), read
// by everything behind it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/dataset.h"
#include "bench/load.h"
#include "bench/metrics.h"

namespace eyrie::bench {

struct ServeOptions {
  std::string backend = "openai";  // vllm, openai: completions; openai-chat
  std::string base_url;            // overrides host and port
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  bool port_given = false;
  std::string endpoint;  // empty: the backend's own

  std::string model;  // empty: the server's first
  std::string served_model_name;
  std::string tokenizer;  // directory or hub id; empty: the model's
  bool skip_tokenizer_init = false;

  DatasetOptions dataset;
  ArrivalOptions arrivals;
  std::optional<int64_t> max_concurrency;
  int64_t num_warmups = 0;
  double ready_check_timeout_s = 0.0;

  bool ignore_eos = false;
  nlohmann::json sampling = nlohmann::json::object();  // temperature, top_p, …
  // For the template, wherever it is applied: here for completions, at the server for chat.
  nlohmann::json chat_template_kwargs = nlohmann::json::object();
  nlohmann::json extra_body = nlohmann::json::object();  // merged last
  std::optional<int64_t> logprobs;
  std::vector<std::string> headers;  // "Name: value"
  bool insecure = false;
  bool profile = false;
  std::string request_id_prefix;

  std::vector<std::string> percentile_metrics = {"ttft", "tpot", "itl"};
  std::vector<double> percentiles = {99.0};
  GoodputLimits goodput;

  bool save_result = false;
  bool save_detailed = false;
  bool append_result = false;
  std::string result_dir, result_filename, label;
  std::vector<std::pair<std::string, std::string>> metadata;
  bool disable_progress = false;

  bool is_chat() const { return backend == "openai-chat"; }
  bool is_inferencex() const { return dataset.use_chat_template; }
  std::string base() const;          // "http://127.0.0.1:8000", no slash at the end
  std::string endpoint_url() const;  // where requests are posted
};

// The first thing wrong with the options, as an Error.
void validate(const ServeOptions& options);

}  // namespace eyrie::bench
