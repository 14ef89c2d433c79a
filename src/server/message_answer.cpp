// Answers of /v1/messages, in Anthropic's shape.
#include "chat/json_text.h"
#include "server/block_answer.h"
#include "server/message_request.h"

namespace eyrie::server {
namespace {

class MessageAnswer final : public BlockAnswer {
 public:
  using BlockAnswer::BlockAnswer;

  Json whole() override {
    Json content = Json::array();
    for (const Block& block : blocks()) content.push_back(block_json(block));
    Json message = head();
    message["content"] = std::move(content);
    message.update(stop_json());
    message["usage"] = usage_json();
    return message;
  }

  void end_stream(std::string& events) override {
    event({{"type", "message_delta"}, {"delta", stop_json()}, {"usage", usage_json()}}, events);
    event({{"type", "message_stop"}}, events);
  }

  void fail_stream(std::string& events) override { event(error_json(*failure()), events); }
  Json error_json(const Failure& failure) const override { return message_error_body(failure); }

 private:
  static void event(const Json& json, std::string& events) {
    append_named_event(json["type"].get_ref<const std::string&>().c_str(), json, events);
  }

  void begin(std::string& events) override {
    Json message = head();
    message["usage"] = usage_json();
    message["usage"]["output_tokens"] = 0;
    message["usage"].erase("output_tokens_details");
    event({{"type", "message_start"}, {"message", std::move(message)}}, events);
    event({{"type", "ping"}}, events);
  }

  void open_block(size_t idx, std::string& events) override {
    const Block& block = blocks()[idx];
    Json start = {{"type", "text"}, {"text", ""}};
    if (block.kind == Block::Kind::kThought) {
      start = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
    } else if (block.kind == Block::Kind::kCall) {
      start = {
          {"type", "tool_use"}, {"id", block.id}, {"name", block.name}, {"input", Json::object()}};
    }
    event({{"type", "content_block_start"}, {"index", idx}, {"content_block", std::move(start)}},
          events);
  }

  void grow_block(size_t idx, std::string_view text, Json, std::string& events) override {
    switch (blocks()[idx].kind) {
      case Block::Kind::kThought:
        return delta(idx, {{"type", "thinking_delta"}, {"thinking", text}}, events);
      case Block::Kind::kText:
        return delta(idx, {{"type", "text_delta"}, {"text", text}}, events);
      case Block::Kind::kCall:
        return delta(idx, {{"type", "input_json_delta"}, {"partial_json", text}}, events);
    }
  }

  void close_block(size_t idx, std::string& events) override {
    if (blocks()[idx].kind == Block::Kind::kThought) {
      delta(idx, {{"type", "signature_delta"}, {"signature", signature()}}, events);
    }
    event({{"type", "content_block_stop"}, {"index", idx}}, events);
  }

  static void delta(size_t idx, Json delta, std::string& events) {
    event({{"type", "content_block_delta"}, {"index", idx}, {"delta", std::move(delta)}}, events);
  }

  Json head() const {
    return {{"id", header_.id},         {"type", "message"}, {"role", "assistant"},
            {"content", Json::array()}, {"model", model_},   {"stop_reason", nullptr},
            {"stop_sequence", nullptr}};
  }

  // Clients keep a thought only with a signature and send it back with it; we check none.
  const std::string& signature() const { return header_.id; }

  Json block_json(const Block& block) const {
    switch (block.kind) {
      case Block::Kind::kThought:
        return {{"type", "thinking"}, {"thinking", block.text}, {"signature", signature()}};
      case Block::Kind::kText:
        return {{"type", "text"}, {"text", block.text}};
      case Block::Kind::kCall:
        break;
    }
    // Arguments that the length cut off, or that the model got wrong, are no object.
    Json input = Json::parse(block.text, nullptr, false);
    const bool usable = input.is_object() && chat::nests_at_most(input, chat::kMaxJsonDepth);
    if (!usable) input = Json::object();
    return {{"type", "tool_use"}, {"id", block.id}, {"name", block.name}, {"input", input}};
  }

  Json stop_json() const {
    const bool by_string = stop_reason().is_string();
    const char* reason = finish() == engine::FinishReason::kLength ? "max_tokens"
                         : by_string                               ? "stop_sequence"
                         : has_calls()                             ? "tool_use"
                                                                   : "end_turn";
    return {{"stop_reason", reason}, {"stop_sequence", by_string ? stop_reason() : Json(nullptr)}};
  }

  // Anthropic counts what came from the cache apart from the rest of the input.
  Json usage_json() const {
    const int64_t cached = config_.enable_prompt_tokens_details ? num_cached_tokens() : 0;
    return {{"input_tokens", num_prompt_tokens() - cached},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", cached},
            {"output_tokens", num_output_tokens()},
            {"output_tokens_details", {{"thinking_tokens", num_reasoning_tokens()}}}};
  }
};

}  // namespace

std::unique_ptr<Answer> make_answer(AnswerHeader header, const MessageGeneration& generation,
                                    const ServerConfig& config, const Tokenizer& tokenizer) {
  return std::make_unique<MessageAnswer>(std::move(header), generation, config, tokenizer);
}

}  // namespace eyrie::server
