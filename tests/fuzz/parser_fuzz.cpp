// An answer full of markers, read in one piece and cut anywhere: by text, and by tokens of which
// some are whole words and others single bytes. The same reasoning, content and calls must come
// out.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "chat/parser.h"
#include "tests/fuzz/fuzz_input.h"

namespace eyrie::fuzz {
namespace {

using chat::Delta;
using chat::OutputParser;
using chat::ParserOptions;

// What must hold of the deltas of every answer.
void check_deltas(const std::vector<Delta>& deltas, const OutputParser& parser) {
  int begun = 0;
  int ended = 0;
  bool open = false;
  std::set<std::string> ids;
  for (const Delta& delta : deltas) {
    switch (delta.kind) {
      case Delta::Kind::kReasoning:
      case Delta::Kind::kContent:
        CHECK(!delta.text.empty());
        break;
      case Delta::Kind::kToolCallBegin:
        CHECK_EQ(delta.call_idx, begun);
        CHECK(!delta.name.empty() && !delta.id.empty());
        CHECK(ids.insert(delta.id).second, "two calls have the id {}", delta.id);
        ++begun;
        open = true;
        break;
      case Delta::Kind::kToolCallArguments:
        CHECK(open && delta.call_idx == begun - 1);
        break;
      case Delta::Kind::kToolCallEnd:
        CHECK(open && delta.call_idx == begun - 1);
        open = false;
        ++ended;
        break;
    }
  }
  CHECK_EQ(begun, parser.num_tool_calls());
  CHECK_EQ(ended, parser.num_complete_tool_calls());
}

std::string shown(const std::vector<Delta>& deltas) {
  const chat::ParsedOutput output = chat::collect(deltas);
  std::string text;
  if (output.reasoning) text += "R(" + *output.reasoning + ")";
  if (output.content) text += "C(" + *output.content + ")";
  for (const auto& call : output.tool_calls) {
    text += "T(" + call.id + "|" + call.name + "|" + call.arguments + ")";
    text += call.complete ? "" : "...";
  }
  return text;
}

std::string parse_text(std::string_view text, const ParserOptions& options, Cuts* cuts) {
  OutputParser parser(nullptr, options);
  std::vector<Delta> deltas;
  while (!text.empty()) {
    const size_t size = cuts == nullptr ? text.size() : std::min(cuts->next(9), text.size());
    parser.push_text(text.substr(0, size), deltas);
    text.remove_prefix(size);
  }
  parser.finish(deltas);
  check_deltas(deltas, parser);
  return shown(deltas);
}

std::string parse_tokens(const std::vector<TokenId>& ids, const ParserOptions& options) {
  const Tokenizer& tokenizer = small_tokenizer();
  TextStream stream(tokenizer, {.skip_special = false});
  OutputParser parser(&tokenizer, options);
  std::vector<TextPiece> pieces;
  std::vector<Delta> deltas;
  for (const TokenId id : ids) {
    pieces.clear();
    stream.push(id, pieces);
    for (const TextPiece& piece : pieces) parser.push(piece, deltas);
  }
  pieces.clear();
  stream.finish(pieces);
  for (const TextPiece& piece : pieces) parser.push(piece, deltas);
  parser.finish(deltas);
  check_deltas(deltas, parser);
  return shown(deltas);
}

// The same bytes in other tokens: words broken up into their bytes here and there.
std::vector<TokenId> broken_up(const std::vector<TokenId>& ids, Cuts& cuts) {
  static const std::map<std::string, TokenId> bytes = [] {
    std::map<std::string, TokenId> single;
    const Tokenizer& tokenizer = small_tokenizer();
    for (TokenId id = 0; id < tokenizer.num_base_tokens(); ++id) {
      if (tokenizer.token_bytes(id).size() == 1)
        single[std::string(tokenizer.token_bytes(id))] = id;
    }
    return single;
  }();
  std::vector<TokenId> out;
  for (const TokenId id : ids) {
    if (small_tokenizer().is_control(id) || cuts.next(3) == 1) {
      out.push_back(id);
      continue;
    }
    for (const char c : small_tokenizer().token_bytes(id)) out.push_back(bytes.at({c}));
  }
  return out;
}

}  // namespace
}  // namespace eyrie::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace eyrie;
  using namespace eyrie::fuzz;
  if (size > 4096) return -1;
  Input input(data, size);
  const unsigned bits = input.option();
  Cuts cuts(input.option());
  chat::ParserOptions options;
  options.reasoning = (bits & 1) == 0;
  options.starts_in_reasoning = (bits & 2) == 0;
  options.tools = (bits & 4) != 0   ? chat::ToolMode::kOff
                  : (bits & 8) != 0 ? chat::ToolMode::kDrop
                                    : chat::ToolMode::kParse;
  options.skip_special = (bits & 16) == 0;
  if ((bits & 32) != 0) options.tool_names = {"f", "search"};
  const std::string_view text = input.part();

  const std::string whole = parse_text(text, options, nullptr);
  const std::string cut = parse_text(text, options, &cuts);
  CHECK(whole == cut, "whole: {}\ncut:   {}", whole, cut);

  const std::vector<TokenId> ids = small_tokenizer().encode(text, AllowSpecial::kAll);
  const std::string by_words = parse_tokens(ids, options);
  const std::string by_bytes = parse_tokens(broken_up(ids, cuts), options);
  CHECK(by_words == by_bytes, "words: {}\nbytes: {}", by_words, by_bytes);
  return 0;
}
