// Answers of /v1/chat/completions.

#include "chat/parser.h"
#include "server/answer.h"
#include "server/event_template.h"

namespace eyrie::server {
namespace {

using chat::Delta;

class ChatAnswer final : public Answer {
 public:
  ChatAnswer(AnswerHeader header, const ChatGeneration& generation, const ServerConfig& config,
             const Tokenizer& tokenizer)
      : Answer(std::move(header), generation, config, tokenizer),
        role_(generation.role),
        echo_text_(generation.echo_text),
        include_reasoning_(generation.include_reasoning),
        parallel_tool_calls_(generation.parallel_tool_calls),
        return_prompt_text_(generation.return_prompt_text),
        parses_reasoning_(generation.parser.reasoning),
        parses_tools_(generation.parser.tools == chat::ToolMode::kParse),
        wants_logprobs_(generation.prompts.front().params.logprobs.has_value()) {
    for (int32_t i = 0; i < generation.num_choices(); ++i) {
      own_.emplace_back(&tokenizer, generation.parser);
    }
  }

 private:
  struct Own {
    Own(const Tokenizer* tokenizer, const chat::ParserOptions& options)
        : parser(tokenizer, options) {}
    chat::OutputParser parser;
    std::vector<Delta> deltas;  // all of them (unstreamed), or those of one chunk
    Json logprobs = Json::array();
    EventTemplate content_event, reasoning_event;
  };

  const char* object_name() const override {
    return is_stream_ ? "chat.completion.chunk" : "chat.completion";
  }
  bool counts_reasoning() const override { return parses_reasoning_; }

  void take_choice(Choice& choice, int32_t choice_idx, engine::OutputChunk& chunk,
                   std::string& events) override {
    Own& own = own_[static_cast<size_t>(choice_idx)];
    if (!choice.started && !echo_text_.empty()) {
      own.deltas.push_back(
          {.kind = Delta::Kind::kContent, .text = echo_text_, .id = {}, .name = {}});
    }
    for (const TextPiece& piece : chunk.pieces) {
      if (own.parser.in_reasoning()) ++choice.num_reasoning_tokens;
      own.parser.push(piece, own.deltas);
    }
    if (choice.finish != engine::FinishReason::kNone) own.parser.finish(own.deltas);
    for (const runtime::Logprobs& entry : chunk.logprobs)
      own.logprobs.push_back(logprobs_json(entry));
    if (is_stream_) stream_deltas(choice, choice_idx, own, events);
  }

  // Text of one kind in the middle of a stream, with nothing beside it. False: it is something
  // else.
  bool stream_text(const Choice& choice, int32_t choice_idx, Own& own, std::string& events) {
    const bool is_plain = choice.started && choice.finish == engine::FinishReason::kNone &&
                          !wants_logprobs_ && !return_token_ids_ && !continuous_usage_;
    if (!is_plain || own.deltas.empty()) return false;
    const Delta::Kind kind = own.deltas.front().kind;
    if (kind != Delta::Kind::kContent && kind != Delta::Kind::kReasoning) return false;
    if (!is_shown(own.deltas.front())) return false;
    for (const Delta& delta : own.deltas) {
      if (delta.kind != kind) return false;
    }
    std::string& text = own.deltas.front().text;
    for (size_t i = 1; i < own.deltas.size(); ++i) text += own.deltas[i].text;
    EventTemplate& event = kind == Delta::Kind::kContent ? own.content_event : own.reasoning_event;
    if (event.empty()) {
      Delta slot = own.deltas.front();
      slot.text = EventTemplate::kSlot;
      event = EventTemplate(
          stream_chunk(stream_entry(choice_idx, delta_json(slot)), choice, choice.num_tokens));
    }
    event.append(text, events);
    own.deltas.clear();
    return true;
  }

  void stream_deltas(Choice& choice, int32_t choice_idx, Own& own, std::string& events) {
    if (stream_text(choice, choice_idx, own, events)) return;
    const bool is_last = choice.finish != engine::FinishReason::kNone;
    if (!choice.started) {
      Json entry = stream_entry(choice_idx, {{"role", role_}, {"content", ""}});
      if (return_token_ids_) entry["prompt_token_ids"] = prompt_of(choice);
      Json chunk = stream_chunk(std::move(entry), choice, 0);
      chunk.erase("system_fingerprint");
      append_event(chunk, events);
    }
    std::vector<Json> deltas = delta_jsons(std::exchange(own.deltas, {}));
    if (deltas.empty() && (is_last || !own.logprobs.empty() || !choice.token_ids.empty())) {
      deltas.push_back(Json::object());
    }
    for (size_t i = 0; i < deltas.size(); ++i) {
      const bool carries_finish = is_last && i + 1 == deltas.size();
      Json entry = stream_entry(choice_idx, std::move(deltas[i]));
      if (i == 0 && wants_logprobs_) {
        entry["logprobs"] = {{"content", std::exchange(own.logprobs, Json::array())}};
      }
      if (carries_finish) {
        entry["finish_reason"] = finish_reason(choice, own);
        entry["stop_reason"] = choice.stop_reason;
      }
      if (i == 0 && return_token_ids_) entry["token_ids"] = std::exchange(choice.token_ids, {});
      Json chunk = stream_chunk(std::move(entry), choice, choice.num_tokens);
      if (!carries_finish) chunk.erase("system_fingerprint");
      append_event(chunk, events);
    }
  }

