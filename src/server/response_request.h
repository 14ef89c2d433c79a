// Requests of OpenAI's /v1/responses: text and functions. They are rewritten as chat completions,
// so that sampling, tools, thinking and lengths follow one set of rules.
#pragma once

#include <memory>

#include "server/answer.h"
#include "server/generation.h"
#include "server/response_store.h"

namespace eyrie::server {

struct ResponseGeneration : ChatGeneration {
  Json said;      // fields of the request that the answer repeats
  Json messages;  // the conversation without instructions, for previous_response_id
  bool store = true;
};

Result<ResponseGeneration> parse_response(const Json& body, const Context& context,
                                          ResponseStore& store);

std::unique_ptr<Answer> make_answer(AnswerHeader header, const ResponseGeneration& generation,
                                    const ServerConfig& config, const Tokenizer& tokenizer,
                                    ResponseStore& store);

}  // namespace eyrie::server
