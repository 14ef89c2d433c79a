// The pre-tokenizer against the pattern itself, run by PCRE2: every short text over characters that
// stand for the classes, and long random ones. Only characters that Unicode 14 had, PCRE2's
// version.
#include <gtest/gtest.h>
#include <pcre2.h>

#include <random>

#include "base/check.h"
#include "tokenizer/pretokenizer.h"

namespace eyrie {
namespace {

// The original is in Rust's syntax. Three things differ here: a class minus Han, which PCRE2 cannot
// write, is a look-ahead before the class; Han is the Script property by name, since PCRE2 takes a
// bare \p{Han} for Script_Extensions, which has punctuation besides; and white space is spelled out
// as Unicode's White_Space, because PCRE2's \s has U+180E besides.
#define EYRIE_SPACE \
  R"(\t-\r\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})"
#define EYRIE_UPPER R"((?:(?!\p{sc:Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]))"
#define EYRIE_LOWER R"((?:(?!\p{sc:Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}]))"
#define EYRIE_SUFFIX R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
constexpr const char* kPattern =
    R"(\p{sc:Han}+)"
    R"(|[^\r\n\p{L}\p{N}]?)" EYRIE_UPPER "*" EYRIE_LOWER "+" EYRIE_SUFFIX
    R"(|[^\r\n\p{L}\p{N}]?)" EYRIE_UPPER "+" EYRIE_LOWER "*" EYRIE_SUFFIX R"(|\p{N}{1,3})"
    R"(| ?[^)" EYRIE_SPACE R"(\p{L}\p{N}]+[\r\n]*)"
    "|[" EYRIE_SPACE R"(]*[\r\n]+)"
    "|[" EYRIE_SPACE "]+(?![^" EYRIE_SPACE
    "])"
    "|[" EYRIE_SPACE "]+";
#undef EYRIE_SPACE
#undef EYRIE_UPPER
#undef EYRIE_LOWER
#undef EYRIE_SUFFIX

class PcrePattern {
 public:
  PcrePattern() {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr);
    CHECK(code_ != nullptr, "error {} at {}", error, offset);
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);  // without it the interpreter runs: slower
    match_ = pcre2_match_data_create(1, nullptr);
  }
  ~PcrePattern() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  PcrePattern(const PcrePattern&) = delete;
  PcrePattern& operator=(const PcrePattern&) = delete;

  void split(std::string_view text, std::vector<uint32_t>& ends) const {
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match_);
    for (size_t at = 0; at < text.size(); at = span[1]) {
      const int count = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                    at, PCRE2_NO_UTF_CHECK, match_, nullptr);
      CHECK(count > 0 && span[1] > at, "{} at byte {}", count, at);
      ends.push_back(static_cast<uint32_t>(span[1]));
    }
  }

 private:
  pcre2_code* code_ = nullptr;
  pcre2_match_data* match_ = nullptr;
};

// Upper, lower, title, modifier, a letter without case, marks, digits and other numbers, symbols,
// white space of all kinds; Han of every category it has: Lo, Nl, Lm, So, Mc.
constexpr std::string_view kCharacters[] = {
    "A",      "S",          "\u01C5", "a",      "s",          "t",      "l",      "\u017F",
    "\u02B0", "\u05D0",     "1",      "\u0663", "\u2167",     "\u0301", "\u0903", "'",
    ".",      "\U0001F985", " ",      "\t",     "\n",         "\r",     "\u00A0", "\u3000",
    "\u9E70", "\u3007",     "\u3005", "\u2E80", "\U00016FF0", "\x1f"};

void expect_same(const PcrePattern& pattern, const std::string& text) {
  std::vector<uint32_t> ours, theirs;
  split_pieces(text, ours);
  pattern.split(text, theirs);
  ASSERT_EQ(ours, theirs) << testing::PrintToString(text);
}

TEST(PretokenizerPcreTest, CutsEveryTextOfUpToThreeCharactersAsThePattern) {
  const PcrePattern pattern;
  expect_same(pattern, "");
  for (const auto one : kCharacters) {
    expect_same(pattern, std::string(one));
    for (const auto two : kCharacters) {
      expect_same(pattern, std::string(one) + std::string(two));
      for (const auto three : kCharacters) {
        ASSERT_NO_FATAL_FAILURE(
            expect_same(pattern, std::string(one) + std::string(two) + std::string(three)));
      }
    }
  }
}

TEST(PretokenizerPcreTest, CutsRandomTextsAsThePattern) {
  const PcrePattern pattern;
  std::mt19937 rng(3);
  for (int round = 0; round < 300'000; ++round) {
    // Few different characters at a time, so that their runs and boundaries meet often.
    std::string_view chosen[5];
    for (auto& character : chosen) character = kCharacters[rng() % std::size(kCharacters)];
    std::string text;
    for (size_t i = 0, size = 4 + rng() % 30; i < size; ++i) text += chosen[rng() % 5];
    ASSERT_NO_FATAL_FAILURE(expect_same(pattern, text));
  }
}

}  // namespace
}  // namespace eyrie
