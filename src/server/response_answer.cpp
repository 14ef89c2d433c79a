// Answers of /v1/responses, in the shape of OpenAI's Responses API.
#include <fmt/format.h>

#include "server/block_answer.h"
#include "server/response_request.h"

namespace eyrie::server {
namespace {

class ResponseAnswer final : public BlockAnswer {
 public:
  ResponseAnswer(AnswerHeader header, const ResponseGeneration& generation,
                 const ServerConfig& config, const Tokenizer& tokenizer, ResponseStore& store)
      : BlockAnswer(std::move(header), generation, config, tokenizer),
        said_(generation.said),
        messages_(generation.messages),
        stores_(generation.store),
        store_(store) {}

  Json whole() override {
    Json body = response(is_cut() ? "incomplete" : "completed");
    if (stores_) {
      messages_.push_back(assistant_message());
      store_.put(header_.id, {text_of(body), text_of(messages_)});
    }
    return body;
  }

  void end_stream(std::string& events) override {
    event(is_cut() ? "response.incomplete" : "response.completed", {{"response", whole()}}, events);
  }

  void fail_stream(std::string& events) override {
    Json body = response("failed");
    body["error"] = {{"code", "server_error"}, {"message", failure()->message}};
    event("response.failed", {{"response", std::move(body)}}, events);
  }

