#include "chat/parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "chat/message.h"
#include "tokenizer/golden_test_util.h"

namespace eyrie::chat {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kSection = "<|tool_calls_section_begin|>",
                  kSectionEnd = "<|tool_calls_section_end|>";

std::string call(const std::string& id, const std::string& arguments) {
  return "<|tool_call_begin|>" + id + "<|tool_call_argument_begin|>" + arguments +
         "<|tool_call_end|>";
}

// The answer as one text, its markers known by spelling.
std::vector<Delta> parse_text(const std::string& text, const ParserOptions& options,
                              std::mt19937* cuts = nullptr) {
  OutputParser parser(nullptr, options);
  std::vector<Delta> deltas;
  for (size_t at = 0; at < text.size();) {
    const size_t size = cuts == nullptr ? text.size() : 1 + (*cuts)() % 9;
    parser.push_text(std::string_view(text).substr(at, size), deltas);
    at += std::min(size, text.size() - at);
  }
  parser.finish(deltas);
  return deltas;
}

// The answer as tokens, through the detokenizer, as a server gets it.
std::vector<Delta> parse_tokens(const std::string& text, const ParserOptions& options,
                                bool skip_special = true) {
  const Tokenizer& tokenizer = golden_tokenizer();
  TextStream stream(tokenizer, {.skip_special = skip_special});
  OutputParser parser(&tokenizer, options);
  std::vector<TextPiece> pieces;
  for (const TokenId id : tokenizer.encode(text, AllowSpecial::kAll)) stream.push(id, pieces);
  stream.finish(pieces);
  std::vector<Delta> deltas;
  for (const TextPiece& piece : pieces) parser.push(piece, deltas);
  parser.finish(deltas);
  return deltas;
}

// What a client makes of the answer: "R(…) C(…) T(id,name,arguments)", "…" after an open call.
std::string shown(const ParsedOutput& output) {
  std::string text;
  if (output.reasoning) text += "R(" + *output.reasoning + ")";
  if (output.content) text += "C(" + *output.content + ")";
  for (const auto& one : output.tool_calls) {
    text += "T(" + one.id + "|" + one.name + "|" + one.arguments + ")" + (one.complete ? "" : "…");
  }
  return text;
}

struct Case {
  const char* what;
  std::string answer;
  std::string expected;
  ParserOptions options;
};

const ParserOptions kAuto{.tools = ToolMode::kParse};
const ParserOptions kInstant{.starts_in_reasoning = false, .tools = ToolMode::kParse};

std::vector<Case> cases() {
  const std::string s = kSection, e = kSectionEnd;
  const std::string big(20'000, 'x');
  return {
      {"plain answer", "a</think>b", "R(a)C(b)", kAuto},
      {"leading think is swallowed", "<think>a</think>b", "R(a)C(b)", kAuto},
      {"no end marker: all is reasoning", "a b", "R(a b)", kAuto},
      {"empty reasoning", "</think>b", "C(b)", kAuto},
      {"nothing", "", "", kAuto},
      {"thinking off", "b c", "C(b c)", kInstant},
      {"thinking off, the model thinks all the same", "<think>a</think>b", "R(a)C(b)", kInstant},
      {"a second end marker is no content", "a</think></think>b", "R(a)C(b)", kAuto},
      {"one call", "r</think>" + s + call("functions.f:0", R"({"x": 1})") + e,
       R"(R(r)T(functions.f:0|f|{"x": 1}))", kAuto},
      {"two calls at once",
       "r</think>" + s + call("functions.f:0", "{}") + call("functions.g:1", R"({"y":2})") + e,
       R"(R(r)T(functions.f:0|f|{})T(functions.g:1|g|{"y":2}))", kAuto},
      {"a newline inside the id", s + call("functions.f\n:0", "{}") + e, "T(functions.f:0|f|{})",
       kInstant},
      {"arguments past 8 KB", s + call("functions.f:0", "{\"t\": \"" + big + "\"}") + e,
       "T(functions.f:0|f|{\"t\": \"" + big + "\"})", kInstant},
      {"content before the section", "Let me check." + s + call("functions.f:0", "{}") + e,
       "C(Let me check.)T(functions.f:0|f|{})", kInstant},
      {"content after the section", s + call("functions.f:0", "{}") + e + " Done.",
       "C( Done.)T(functions.f:0|f|{})", kInstant},
      {"words between section and call", s + " spurious " + call("functions.f:0", "{}") + " \n" + e,
       "T(functions.f:0|f|{})", kInstant},
      {"id without the prefix", s + call("search:2", "{}") + e, "T(functions.search:2|search|{})",
       kInstant},
      {"id in another form, one tool",
       s + call("call_ab12", "{}") + e,
       "T(functions.f:3|f|{})",
       {.starts_in_reasoning = false,
        .tools = ToolMode::kParse,
        .tool_names = {"f"},
        .first_call_index = 3}},
      {"id in another form, several tools",
       s + call("call_ab12", "{}") + e,
       "T(functions.call_ab12:0|call_ab12|{})",
       {.starts_in_reasoning = false, .tools = ToolMode::kParse, .tool_names = {"f", "g"}}},
      {"a dotted name", s + call("functions.ns.f:0", "{}") + e, "T(functions.ns.f:0|ns.f|{})",
       kInstant},
      {"a dotted name of a plain tool",
       s + call("functions.ns.f:0", "{}") + e,
       "T(functions.f:0|f|{})",
       {.starts_in_reasoning = false, .tools = ToolMode::kParse, .tool_names = {"f"}}},
      {"a name with a dash", s + call("functions.get-it:12", "{}") + e,
       "T(functions.get-it:12|get-it|{})", kInstant},
      {"two calls with one id", s + call("functions.f:0", "{}") + call("functions.f:0", "{}") + e,
       "T(functions.f:0|f|{})T(functions.f:1|f|{})", kInstant},
      {"no arguments", s + call("functions.f:0", "") + e, "T(functions.f:0|f|{})", kInstant},
      {"blank arguments", s + call("functions.f:0", " \n") + e, "T(functions.f:0|f|{})", kInstant},
      {"no argument marker", s + "<|tool_call_begin|>functions.f:0<|tool_call_end|>" + e,
       "T(functions.f:0|f|{})", kInstant},
      {"arguments right after the id",
       s + "<|tool_call_begin|>functions.f:0{\"x\":1}<|tool_call_end|>" + e,
       R"(T(functions.f:0|f|{"x":1}))", kInstant},
      {"no call marker", s + "functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>" + e,
       "T(functions.f:0|f|{})", kInstant},
      {"no section marker", "a</think>" + call("functions.f:0", "{}") + "b",
       "R(a)C(b)T(functions.f:0|f|{})", kAuto},
      {"straight from thinking to the section", "abc" + s + call("functions.f:0", "{}") + e,
       "R(abc)T(functions.f:0|f|{})", kAuto},
      {"straight from thinking to a call", "abc" + call("functions.f:0", "{}"),
       "R(abc)T(functions.f:0|f|{})", kAuto},
      {"call end is missing before the next call",
       s + "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}" +
           call("functions.g:1", "{}") + e,
       "T(functions.f:0|f|{})T(functions.g:1|g|{})", kInstant},
      {"call end is missing before the section's end",
       s + "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}" + e + "x",
       "C(x)T(functions.f:0|f|{})", kInstant},
      {"the answer ends inside the arguments",
       s + "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"x",
       "T(functions.f:0|f|{\"x)…", kInstant},
      {"the answer ends inside the id", "a" + s + "<|tool_call_begin|>functions.f", "C(a)",
       kInstant},
      {"an empty section", "a" + s + e + "b", "C(ab)", kInstant},
      {"a call without any name is shown as content", s + call("", R"({"x":1})") + e,
       R"(C({"x":1}))", kInstant},
      {"two sections",
       s + call("functions.f:0", "{}") + e + "and" + s + call("functions.g:1", "{}") + e,
       "C(and)T(functions.f:0|f|{})T(functions.g:1|g|{})", kInstant},
      {"think markers inside arguments are the model's text",
       s + call("functions.f:0", "{\"t\": \"<think></think>\"}") + e,
       "T(functions.f:0|f|{\"t\": \"<think></think>\"})", kInstant},
      {"stray tool markers", "a<|tool_call_end|>b<|tool_call_argument_begin|>c" + e + "d",
       "C(abcd)", kInstant},
      {"tool_choice none",
       "a</think>b" + s + call("functions.f:0", "{}") + e + "c",
       "R(a)C(bc)",
       {.tools = ToolMode::kDrop}},
      {"no tool parser: markers are text", "a</think>b" + s + "c", "R(a)C(b" + s + "c)", {}},
      {"no tool parser: a section is no thought", "a" + s + "c", "R(a)C(" + s + "c)", {}},
      {"no parser at all",
       "<think>a</think>b" + s,
       "C(<think>a</think>b" + s + ")",
       {.reasoning = false}},
      {"only the tool parser",
       "a</think>b" + s + call("functions.f:0", "{}") + e,
       "C(a</think>b)T(functions.f:0|f|{})",
       {.reasoning = false, .tools = ToolMode::kParse}},
      {"unicode around the markers",
       "é🦅</think>老鹰" + s + call("functions.f:0", "{\"é\": \"🦅\"}") + e,
       "R(é🦅)C(老鹰)T(functions.f:0|f|{\"é\": \"🦅\"})", kAuto},
      {"what only begins like a marker", "a<thin</thinb<|tool_call", "R(a<thin</thinb<|tool_call)",
       kAuto},
  };
}

TEST(OutputParserTest, ReadsAnswersAsTheyAre) {
  for (const Case& one : cases()) {
    EXPECT_EQ(shown(collect(parse_text(one.answer, one.options))), one.expected) << one.what;
    EXPECT_EQ(shown(collect(parse_tokens(one.answer, one.options))), one.expected) << one.what;
  }
}

TEST(OutputParserTest, TheCutOfTheTextDoesNotMatter) {
  std::mt19937 cuts(9);
  for (const Case& one : cases()) {
    for (int round = 0; round < 30; ++round) {
      EXPECT_EQ(shown(collect(parse_text(one.answer, one.options, &cuts))), one.expected)
          << one.what;
    }
  }
}

// Markers and scraps of text in any order: text and tokens, whole and cut, must agree, and no tool
// marker may reach the client.
TEST(OutputParserTest, NonsenseIsReadAlikeByEveryPath) {
  static const std::vector<std::string> kScraps = {"<think>",
                                                   "</think>",
                                                   kSection,
                                                   kSectionEnd,
                                                   "<|tool_call_begin|>",
                                                   "<|tool_call_argument_begin|>",
                                                   "<|tool_call_end|>",
                                                   "functions.f:0",
                                                   "search:1",
                                                   "{\"x\": 1}",
                                                   " ",
                                                   "\n",
                                                   "text",
                                                   "é",
                                                   "<",
                                                   "<|",
                                                   "call_ab12",
                                                   "{"};
  std::mt19937 rng(10);
  for (int round = 0; round < 3000; ++round) {
    std::string answer;
    for (size_t i = 0; i < rng() % 20; ++i) answer += kScraps[rng() % kScraps.size()];
    const ParserOptions options{.reasoning = rng() % 4 != 0,
                                .starts_in_reasoning = rng() % 2 == 0,
                                .tools = static_cast<ToolMode>(1 + rng() % 2),
                                .tool_names = {"f", "search"}};
    const std::string whole = shown(collect(parse_text(answer, options)));
    ASSERT_EQ(shown(collect(parse_text(answer, options, &rng))), whole) << answer;
    ASSERT_EQ(shown(collect(parse_tokens(answer, options))), whole) << answer;
    ASSERT_THAT(whole, Not(HasSubstr("<|tool_call"))) << answer;
    if (options.reasoning && whole.find("T(") == std::string::npos) {
      ASSERT_THAT(whole, Not(HasSubstr("think>"))) << answer;
    }
  }
}

TEST(OutputParserTest, DeltasComeInOrderAndAtOnce) {
  const auto deltas =
      parse_tokens("r</think>c" + kSection + call("functions.f:0", "{}") + kSectionEnd, kAuto);
  using Kind = Delta::Kind;
  std::vector<Kind> kinds;
  for (const Delta& delta : deltas) {
    if (kinds.empty() || kinds.back() != delta.kind) kinds.push_back(delta.kind);
  }
  EXPECT_EQ(kinds, (std::vector<Kind>{Kind::kReasoning, Kind::kContent, Kind::kToolCallBegin,
                                      Kind::kToolCallArguments, Kind::kToolCallEnd}));
  EXPECT_EQ(deltas[2].id, "functions.f:0");
  EXPECT_EQ(deltas[2].name, "f");
  EXPECT_EQ(deltas[3].call_idx, 0);
}

TEST(OutputParserTest, CountsCalls) {
  OutputParser parser(nullptr, kInstant);
  std::vector<Delta> deltas;
  parser.push_text(kSection + call("functions.f:0", "{}"), deltas);
  EXPECT_EQ(parser.num_tool_calls(), 1);
  parser.push_text("<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{", deltas);
  EXPECT_EQ(parser.num_tool_calls(), 2);
  EXPECT_EQ(parser.num_complete_tool_calls(), 1);
}

// With token ids an answer may write about the markers without using them.
TEST(OutputParserTest, MarkersSpelledInOrdinaryTokensAreText) {
  const Tokenizer& tokenizer = golden_tokenizer();
  OutputParser parser(&tokenizer, kAuto);
  TextStream stream(tokenizer, {});
  std::vector<TextPiece> pieces;
  const std::string text = "the tag </think> and " + kSection;
  for (const TokenId id : tokenizer.encode(text, AllowSpecial::kNone)) stream.push(id, pieces);
  stream.push(*tokenizer.id_of("</think>"), pieces);
  std::vector<Delta> deltas;
  for (const TextPiece& piece : pieces) parser.push(piece, deltas);
  parser.finish(deltas);
  EXPECT_EQ(shown(collect(deltas)), "R(" + text + ")");
  EXPECT_FALSE(parser.in_reasoning());
}

TEST(OutputParserTest, EverySpecialTokenAtTheEndIsHiddenOrShownAlike) {
  const Tokenizer& tokenizer = golden_tokenizer();
  for (TokenId id = tokenizer.num_base_tokens(); id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) continue;
    const std::string spelling(tokenizer.token_bytes(id));
    // Hidden by the parser where the detokenizer still shows it, as with tools it may have to.
    for (const bool detokenizer_skips : {false, true}) {
      EXPECT_EQ(shown(collect(parse_tokens("a</think>b" + spelling, kAuto, detokenizer_skips))),
                "R(a)C(b)");
    }
    ParserOptions show = kAuto;
    show.skip_special = false;
    EXPECT_EQ(shown(collect(parse_tokens("a</think>b" + spelling, show, false))),
              "R(a)C(b" + spelling + ")");
  }
}

TEST(OutputParserTest, AStopStringThroughAMarkerLeavesText) {
  const Tokenizer& tokenizer = golden_tokenizer();
  OutputParser parser(&tokenizer, kAuto);
  TextStream stream(tokenizer, {.stop = {"ink>b"}});
  std::vector<TextPiece> pieces;
  for (const TokenId id : tokenizer.encode("a</think>b", AllowSpecial::kAll)) {
    if (stream.push(id, pieces)) break;
  }
  std::vector<Delta> deltas;
  for (const TextPiece& piece : pieces) parser.push(piece, deltas);
  parser.finish(deltas);
  EXPECT_EQ(shown(collect(deltas)), "R(a</th)");
}

}  // namespace
}  // namespace eyrie::chat