  static Json stream_entry(int32_t choice_idx, Json delta) {
    return {{"index", choice_idx},
            {"delta", std::move(delta)},
            {"logprobs", nullptr},
            {"finish_reason", nullptr}};
  }

  bool is_shown(const Delta& delta) const {
    if (delta.kind == Delta::Kind::kReasoning) return include_reasoning_;
    return parallel_tool_calls_ || delta.call_idx <= 0;
  }

  // Neighbours of one kind become one delta.
  std::vector<Json> delta_jsons(std::vector<Delta> deltas) const {
    std::vector<Json> jsons;
    for (size_t i = 0; i < deltas.size(); ++i) {
      Delta& delta = deltas[i];
      if (!is_shown(delta) || delta.kind == Delta::Kind::kToolCallEnd) continue;
      if (delta.kind != Delta::Kind::kToolCallBegin) {
        while (i + 1 < deltas.size() && deltas[i + 1].kind == delta.kind &&
               deltas[i + 1].call_idx == delta.call_idx) {
          delta.text += deltas[++i].text;
        }
      }
      jsons.push_back(delta_json(delta));
    }
    return jsons;
  }

  static Json delta_json(const Delta& delta) {
    switch (delta.kind) {
      case Delta::Kind::kReasoning:
        return {{"reasoning", delta.text}, {"reasoning_content", delta.text}};
      case Delta::Kind::kContent:
        return {{"content", delta.text}};
      case Delta::Kind::kToolCallBegin:
        return {{"tool_calls",
                 Json::array({{{"index", delta.call_idx},
                               {"id", delta.id},
                               {"type", "function"},
                               {"function", {{"name", delta.name}, {"arguments", ""}}}}})}};
      default:
        return {{"tool_calls", Json::array({{{"index", delta.call_idx},
                                             {"function", {{"arguments", delta.text}}}}})}};
    }
  }

  std::string finish_reason(const Choice& choice, const Own& own) const {
    const int num_calls = own.parser.num_tool_calls();
    // A stop string inside a call leaves arguments that nobody should act on.
    const bool cut =
        choice.stop_reason.is_string() && own.parser.num_complete_tool_calls() < num_calls;
    const bool called =
        parses_tools_ && choice.finish == engine::FinishReason::kStop && num_calls > 0 && !cut;
    return called ? "tool_calls" : std::string(to_string(choice.finish));
  }

  Json whole_choice(Choice& choice, int32_t choice_idx) override {
    Own& own = own_[static_cast<size_t>(choice_idx)];
    std::erase_if(own.deltas, [&](const Delta& delta) { return !is_shown(delta); });
    chat::ParsedOutput parsed = chat::collect(own.deltas);
    Json calls = Json::array();
    for (auto& call : parsed.tool_calls) {
      calls.push_back(
          {{"id", std::move(call.id)},
           {"type", "function"},
           {"function",
            {{"name", std::move(call.name)}, {"arguments", std::move(call.arguments)}}}});
    }
    // Nothing said at all is an empty answer; all of it thought or called is none.
    const bool has_other = parsed.reasoning.has_value() || !calls.empty();
    Json content = has_other ? Json(nullptr) : Json("");
    if (parsed.content) content = std::move(*parsed.content);
    const Json reasoning = parsed.reasoning ? Json(std::move(*parsed.reasoning)) : Json(nullptr);
    Json message = {{"role", role_},
                    {"content", std::move(content)},
                    {"refusal", nullptr},
                    {"annotations", nullptr},
                    {"audio", nullptr},
                    {"function_call", nullptr},
                    {"tool_calls", std::move(calls)},
                    {"reasoning", reasoning},
                    {"reasoning_content", reasoning}};
    Json entry = {{"index", choice_idx},
                  {"message", std::move(message)},
                  {"logprobs", nullptr},
                  {"finish_reason", finish_reason(choice, own)},
                  {"stop_reason", choice.stop_reason},
                  {"token_ids", return_token_ids_ ? Json(choice.token_ids) : Json(nullptr)}};
    if (wants_logprobs_) entry["logprobs"] = {{"content", std::move(own.logprobs)}};
    return entry;
  }

  void add_prompt_fields(const Choice& first, Json& body) const override {
    body["prompt_logprobs"] = prompt_logprobs_json(first);
    body["prompt_token_ids"] = return_token_ids_ ? Json(prompt_of(first)) : Json(nullptr);
    body["prompt_text"] =
        return_prompt_text_ ? Json(tokenizer_.decode(prompt_of(first), false)) : Json(nullptr);
  }

  std::string role_;
  std::string echo_text_;
  bool include_reasoning_;
  bool parallel_tool_calls_;
  bool return_prompt_text_;
  bool parses_reasoning_;
  bool parses_tools_;
  bool wants_logprobs_;
  std::vector<Own> own_;
};

}  // namespace

std::unique_ptr<Answer> make_answer(AnswerHeader header, const ChatGeneration& generation,
                                    const ServerConfig& config, const Tokenizer& tokenizer) {
  return std::make_unique<ChatAnswer>(std::move(header), generation, config, tokenizer);
}

}  // namespace eyrie::server
