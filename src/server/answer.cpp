#include "server/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace eyrie::server {

int http_status(FailureKind kind) {
  switch (kind) {
    case FailureKind::kInvalidArgument:
      return 400;
    case FailureKind::kUnauthorized:
      return 401;
    case FailureKind::kNotFound:
      return 404;
    case FailureKind::kTooLarge:
      return 413;
    case FailureKind::kOverloaded:
      return 429;
    case FailureKind::kUnavailable:
      return 503;
    case FailureKind::kTimeout:
      return 504;
    case FailureKind::kInternal:
      return 500;
  }
  return 500;
}

namespace {

const char* error_type(FailureKind kind) {
  switch (kind) {
    case FailureKind::kInvalidArgument:
      return "BadRequestError";
    case FailureKind::kUnauthorized:
      return "AuthenticationError";
    case FailureKind::kNotFound:
      return "NotFoundError";
    case FailureKind::kTooLarge:
      return "RequestTooLargeError";
    case FailureKind::kOverloaded:
      return "RateLimitError";
    case FailureKind::kUnavailable:
      return "ServiceUnavailableError";
    case FailureKind::kTimeout:
      return "TimeoutError";
    case FailureKind::kInternal:
      return "InternalServerError";
  }
  return "InternalServerError";
}

}  // namespace

Json error_body(const Failure& failure) {
  return {{"error",
           {{"message", failure.message},
            {"type", error_type(failure.kind)},
            {"param", failure.param.empty() ? Json(nullptr) : Json(failure.param)},
            {"code", http_status(failure.kind)}}}};
}

void append_event(const Json& json, std::string& events) {
  events += "data: ";
  events += json.dump(-1, ' ', false, Json::error_handler_t::replace);
  events += "\n\n";
}

double finite_logprob(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

void append_done(std::string& events) { events += "data: [DONE]\n\n"; }

Answer::Answer(AnswerHeader header, const Generation& generation, const ServerConfig& config,
               const Tokenizer& tokenizer)
    : header_(std::move(header)),
      config_(config),
      tokenizer_(tokenizer),
      model_(generation.model),
      is_stream_(generation.stream),
      include_usage_(generation.include_usage),
      continuous_usage_(generation.continuous_usage),
      return_token_ids_(generation.return_token_ids),
      tokens_as_ids_(generation.tokens_as_ids),
      prompt_only_(generation.prompt_only),
      num_unfinished_(generation.num_choices()) {
  for (const engine::GenerateRequest& request : generation.prompts) {
    prompts_.push_back(request.prompt);
    shows_prompt_logprobs_ = request.params.prompt_logprobs.has_value();
  }
  choices_.resize(static_cast<size_t>(generation.num_choices()));
  for (size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].prompt_idx = i / static_cast<size_t>(generation.n);
  }
}

void Answer::take(engine::OutputChunk&& chunk, std::string& events) {
  Choice& choice = choices_.at(static_cast<size_t>(chunk.choice_idx));
  if (choice.finish != engine::FinishReason::kNone || failure_) return;
  if (chunk.finish == engine::FinishReason::kError) {
    failure_ = std::move(chunk.failure);
    return;
  }
  if (prompt_only_) {
    // The one token was made for the prompt's sake.
    chunk.pieces.clear();
    chunk.logprobs.clear();
    if (chunk.finish != engine::FinishReason::kNone) chunk.finish = engine::FinishReason::kLength;
  }
  choice.num_tokens += static_cast<int64_t>(chunk.pieces.size());
  choice.num_cached_tokens = std::max(choice.num_cached_tokens, chunk.num_cached_tokens);
  if (!chunk.prompt_logprobs.empty()) choice.prompt_logprobs = std::move(chunk.prompt_logprobs);
  if (return_token_ids_) {
    for (const TextPiece& piece : chunk.pieces) choice.token_ids.push_back(piece.token);
  }
  choice.finish = chunk.finish;
  if (!chunk.stop_string.empty()) choice.stop_reason = chunk.stop_string;
  if (chunk.stop_token) choice.stop_reason = *chunk.stop_token;
  take_choice(choice, chunk.choice_idx, chunk, events);
  choice.started = true;
  if (choice.finish != engine::FinishReason::kNone) --num_unfinished_;
}

Json Answer::stream_chunk(Json entry, const Choice& choice, int64_t num_tokens) const {
  Json chunk = {{"id", header_.id},
                {"object", object_name()},
                {"created", header_.created},
                {"model", model_},
                {"choices", Json::array({std::move(entry)})}};
  if (continuous_usage_) {
    chunk["usage"] = usage(static_cast<int64_t>(prompt_of(choice).size()), num_tokens, 0);
  }
  if (choice.finish != engine::FinishReason::kNone && !include_usage_) {
    chunk["system_fingerprint"] = header_.system_fingerprint;
  }
  return chunk;
}

