#include "tokenizer/pretokenizer.h"

#include <pcre2.h>

#include <string>

#include "base/check.h"
#include "tokenizer/utf8.h"

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

// A run of 25,000 letters keeps a frame for each in the JIT's stack, since the look-ahead makes
// each a group: about 1 MB.
constexpr size_t kJitStackStart = 32 << 10, kJitStackMax = 16 << 20;

struct Scratch {
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);

  Scratch() {
    CHECK(match != nullptr && context != nullptr);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Scratch() {
    pcre2_match_context_free(context);
    if (stack != nullptr) pcre2_jit_stack_free(stack);
    pcre2_match_data_free(match);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[128];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct Pretokenizer::Compiled {
  pcre2_code* code = nullptr;
  bool jit = false;
};

Pretokenizer::Pretokenizer() {
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_unique<Compiled>();
  // Anchored: the alternatives cover every character, so a piece begins where the last one ended.
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED,
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr);
  CHECK(compiled->code != nullptr, "{} at {}", pcre2_message(error), offset);
  // Without executable memory PCRE2 interprets: the same pieces, slower.
  compiled->jit = pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE) == 0;
  compiled_ = std::move(compiled);
}

Pretokenizer::~Pretokenizer() { pcre2_code_free(compiled_->code); }

void Pretokenizer::split(std::string_view valid, std::vector<uint32_t>& ends) const {
  thread_local Scratch scratch;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(valid.data());
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(scratch.match);
  size_t at = 0;
  while (at < valid.size()) {
    const int count = compiled_->jit
                          ? pcre2_jit_match(compiled_->code, subject, valid.size(), at, 0,
                                            scratch.match, scratch.context)
                          : pcre2_match(compiled_->code, subject, valid.size(), at,
                                        PCRE2_NO_UTF_CHECK, scratch.match, scratch.context);
    CHECK(count > 0, "pre-tokenizer at byte {} of {}: {}", at, valid.size(), pcre2_message(count));
    CHECK_GT(span[1], at);
    at = span[1];
    ends.push_back(static_cast<uint32_t>(at));
  }
}

bool is_python_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view PortionCutter::next() {
  const size_t begin = begin_;
  size_t at = begin;
  int64_t run = 0;
  bool run_is_space = false;
  while (at < text_.size() && characters_ < kMaxCharacters) {
    const Utf8Step step = utf8_step(text_.substr(at));
    const bool is_space = is_python_space(step.code_point);
    run = is_space == run_is_space ? run + 1 : 1;
    run_is_space = is_space;
    if (run > kMaxRun) {
      begin_ = at;
      return text_.substr(begin, at - begin);
    }
    at += static_cast<size_t>(step.size);
    ++characters_;
  }
  characters_ = 0;
  begin_ = at;
  return text_.substr(begin, at - begin);
}

}  // namespace eyrie
