// One SSE event of an OpenAI-compatible stream, reduced to what the benchmark measures. Completion
// and chat chunks are both understood; unknown fields are ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace eyrie::bench {

struct StreamChunk {
  bool done = false;           // the "[DONE]" mark
  bool has_choices = false;    // `choices` present and not empty: an arrival that counts
  std::string text;            // text, or delta.content and delta.reasoning in chat
  bool bears_content = false;  // text, a tool call delta or token ids: more than a role or an end
  std::optional<int64_t> num_token_ids;      // tokens in this chunk, when the server lists them
  std::optional<int64_t> completion_tokens;  // usage so far (final or continuous)
  std::optional<int64_t> prompt_tokens;
  std::optional<int64_t> cached_tokens;  // usage.prompt_tokens_details.cached_tokens
  std::string finish_reason;
  std::string error;  // message of an error event, or why the event could not be read
};

StreamChunk parse_stream_chunk(std::string_view data);

// The sentence inside an error answer: {"error":{"message":…}}, {"message":…}, {"detail":…}, or the
// body itself, cut to a line.
std::string error_message(std::string_view body);

}  // namespace eyrie::bench