Json Answer::usage(int64_t num_prompt, int64_t num_completion, int64_t num_cached) const {
  Json usage = {{"prompt_tokens", num_prompt},
                {"total_tokens", num_prompt + num_completion},
                {"completion_tokens", num_completion}};
  if (config_.enable_prompt_tokens_details && num_cached > 0) {
    usage["prompt_tokens_details"] = {{"cached_tokens", num_cached}};
  }
  return usage;
}

// A prompt is counted once, however many choices answer it.
Json Answer::total_usage() const {
  int64_t num_prompt = 0;
  int64_t num_completion = 0;
  int64_t num_cached = 0;
  int64_t num_reasoning = 0;
  for (const auto& prompt : prompts_) num_prompt += static_cast<int64_t>(prompt.size());
  for (size_t i = 0; i < choices_.size(); ++i) {
    num_completion += choices_[i].num_tokens;
    num_reasoning += choices_[i].num_reasoning_tokens;
    const bool is_first = i == 0 || choices_[i].prompt_idx != choices_[i - 1].prompt_idx;
    if (is_first) num_cached += choices_[i].num_cached_tokens;
  }
  Json total = usage(num_prompt, num_completion, num_cached);
  if (counts_reasoning())
    total["completion_tokens_details"] = {{"reasoning_tokens", num_reasoning}};
  return total;
}

std::vector<int32_t> Answer::shown_choices() const {
  std::vector<int32_t> all(choices_.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void Answer::fail_stream(std::string& events) {
  append_event(error_body(*failure_), events);
  append_done(events);
}

void Answer::end_stream(std::string& events) {
  if (include_usage_) {
    append_event({{"id", header_.id},
                  {"object", object_name()},
                  {"created", header_.created},
                  {"model", model_},
                  {"choices", Json::array()},
                  {"usage", total_usage()},
                  {"system_fingerprint", header_.system_fingerprint}},
                 events);
  }
  append_done(events);
}

Json Answer::whole() {
  Json entries = Json::array();
  for (const int32_t choice_idx : shown_choices()) {
    Json entry = whole_choice(choices_[static_cast<size_t>(choice_idx)], choice_idx);
    entry["index"] = entries.size();
    entries.push_back(std::move(entry));
  }
  Json total = total_usage();
  if (!total.contains("prompt_tokens_details")) total["prompt_tokens_details"] = nullptr;
  Json body = {{"id", header_.id},
               {"object", object_name()},
               {"created", header_.created},
               {"model", model_},
               {"choices", std::move(entries)},
               {"service_tier", nullptr},
               {"system_fingerprint", header_.system_fingerprint},
               {"usage", std::move(total)},
               {"kv_transfer_params", nullptr}};
  add_prompt_fields(choices_.front(), body);
  return body;
}

std::string Answer::token_text(TokenId id) const {
  if (tokens_as_ids_) return fmt::format("token_id:{}", id);
  return tokenizer_.decode(std::span(&id, 1), false);
}

Json Answer::logprobs_json(const runtime::Logprobs& entry) const {
  const auto one = [this](const runtime::TokenLogprob& token) -> Json {
    Json bytes = Json::array();
    for (const char c : tokenizer_.token_bytes(token.id)) {
      bytes.push_back(static_cast<unsigned char>(c));
    }
    return {{"token", token_text(token.id)},
            {"logprob", finite_logprob(token.logprob)},
            {"bytes", std::move(bytes)}};
  };
  Json json = one(entry.token);
  Json top = Json::array();
  for (const runtime::TokenLogprob& other : entry.top) top.push_back(one(other));
  json["top_logprobs"] = std::move(top);
  return json;
}

// vLLM's prompt_logprobs: null for the first token, then {id: {logprob, rank, decoded_token}}.
Json Answer::prompt_logprobs_json(const Choice& choice) const {
  if (!shows_prompt_logprobs_) return nullptr;
  Json list = Json::array({nullptr});
  for (const runtime::Logprobs& entry : choice.prompt_logprobs) {
    Json tokens = Json::object();
    const auto add = [&](const runtime::TokenLogprob& token) {
      const std::string key = std::to_string(token.id);
      if (tokens.contains(key)) return;
      tokens[key] = {{"logprob", finite_logprob(token.logprob)},
                     {"rank", token.rank},
                     {"decoded_token", tokenizer_.decode(std::span(&token.id, 1), false)}};
    };
    add(entry.token);
    std::for_each(entry.top.begin(), entry.top.end(), add);
    list.push_back(std::move(tokens));
  }
  return list;
}

}  // namespace eyrie::server
