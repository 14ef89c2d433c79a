// A Jinja template, then perhaps a JSON object of variables: parsed and rendered within small
// limits, the same twice, and what came from outside is still marked as such.
#include <string>
#include <vector>

#include "base/check.h"
#include "chat/jinja.h"
#include "chat/json_text.h"
#include "tests/fuzz/fuzz_input.h"
#include "tokenizer/utf8.h"

namespace eyrie::fuzz {
namespace {

using chat::Json;
namespace jinja = chat::jinja;

// A character that templates have no reason to write: where it stands in a rendering, it came from
// a variable.
constexpr std::string_view kMark = "\xEE\x80\x80";

constexpr const char* kVariables = R"({
  "messages": [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": " a<b>\n "}, {"type": "image"}]},
    {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
      {"id": "functions.f:0", "type": "function",
       "function": {"name": "f", "arguments": {"x": 1.5, "y": [true, null]}}}]},
    {"role": "tool", "content": "7", "tool_call_id": "functions.f:0"},
    {"role": "user", "content": "MARK and MARK"}
  ],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}}}],
  "add_generation_prompt": true, "bos_token": "<s>", "n": 3, "s": "MARKé", "empty": []
})";

std::vector<jinja::Variable> variables_from(std::string_view text) {
  Json object = Json::parse(text, nullptr, false);
  if (!object.is_object() || !chat::nests_at_most(object, chat::kMaxJsonDepth)) {
    std::string standard = kVariables;
    for (size_t at; (at = standard.find("MARK")) != std::string::npos;) {
      standard.replace(at, 4, kMark);
    }
    object = Json::parse(standard);
  }
  std::vector<jinja::Variable> variables;
  for (const auto& [name, value] : object.items()) {
    variables.push_back({name, value, name == "bos_token"});
  }
  return variables;
}

void check_text(const jinja::Text& text, bool is_traceable) {
  size_t end = 0;
  bool first = true;
  for (const jinja::Range& range : text.outside) {
    CHECK(range.begin < range.end && range.end <= text.size());
    CHECK(first || range.begin > end);
    end = range.end;
    first = false;
  }
  if (!is_traceable) return;
  for (size_t at = text.bytes.find(kMark); at != std::string::npos;
       at = text.bytes.find(kMark, at + 1)) {
    bool is_outside = false;
    for (const jinja::Range& range : text.outside) {
      is_outside |= range.begin <= at && at + kMark.size() <= range.end;
    }
    CHECK(is_outside, "a variable's text at {} counts as the template's own", at);
  }
}

}  // namespace
}  // namespace eyrie::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace eyrie;
  using namespace eyrie::fuzz;
  if (size > 8192) return -1;
  Input input(data, size);
  const std::string_view source = input.part();
  const auto parsed = jinja::Template::parse(source);
  if (!parsed.ok()) {
    CHECK(!parsed.failure().message.empty());
    return 0;
  }
  parsed.value().mentions("tools");

  const std::vector<jinja::Variable> variables = variables_from(input.part());
  const jinja::Limits limits{
      .max_steps = 50'000, .max_made_bytes = size_t{8} << 20, .max_output_bytes = size_t{1} << 20};
  std::tm now{};
  now.tm_year = 126;
  now.tm_mon = 2;
  now.tm_mday = 7;
  const auto once = parsed.value().render(variables, limits, &now);
  const auto twice = parsed.value().render(variables, limits, &now);
  CHECK_EQ(once.ok(), twice.ok());
  if (!once.ok()) {
    CHECK(!once.failure().message.empty());
    CHECK(once.failure().message == twice.failure().message);
    return 0;
  }
  CHECK(once.value().bytes == twice.value().bytes);
  CHECK(!utf8_valid(source) || utf8_valid(once.value().bytes));
  // An escape or a format can spell the mark without a variable.
  check_text(once.value(), source.find(kMark) == std::string_view::npos &&
                               source.find('\\') == std::string_view::npos &&
                               source.find('%') == std::string_view::npos);
  return 0;
}
