// From engine chunks to an OpenAI answer: server-sent events as they come, or one JSON body at the
// end. Both come from the same per-choice state and the same parser, so a streamed answer put
// together equals the unstreamed one. One object a request, on its connection's strand.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "server/generation.h"

namespace eyrie::server {

int http_status(FailureKind kind);
// {"error":{"message","type","param","code"}}
Json error_body(const Failure& failure);
void append_event(const Json& json, std::string& events);  // data: {…}\n\n
// JSON has no infinity; vLLM's stand-in for a token of probability 0 is -9999.
double finite_logprob(float logprob);
void append_done(std::string& events);  // data: [DONE]\n\n

// What every answer repeats.
struct AnswerHeader {
  std::string id;  // "cmpl-…", "chatcmpl-…"
  int64_t created = 0;
  std::string system_fingerprint;
};

class Answer {
 public:
  Answer(AnswerHeader header, const Generation& generation, const ServerConfig& config,
         const Tokenizer& tokenizer);
  virtual ~Answer() = default;

  // News of a choice; for a stream, its events are appended.
  void take(engine::OutputChunk&& chunk, std::string& events);
  bool finished() const { return num_unfinished_ == 0; }
  // A choice failed: the whole request does.
  const Failure* failure() const { return failure_ ? &*failure_ : nullptr; }

  // Once finished:
  virtual void end_stream(std::string& events);  // usage if asked for, [DONE]
  virtual Json whole();

  // Once failed: the end of a stream that has begun, and the body of an answer that has not.
  virtual void fail_stream(std::string& events);
  virtual Json error_json(const Failure& failure) const { return error_body(failure); }

 protected:
  struct Choice {
    size_t prompt_idx = 0;
    bool started = false;
    int64_t num_tokens = 0;
    int32_t num_cached_tokens = 0;
    int64_t num_reasoning_tokens = 0;
    engine::FinishReason finish = engine::FinishReason::kNone;
    Json stop_reason;  // the stop string, the stop token's id, or null
    std::vector<TokenId> token_ids;
    std::vector<runtime::Logprobs> prompt_logprobs;
  };

  virtual const char* object_name() const = 0;
  virtual bool counts_reasoning() const { return false; }
  virtual void take_choice(Choice& choice, int32_t choice_idx, engine::OutputChunk& chunk,
                           std::string& events) = 0;
  virtual Json whole_choice(Choice& choice, int32_t choice_idx) = 0;
  // The choices an unstreamed answer shows, in order.
  virtual std::vector<int32_t> shown_choices() const;
  void fail(Failure failure) { failure_ = std::move(failure); }
  // Fields about the prompt that belong to the body, not to a choice.
  virtual void add_prompt_fields(const Choice& /*first*/, Json& /*body*/) const {}

  // A stream chunk around one choice's entry; num_tokens is what continuous usage counts by then.
  Json stream_chunk(Json entry, const Choice& choice, int64_t num_tokens) const;
  Json usage(int64_t num_prompt, int64_t num_completion, int64_t num_cached) const;
  Json total_usage() const;
  std::string token_text(TokenId id) const;  // as logprobs show it
  Json prompt_logprobs_json(const Choice& choice) const;
  // One token with its alternatives, as chat completions show it.
  Json logprobs_json(const runtime::Logprobs& entry) const;
  const std::vector<TokenId>& prompt_of(const Choice& choice) const {
    return prompts_[choice.prompt_idx];
  }

  AnswerHeader header_;
  const ServerConfig& config_;
  const Tokenizer& tokenizer_;
  std::string model_;
  std::vector<std::vector<TokenId>> prompts_;
  bool is_stream_ = false;
  bool include_usage_ = false;
  bool continuous_usage_ = false;
  bool return_token_ids_ = false;
  bool tokens_as_ids_ = false;
  bool shows_prompt_logprobs_ = false;
  bool prompt_only_ = false;

 private:
  std::vector<Choice> choices_;
  int32_t num_unfinished_ = 0;
  std::optional<Failure> failure_;
};

std::unique_ptr<Answer> make_answer(AnswerHeader header, const CompletionGeneration& generation,
                                    const ServerConfig& config, const Tokenizer& tokenizer);
std::unique_ptr<Answer> make_answer(AnswerHeader header, const ChatGeneration& generation,
                                    const ServerConfig& config, const Tokenizer& tokenizer);

}  // namespace eyrie::server
