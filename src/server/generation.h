// Requests of /v1/completions and /v1/chat/completions: from JSON to checked values. Every rule
// about fields, ranges, lengths and defaults is here; nothing here knows HTTP.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "chat/parser.h"
#include "chat/template.h"
#include "engine/request.h"
#include "server/config.h"
#include "server/fields.h"
#include "tokenizer/tokenizer.h"

namespace eyrie::server {

// What both kinds of request have.
struct Generation {
  std::string model;  // as the answer names it
  std::string request_id;
  std::vector<engine::GenerateRequest> prompts;  // one engine request each; choices are numbered on
  int32_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // logprob tokens as "token_id:N"
  bool echo = false;
  bool prompt_only = false;  // max_tokens 0 with echo: one token is generated and dropped

  int32_t num_choices() const { return static_cast<int32_t>(prompts.size()) * n; }
};

struct CompletionGeneration : Generation {
  std::vector<std::string> prompt_texts;  // filled for echo
  bool shows_logprobs = false;
  int32_t num_shown = 1;  // of the n choices of a prompt: all, or fewer with best_of
};

struct ChatGeneration : Generation {
  chat::ParserOptions parser;
  std::string role;
  bool include_reasoning = true;
  bool parallel_tool_calls = true;
  bool return_prompt_text = false;
  std::string echo_text;  // with echo and continue_final_message
};

// What a request is checked and completed against.
struct Context {
  const ServerConfig& config;
  const Tokenizer& tokenizer;
  const chat::ChatTemplate& chat_template;
};

Result<CompletionGeneration> parse_completion(const Json& body, const Context& context);
Result<ChatGeneration> parse_chat(const Json& body, const Context& context);

// Ids of a conversation, for /tokenize and parse_chat.
struct RenderedChat {
  std::vector<TokenId> tokens;
  bool ends_in_reasoning = false;
  std::string last_assistant_text;  // content of the message that is continued
  std::vector<std::string> tool_names;
  int num_history_calls = 0;
};
Result<RenderedChat> render_chat(const Json& body, const Context& context, bool with_tools);

// Checks the request's "model" against the served names; the name an answer uses.
Result<std::string> served_model(Fields& fields, const ServerConfig& config);

}  // namespace eyrie::server
