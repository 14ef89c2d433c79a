#include "server/block_answer.h"

#include <algorithm>
#include <utility>

namespace eyrie::server {

using chat::Delta;

BlockAnswer::BlockAnswer(AnswerHeader header, const ChatGeneration& generation,
                         const ServerConfig& config, const Tokenizer& tokenizer)
    : Answer(std::move(header), generation, config, tokenizer),
      parser_(&tokenizer, generation.parser),
      parallel_tool_calls_(generation.parallel_tool_calls),
      wants_logprobs_(generation.prompts.front().params.logprobs.has_value()) {
  CHECK(generation.num_choices() == 1);
}

bool BlockAnswer::has_calls() const {
  return std::any_of(blocks_.begin(), blocks_.end(),
                     [](const Block& block) { return block.kind == Block::Kind::kCall; });
}

void BlockAnswer::append_named_event(const char* name, const Json& json, std::string& events) {
  events += "event: ";
  events += name;
  events += '\n';
  append_event(json, events);
}

void BlockAnswer::take_choice(Choice& choice, int32_t, engine::OutputChunk& chunk,
                              std::string& events) {
  num_output_tokens_ = choice.num_tokens;
  num_cached_tokens_ = choice.num_cached_tokens;
  finish_ = choice.finish;
  stop_reason_ = choice.stop_reason;
  if (!choice.started && is_stream_) begin(events);

  std::vector<Delta> deltas;
  for (size_t i = 0; i < chunk.pieces.size(); ++i) {
    if (parser_.in_reasoning()) ++num_reasoning_tokens_;
    if (wants_logprobs_) held_logprobs_.push_back(logprobs_json(chunk.logprobs.at(i)));
    parser_.push(chunk.pieces[i], deltas);
    // A marker is no text's.
    if (deltas.empty() && tokenizer_.is_control(chunk.pieces[i].token)) held_logprobs_.clear();
    for (Delta& delta : std::exchange(deltas, {})) take_delta(std::move(delta), events);
  }
  if (finish_ != engine::FinishReason::kNone) {
    parser_.finish(deltas);
    for (Delta& delta : deltas) take_delta(std::move(delta), events);
  }
  flush(events);
  if (finish_ == engine::FinishReason::kNone) return;
  // These APIs have no word for an answer that the server broke off.
  if (finish_ == engine::FinishReason::kAbort) {
    return fail({FailureKind::kUnavailable, "the server is shutting down", ""});
  }
  if (!blocks_.empty() && blocks_.back().open) {
    blocks_.back().cut = finish_ == engine::FinishReason::kLength;
    end_block(events);
  }
}

void BlockAnswer::take_delta(Delta&& delta, std::string& events) {
  if (!parallel_tool_calls_ && delta.call_idx > 0) return;
  if (delta.kind == Delta::Kind::kToolCallEnd) {
    end_block(events);
    return;
  }
  const Block::Kind kind = delta.kind == Delta::Kind::kReasoning ? Block::Kind::kThought
                           : delta.kind == Delta::Kind::kContent ? Block::Kind::kText
                                                                 : Block::Kind::kCall;
  const bool goes_on = !blocks_.empty() && blocks_.back().open && blocks_.back().kind == kind &&
                       delta.kind != Delta::Kind::kToolCallBegin;
  if (!goes_on) {
    end_block(events);
    Block block;
    block.kind = kind;
    block.id = std::move(delta.id);
    block.name = std::move(delta.name);
    blocks_.push_back(std::move(block));
    if (is_stream_) open_block(blocks_.size() - 1, events);
  }
  grown_ += delta.text;
  Json logprobs = std::exchange(held_logprobs_, Json::array());
  if (kind != Block::Kind::kText) return;
  for (Json& entry : logprobs) grown_logprobs_.push_back(std::move(entry));
}

void BlockAnswer::flush(std::string& events) {
  if (grown_.empty()) return;
  Block& block = blocks_.back();
  block.text += grown_;
  for (const Json& entry : grown_logprobs_) block.logprobs.push_back(entry);
  const std::string text = std::exchange(grown_, {});
  Json logprobs = std::exchange(grown_logprobs_, Json::array());
  if (is_stream_) grow_block(blocks_.size() - 1, text, std::move(logprobs), events);
}

void BlockAnswer::end_block(std::string& events) {
  flush(events);
  if (blocks_.empty() || !blocks_.back().open) return;
  blocks_.back().open = false;
  if (is_stream_) close_block(blocks_.size() - 1, events);
}

}  // namespace eyrie::server
