// Token ids and prompts against tiktoken and jinja2, on the bundled model's own vocabulary and
// template (tests/golden/README.md).
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "chat/template.h"
#include "tokenizer/tokenizer.h"

namespace eyrie::chat {
namespace {

constexpr const char* kModel = "models/kimi-k2.5-nano";

Json cases(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + " is not there");
  return Json::parse(file).at("cases");
}

TEST(TextGolden, TokenIds) {
  const Tokenizer tokenizer = Tokenizer::load(kModel);
  int num_compared = 0;
  for (const Json& row : cases("tests/golden/tokenizer.json")) {
    const auto text = row.at("text").get<std::string>();
    const auto ids = row.at("ids").get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer.encode(text, AllowSpecial::kAll), ids) << text;
    const Json& plain = row.contains("ids_plain") ? row.at("ids_plain") : row.at("ids");
    EXPECT_EQ(tokenizer.encode(text, AllowSpecial::kNone), plain.get<std::vector<TokenId>>())
        << text;
    EXPECT_EQ(tokenizer.decode(ids, false), text);
    ++num_compared;
  }
  EXPECT_GE(num_compared, 200);
}

// What a request cannot say: our API refuses these, or the template's own fallback renders them.
const std::set<std::string> kNotOurs = {
    "nothing",
    "empty tools list",
    "tools: not_functions",
    "tools: mixed_kinds",
    "tools without tools_ts_str",
    "nested without tools_ts_str",
    "image part",
    "image between texts",
    "video part",
};

TEST(TextGolden, Prompts) {
  const auto renderer = make_kimi_template();
  int num_compared = 0;
  for (const Json& row : cases("tests/golden/chat.json")) {
    const auto name = row.at("name").get<std::string>();
    if (kNotOurs.contains(name)) continue;
    const auto messages = messages_from_json(row.at("messages"));
    const auto tools = tools_from_json(row.at("tools"));
    ASSERT_TRUE(messages.ok() && tools.ok()) << name;
    RenderOptions options;
    options.add_generation_prompt = row.at("add_generation_prompt").get<bool>();
    options.thinking = row.at("kwargs").value("thinking", true);
    options.preserve_thinking = row.at("kwargs").value("preserve_thinking", false);
    const auto prompt = renderer->render(messages.value(), tools.value(), options);
    ASSERT_TRUE(prompt.ok()) << name;
    EXPECT_EQ(prompt.value().text(), row.at("text").get<std::string>()) << name;
    ++num_compared;
  }
  EXPECT_GE(num_compared, 40);
}

}  // namespace
}  // namespace eyrie::chat
