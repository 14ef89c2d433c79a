// From an answer's tokens to reasoning, content and tool calls, for Kimi's markers. One incremental
// machine: a streamed answer and a whole one are the same calls, so they cannot differ, and the
// result does not depend on how the answer is cut. One object a sequence, one thread at a time.
//
// Rules beyond the plain structure, each from a report of a real answer gone wrong:
//   <think> is swallowed, also where the prompt has written it already; a tool section or a call
//   ends reasoning without </think>; marker text never reaches reasoning or content; text inside a
//   section but outside its calls is dropped; text after the section is content; a call without its
//   section counts; white space in an id is ignored; ids without "functions." or without an index
//   still name their function and come out in Kimi's form; a call without arguments has the
//   arguments {}; the next call or the section's end closes a call; one that the end of the answer
//   leaves open stays incomplete. <think> inside arguments is text that the model writes.
#pragma once

#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/text_stream.h"
#include "tokenizer/tokenizer.h"

namespace eyrie::chat {

enum class ToolMode {
  kOff,    // tool markers are ordinary text
  kParse,  // calls become deltas
  kDrop,   // calls are recognised and left out (tool_choice "none")
};

struct ParserOptions {
  bool reasoning = true;            // off: think markers are ordinary text
  bool starts_in_reasoning = true;  // Prompt::ends_in_reasoning
  ToolMode tools = ToolMode::kOff;
  bool skip_special = true;               // hide special tokens that are no markers
  std::vector<std::string> tool_names{};  // declared functions, to name calls with broken ids
  int first_call_index = 0;               // count_tool_calls(history), for ids we have to make up
};

struct Delta {
  enum class Kind { kReasoning, kContent, kToolCallBegin, kToolCallArguments, kToolCallEnd };
  Kind kind = Kind::kContent;
  std::string text;      // of reasoning, content, arguments
  int call_idx = -1;     // of the tool call, from 0 in this answer
  std::string id, name;  // of kToolCallBegin
  bool operator==(const Delta&) const = default;
};

class OutputParser {
 public:
  // With a tokenizer, markers are recognised by token id where it has them, so an answer that
  // spells
  // "</think>" in ordinary tokens only writes about it. Without one, by their text.
  OutputParser(const Tokenizer* tokenizer, ParserOptions options);

  void push(const TextPiece& piece, std::vector<Delta>& out);
  // Text whose tokens are not known; markers in it are recognised by their spelling.
  void push_text(std::string_view text, std::vector<Delta>& out);
  void finish(std::vector<Delta>& out);

  bool in_reasoning() const { return state_ == State::kReasoning; }
  int num_tool_calls() const { return num_calls_; }  // begun
  int num_complete_tool_calls() const { return num_complete_calls_; }

  static constexpr int kNumMarkers = 7;

 private:
  enum class State { kReasoning, kContent, kSection, kHeader, kArguments };
  enum Marker {
    kThinkBegin,
    kThinkEnd,
    kSectionBegin,
    kSectionEnd,
    kCallBegin,
    kArgumentBegin,
    kCallEnd,
  };
  struct Call {
    std::string id, name;
  };

  bool is_active(int marker) const;
  void scan(std::string_view text, bool every_marker, bool at_end, std::vector<Delta>& out);
  void on_text(std::string_view text, std::vector<Delta>& out);
  void on_marker(int marker, std::vector<Delta>& out);
  Call name_call(std::string_view header) const;
  void begin_call(std::vector<Delta>& out);
  void end_call(std::vector<Delta>& out);
  void add_arguments(std::string_view text, std::vector<Delta>& out);
  void emit(Delta::Kind kind, std::string_view text, std::vector<Delta>& out);

  const Tokenizer* tokenizer_;
  ParserOptions options_;
  std::array<TokenId, kNumMarkers> marker_ids_;  // -1: known by spelling only
  State state_;
  std::string held_;           // text whose end may begin a marker
  std::string header_;         // between call begin and argument begin
  std::set<std::string> ids_;  // of the calls so far
  bool section_open_ = false;
  bool has_arguments_ = false;
  bool nameless_ = false;  // the call under way has no name: its text goes to content
  int num_calls_ = 0;
  int num_complete_calls_ = 0;
};

// A whole answer, from the deltas of one.
struct ParsedOutput {
  struct Call {
    std::string id, name, arguments;
    bool complete = false;
  };
  std::optional<std::string> reasoning;  // absent when there was none
  std::optional<std::string> content;
  std::vector<Call> tool_calls;
};
ParsedOutput collect(const std::vector<Delta>& deltas);

}  // namespace eyrie::chat
