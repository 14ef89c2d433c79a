// Rendering a conversation of 20 messages with tools: by the bundled model's chat template through
// the interpreter, by the built-in renderer, and by a longer template; and encoding the result.
#include <benchmark/benchmark.h>

#include <fstream>
#include <sstream>

#include "chat/jinja.h"
#include "chat/template.h"
#include "tokenizer/golden_test_util.h"

namespace eyrie::chat {
namespace {

constexpr const char* kNano = "models/kimi-k2.5-nano";

std::vector<Message> conversation() {
  Json messages = Json::array({{{"role", "system"}, {"content", "You are a helpful assistant."}}});
  for (int i = 0; i < 6; ++i) {
    messages.push_back({{"role", "user"},
                        {"content",
                         "How warm will it be in Cologne on the next few days, and "
                         "should I take a coat? I arrive in the evening."}});
    messages.push_back(
        {{"role", "assistant"},
         {"content", "Let me look."},
         {"reasoning_content", "The weather is asked for; there is a tool."},
         {"tool_calls",
          {{{"id", "functions.get_weather:" + std::to_string(i)},
            {"type", "function"},
            {"function",
             {{"name", "get_weather"}, {"arguments", R"({"city": "Cologne", "days": 3})"}}}}}}});
    messages.push_back({{"role", "tool"},
                        {"tool_call_id", "functions.get_weather:" + std::to_string(i)},
                        {"content", R"({"days": [{"high": 21, "low": 12}, {"high": 19}]})"}});
  }
  messages.push_back({{"role", "user"}, {"content", "Thank you. And the day after?"}});
  return messages_from_json(messages).value();
}

std::vector<ToolDefinition> tools() {
  return tools_from_json(Json::parse(R"([{"type": "function", "function": {
      "name": "get_weather", "description": "Weather at a place.", "parameters": {
      "type": "object", "properties": {"city": {"type": "string", "description": "A city"},
      "days": {"type": "integer"}}, "required": ["city"]}}}])"))
      .value();
}

void render(benchmark::State& state, const ChatTemplate& chat_template, bool with_tools) {
  const auto messages = conversation();
  const auto offered = with_tools ? tools() : std::vector<ToolDefinition>{};
  size_t num_bytes = 0;
  for (auto _ : state) {
    const auto prompt = chat_template.render(messages, offered, {});
    num_bytes = prompt.value().text().size();
  }
  state.counters["prompt_bytes"] = static_cast<double>(num_bytes);
}

void kimi_jinja(benchmark::State& state) {
  render(state, *load_chat_template({.tokenizer_dir = kNano}), true);
}
BENCHMARK(kimi_jinja)->Unit(benchmark::kMicrosecond);

void kimi_jinja_without_tools(benchmark::State& state) {
  render(state, *load_chat_template({.tokenizer_dir = kNano}), false);
}
BENCHMARK(kimi_jinja_without_tools)->Unit(benchmark::kMicrosecond);

void kimi_built_in(benchmark::State& state) { render(state, *make_kimi_template(), true); }
BENCHMARK(kimi_built_in)->Unit(benchmark::kMicrosecond);

void glm45_jinja(benchmark::State& state) {
  render(
      state,
      *load_chat_template({.tokenizer_dir = kNano, .given = "tests/golden/text/jinja/glm45.jinja"}),
      true);
}
BENCHMARK(glm45_jinja)->Unit(benchmark::kMicrosecond);

void parse(benchmark::State& state) {
  std::ifstream file(std::string(kNano) + "/chat_template.jinja");
  std::ostringstream source;
  source << file.rdbuf();
  for (auto _ : state) benchmark::DoNotOptimize(jinja::Template::parse(source.str()).ok());
}
BENCHMARK(parse)->Unit(benchmark::kMicrosecond);

void encode(benchmark::State& state) {
  const Tokenizer tokenizer = Tokenizer::load(kNano);
  const auto chat_template = load_chat_template({.tokenizer_dir = kNano});
  const auto prompt = chat_template->render(conversation(), tools(), {});
  size_t num_tokens = 0;
  for (auto _ : state) num_tokens = encode_prompt(tokenizer, prompt.value()).size();
  state.counters["tokens"] = static_cast<double>(num_tokens);
}
BENCHMARK(encode)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace eyrie::chat

BENCHMARK_MAIN();
