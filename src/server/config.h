// What the front end needs to know beside the engine: an immutable value made by the app from flags
// and the checkpoint.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "chat/message.h"
#include "server/cors.h"

namespace eyrie::server {

// What a request gets for a sampling field it leaves out: generation_config.json's values with
// --generation-config auto, these neutral ones with vllm.
struct SamplingDefaults {
  double temperature = 1.0;
  double top_p = 1.0;
  int32_t top_k = 0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  std::optional<int32_t> max_tokens;  // max_new_tokens
};

enum class ClientCerts { kNone, kOptional, kRequired };

// PEM files; without certificate and key the server speaks plain HTTP.
struct TlsConfig {
  std::string cert_file;
  std::string key_file;
  std::string ca_file;  // who signs clients' certificates
  ClientCerts client_certs = ClientCerts::kNone;
  std::string ciphers;  // of TLS 1.2, OpenSSL's list; empty: its default
};

struct ServerConfig {
  std::vector<std::string> served_model_names;  // at least one; answers use the first
  std::string model_root;                       // the path, shown by /v1/models
  int32_t max_model_len = 4096;
  int32_t vocab_size = 0;  // of the model; ids at or above it are refused
  std::string version;
  std::string system_fingerprint;

  std::vector<std::string> api_keys;  // any of them opens /v1, /v2 and /inference
  CorsConfig cors;
  TlsConfig tls;
  std::string root_path;  // "/prefix" of a proxy that passes it on; paths work with and without it
  SamplingDefaults defaults;
  int32_t max_logprobs = 20;  // -1 = no cap
  chat::Json default_chat_template_kwargs = chat::Json::object();
  bool trust_request_chat_template = false;  // a request may bring its own
  std::string response_role = "assistant";
  chat::Json tokenizer_info;  // of /tokenizer_info; null: there is no such endpoint

  bool parse_tools = true;      // a tool-call parser is chosen
  bool parse_reasoning = true;  // a reasoning parser is chosen
  bool exclude_tools_when_tool_choice_none = false;
  bool return_tokens_as_token_ids = false;
  bool enable_prompt_tokens_details = false;
  bool force_include_usage = false;
  bool track_server_load = false;
  bool request_id_headers = false;
  bool access_log = true;
  std::vector<std::string> silent_paths;  // no access log lines
  bool log_requests = false;
  bool engine_metrics = true;                              // off with --disable-log-stats
  std::map<std::string, std::string> cache_config_labels;  // of vllm:cache_config_info

  int num_io_threads = 1;
  int num_work_threads = 1;  // read bodies and render prompts, so that streams never wait for it
  size_t max_body_bytes = size_t{32} << 20;
  uint32_t max_header_bytes = 64U << 10;
  int32_t max_header_count = 256;
  int32_t max_connections = 8192;
  int32_t max_choices = 1024;  // prompts x n of one request
  // A request that is not finished by then ends with 504; 0 = no limit.
  std::chrono::milliseconds request_timeout{0};
  std::chrono::seconds read_timeout{120};  // an idle connection, or a request that trickles in
  std::chrono::seconds write_timeout{60};  // a client that does not read loses its request
};

}  // namespace eyrie::server
