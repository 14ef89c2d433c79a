// What can be learnt about the server and the model's tokenizer before a run begins.
#pragma once

#include <memory>
#include <string>

#include "bench/http.h"
#include "bench/serve_options.h"
#include "bench/text_codec.h"

namespace eyrie::bench {

struct ServerInfo {
  std::string model_name;         // for the `model` field of requests
  std::string model_root;         // what the server loaded, as it says
  std::string served_names;       // "a, b": what the server lists
  bool is_listed = true;          // model_name is among them, or nothing is listed
  int64_t max_model_len = 0;      // 0 = it does not say
  bool continuous_usage = false;  // understands stream_options.continuous_usage_stats
};

// From GET /v1/models. Error when nobody listens (with the port trap spelled out), when the key is
// wrong, or when no model is named and the server lists none.
ServerInfo ask_server(const HttpRequest& models, const ServeOptions& options);
ServerInfo read_models(const std::string& body, const ServeOptions& options);

// What to say when the connection was refused.
std::string refused_hint(const ServeOptions& options);

struct TokenizerChoice {
  std::string id;   // as named
  std::string dir;  // where it lies on this machine; empty: nowhere
};
TokenizerChoice open_tokenizer(const ServeOptions& options, const ServerInfo& server);

// The codec, or null where the tokenizer is not here or --skip-tokenizer-init was given; datasets
// that need one say so.
std::unique_ptr<TextCodec> load_codec_if_any(const TokenizerChoice& tokenizer,
                                             const ServeOptions& options);

// A directory as it is, or a hub id ("moonshotai/Kimi-K2.5") in the local Hugging Face cache.
std::string find_model_dir(const std::string& name);

}  // namespace eyrie::bench
