// Fields that both kinds of generation request have: sampling, streaming, what is not supported.
#pragma once

#include <optional>

#include "server/generation.h"

namespace eyrie::server {

// Everything but prompts, lengths and logprobs.
void read_common(Fields& fields, const Context& context, Generation& generation,
                 engine::GenerateRequest& request);

// A number of logprobs under --max-logprobs, from `min` (0, or -1 for all of the vocabulary).
std::optional<int32_t> read_num_logprobs(Fields& fields, const char* name, const Context& context,
                                         int64_t min);
void read_prompt_logprobs(Fields& fields, const Context& context, const Generation& generation,
                          runtime::SamplingParams& params);

}  // namespace eyrie::server