 private:
  static std::string text_of(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  bool is_cut() const { return finish() == engine::FinishReason::kLength; }

  void event(const char* type, Json fields, std::string& events) {
    Json json = {{"type", type}, {"sequence_number", num_events_++}};
    json.update(fields);
    append_named_event(type, json, events);
  }

  // An event about block idx, of part 0 where its item has parts.
  void item_event(const char* type, size_t idx, Json fields, std::string& events) {
    Json json = {{"item_id", item_id(idx)}, {"output_index", idx}};
    if (blocks()[idx].kind != Block::Kind::kCall) json["content_index"] = 0;
    json.update(fields);
    event(type, std::move(json), events);
  }

  void begin(std::string& events) override {
    event("response.created", {{"response", response("in_progress")}}, events);
    event("response.in_progress", {{"response", response("in_progress")}}, events);
  }

  void open_block(size_t idx, std::string& events) override {
    const Block& block = blocks()[idx];
    Json added = item(idx);
    if (block.kind == Block::Kind::kCall) {
      added["arguments"] = "";
    } else {
      added["content"] = Json::array();
    }
    event("response.output_item.added", {{"output_index", idx}, {"item", std::move(added)}},
          events);
    if (block.kind == Block::Kind::kCall) return;
    item_event("response.content_part.added", idx, {{"part", part(block)}}, events);
  }

  void grow_block(size_t idx, std::string_view text, Json logprobs, std::string& events) override {
    switch (blocks()[idx].kind) {
      case Block::Kind::kThought:
        return item_event("response.reasoning_text.delta", idx, {{"delta", text}}, events);
      case Block::Kind::kText:
        return item_event("response.output_text.delta", idx,
                          {{"delta", text}, {"logprobs", std::move(logprobs)}}, events);
      case Block::Kind::kCall:
        return item_event("response.function_call_arguments.delta", idx, {{"delta", text}}, events);
    }
  }

  void close_block(size_t idx, std::string& events) override {
    const Block& block = blocks()[idx];
    switch (block.kind) {
      case Block::Kind::kThought:
        item_event("response.reasoning_text.done", idx, {{"text", block.text}}, events);
        break;
      case Block::Kind::kText:
        item_event("response.output_text.done", idx,
                   {{"text", block.text}, {"logprobs", block.logprobs}}, events);
        break;
      case Block::Kind::kCall:
        item_event("response.function_call_arguments.done", idx,
                   {{"name", block.name}, {"arguments", block.text}}, events);
        break;
    }
    if (block.kind != Block::Kind::kCall) {
      item_event("response.content_part.done", idx, {{"part", part(block)}}, events);
    }
    event("response.output_item.done", {{"output_index", idx}, {"item", item(idx)}}, events);
  }

  std::string item_id(size_t idx) const {
    const Block::Kind kind = blocks()[idx].kind;
    const char* prefix = kind == Block::Kind::kThought ? "rs"
                         : kind == Block::Kind::kText  ? "msg"
                                                       : "fc";
    return fmt::format("{}_{}_{}", prefix, header_.id.substr(header_.id.find('_') + 1), idx);
  }

  static Json part(const Block& block) {
    if (block.kind == Block::Kind::kThought) {
      return {{"type", "reasoning_text"}, {"text", block.text}};
    }
    return {{"type", "output_text"},
            {"text", block.text},
            {"annotations", Json::array()},
            {"logprobs", block.logprobs}};
  }

  Json item(size_t idx) const {
    const Block& block = blocks()[idx];
    const char* status = block.open ? "in_progress" : block.cut ? "incomplete" : "completed";
    switch (block.kind) {
      case Block::Kind::kThought:
        return {{"id", item_id(idx)},           {"type", "reasoning"},
                {"summary", Json::array()},     {"content", Json::array({part(block)})},
                {"encrypted_content", nullptr}, {"status", status}};
      case Block::Kind::kText:
        return {{"id", item_id(idx)},
                {"type", "message"},
                {"status", status},
                {"role", "assistant"},
                {"content", Json::array({part(block)})}};
      case Block::Kind::kCall:
        break;
    }
    return {{"id", item_id(idx)}, {"type", "function_call"}, {"call_id", block.id},
            {"name", block.name}, {"arguments", block.text}, {"status", status}};
  }

  Json response(const char* status) const {
    const bool is_under_way = std::string_view(status) == "in_progress";
    Json output = Json::array();
    for (size_t i = 0; i < blocks().size(); ++i) output.push_back(item(i));
    Json body = {
        {"id", header_.id},
        {"object", "response"},
        {"created_at", header_.created},
        {"status", status},
        {"background", false},
        {"error", nullptr},
        {"incomplete_details", is_cut() ? Json{{"reason", "max_output_tokens"}} : Json(nullptr)},
        {"model", model_},
        {"output", std::move(output)},
        {"usage", is_under_way ? Json(nullptr) : usage_json()}};
    body.update(said_);
    return body;
  }

  Json usage_json() const {
    const int64_t cached = config_.enable_prompt_tokens_details ? num_cached_tokens() : 0;
    return {{"input_tokens", num_prompt_tokens()},
            {"input_tokens_details", {{"cached_tokens", cached}, {"cache_write_tokens", 0}}},
            {"output_tokens", num_output_tokens()},
            {"output_tokens_details", {{"reasoning_tokens", num_reasoning_tokens()}}},
            {"total_tokens", num_prompt_tokens() + num_output_tokens()}};
  }

  // The output as the next turn's history has it.
  Json assistant_message() const {
    std::string thought;
    std::string text;
    Json calls = Json::array();
    for (const Block& block : blocks()) {
      if (block.kind == Block::Kind::kThought) thought += block.text;
      if (block.kind == Block::Kind::kText) text += block.text;
      if (block.kind != Block::Kind::kCall) continue;
      calls.push_back({{"id", block.id},
                       {"type", "function"},
                       {"function", {{"name", block.name}, {"arguments", block.text}}}});
    }
    Json message = {{"role", "assistant"}, {"content", text}, {"reasoning", thought}};
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    return message;
  }

  Json said_;
  Json messages_;
  bool stores_;
  ResponseStore& store_;
  int64_t num_events_ = 0;
};

}  // namespace

std::unique_ptr<Answer> make_answer(AnswerHeader header, const ResponseGeneration& generation,
                                    const ServerConfig& config, const Tokenizer& tokenizer,
                                    ResponseStore& store) {
  return std::make_unique<ResponseAnswer>(std::move(header), generation, config, tokenizer, store);
}

}  // namespace eyrie::server
