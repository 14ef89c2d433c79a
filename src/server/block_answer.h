// Answers that are a list of blocks (a thought, text, tool calls) instead of one message:
// /v1/responses and /v1/messages. The parser is the one chat completions use; here its deltas
// become blocks that open, grow and close, one at a time and in order. A stream says each of these
// three as it happens and a whole answer is made of what they left, so the two are the same. One
// choice only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/parser.h"
#include "server/answer.h"

namespace eyrie::server {

class BlockAnswer : public Answer {
 public:
  BlockAnswer(AnswerHeader header, const ChatGeneration& generation, const ServerConfig& config,
              const Tokenizer& tokenizer);

 protected:
  struct Block {
    enum class Kind { kThought, kText, kCall };
    Kind kind = Kind::kText;
    std::string text;               // of a call: its arguments
    std::string id, name;           // of a call
    Json logprobs = Json::array();  // of text, when asked for
    bool open = true;
    bool cut = false;  // the answer ended by its length inside this block
  };

  // For streams. Block idx is blocks()[idx]; in grow() it holds the new text already.
  virtual void begin(std::string& events) = 0;
  virtual void open_block(size_t idx, std::string& events) = 0;
  virtual void grow_block(size_t idx, std::string_view text, Json logprobs,
                          std::string& events) = 0;
  virtual void close_block(size_t idx, std::string& events) = 0;

  const std::vector<Block>& blocks() const { return blocks_; }
  bool has_calls() const;
  // What is known of the choice so far.
  engine::FinishReason finish() const { return finish_; }
  const Json& stop_reason() const { return stop_reason_; }
  int64_t num_prompt_tokens() const { return static_cast<int64_t>(prompts_.front().size()); }
  int64_t num_output_tokens() const { return num_output_tokens_; }
  int64_t num_reasoning_tokens() const { return num_reasoning_tokens_; }
  int64_t num_cached_tokens() const { return num_cached_tokens_; }

  static void append_named_event(const char* name, const Json& json, std::string& events);

 private:
  const char* object_name() const final { return ""; }
  Json whole_choice(Choice&, int32_t) final { return nullptr; }
  void take_choice(Choice& choice, int32_t choice_idx, engine::OutputChunk& chunk,
                   std::string& events) final;
  void take_delta(chat::Delta&& delta, std::string& events);
  void flush(std::string& events);
  void end_block(std::string& events);

  chat::OutputParser parser_;
  bool parallel_tool_calls_;
  bool wants_logprobs_;
  std::vector<Block> blocks_;
  std::string grown_;  // text of the last block that no event has said yet
  Json grown_logprobs_ = Json::array();
  Json held_logprobs_ = Json::array();  // of tokens whose text the parser still holds
  engine::FinishReason finish_ = engine::FinishReason::kNone;
  Json stop_reason_;
  int64_t num_output_tokens_ = 0;
  int64_t num_reasoning_tokens_ = 0;
  int64_t num_cached_tokens_ = 0;
};

}  // namespace eyrie::server
