#include "bench/stream_chunk.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace eyrie::bench {
namespace {

using nlohmann::json;

// The member if it is there and not null.
const json* member(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> integer_member(const json& object, const char* key) {
  const json* value = member(object, key);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->get<int64_t>();
}

void append_text(const json& object, const char* key, std::string& out) {
  const json* value = member(object, key);
  if (value != nullptr && value->is_string()) out += value->get_ref<const std::string&>();
}

std::optional<int64_t> count_tokens(const json& choice) {
  if (const json* ids = member(choice, "token_ids"); ids != nullptr && ids->is_array()) {
    return static_cast<int64_t>(ids->size());
  }
  const json* logprobs = member(choice, "logprobs");
  if (logprobs == nullptr) return std::nullopt;
  for (const char* key : {"tokens", "content"}) {  // completions, chat
    const json* tokens = member(*logprobs, key);
    if (tokens != nullptr && tokens->is_array()) return static_cast<int64_t>(tokens->size());
  }
  return std::nullopt;
}

void read_choice(const json& choice, StreamChunk& chunk) {
  append_text(choice, "text", chunk.text);
  if (const json* delta = member(choice, "delta")) {
    append_text(*delta, "reasoning", chunk.text);
    if (member(*delta, "reasoning") == nullptr) {
      append_text(*delta, "reasoning_content", chunk.text);
    }
    append_text(*delta, "content", chunk.text);
    chunk.bears_content = member(*delta, "tool_calls") != nullptr;
  }
  append_text(choice, "finish_reason", chunk.finish_reason);
  chunk.num_token_ids = count_tokens(choice);
  chunk.bears_content =
      chunk.bears_content || !chunk.text.empty() || chunk.num_token_ids.value_or(0) > 0;
}

std::string message_of(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  for (const char* key : {"message", "error", "detail"}) {
    if (const json* inner = member(value, key)) return message_of(*inner);
  }
  return value.dump();
}

}  // namespace

StreamChunk parse_stream_chunk(std::string_view data) {
  StreamChunk chunk;
  if (data == "[DONE]") {
    chunk.done = true;
    return chunk;
  }
  const json event = json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) {
    chunk.error = fmt::format("the stream held an event that is not a JSON object: {:.80}", data);
    return chunk;
  }
  if (const json* error = member(event, "error")) {
    chunk.error = message_of(*error);
    return chunk;
  }
  if (const json* choices = member(event, "choices"); choices != nullptr && choices->is_array()) {
    chunk.has_choices = !choices->empty();
    if (chunk.has_choices) read_choice(choices->front(), chunk);
  }
  if (const json* usage = member(event, "usage")) {
    chunk.completion_tokens = integer_member(*usage, "completion_tokens");
    chunk.prompt_tokens = integer_member(*usage, "prompt_tokens");
    if (const json* details = member(*usage, "prompt_tokens_details")) {
      chunk.cached_tokens = integer_member(*details, "cached_tokens");
    }
  }
  return chunk;
}

std::string error_message(std::string_view body) {
  const json answer = json::parse(body, nullptr, /*allow_exceptions=*/false);
  std::string message = answer.is_object() ? message_of(answer) : std::string(body);
  for (char& c : message) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  constexpr size_t kLongest = 300;
  if (message.size() > kLongest) message = message.substr(0, kLongest) + "…";
  return message;
}

}  // namespace eyrie::bench
