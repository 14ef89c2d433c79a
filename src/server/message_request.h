// Requests of Anthropic's /v1/messages and /v1/messages/count_tokens. They are rewritten as chat
// completions, so that sampling, tools, thinking and lengths follow one set of rules.
#pragma once

#include <memory>

#include "server/answer.h"
#include "server/generation.h"

namespace eyrie::server {

struct MessageGeneration : ChatGeneration {};

// The chat request that a body of Anthropic's asks for. Counting needs no max_tokens.
Result<Json> chat_from_message(const Json& body, bool is_counting);
Result<MessageGeneration> parse_message(const Json& body, const Context& context);

// {"type":"error","error":{"type","message"}}
Json message_error_body(const Failure& failure);

std::unique_ptr<Answer> make_answer(AnswerHeader header, const MessageGeneration& generation,
                                    const ServerConfig& config, const Tokenizer& tokenizer);

}  // namespace eyrie::server
