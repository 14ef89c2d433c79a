#include "bench/custom_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"

namespace eyrie::bench {
namespace {

struct CustomLine {
  std::string prompt;
  std::optional<int64_t> output_tokens;
};

std::vector<CustomLine> read_custom_file(const std::string& path) {
  if (path.empty()) fail("--dataset-name custom needs --dataset-path FILE.jsonl");
  const std::string content = read_text_file(path);
  std::vector<CustomLine> lines;
  int64_t number = 0;
  for (size_t pos = 0; pos < content.size();) {
    const size_t end = std::min(content.find('\n', pos), content.size());
    const std::string_view text = std::string_view(content).substr(pos, end - pos);
    pos = end + 1;
    ++number;
    if (text.find_first_not_of(" \t\r") == text.npos) continue;
    const auto json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_object()) fail("{}:{}: not a JSON object: {:.60}", path, number, text);
    const auto prompt = json.find("prompt");
    if (prompt == json.end() || !prompt->is_string()) {
      fail("{}:{}: needs a string field \"prompt\"", path, number);
    }
    CustomLine line{prompt->get<std::string>(), std::nullopt};
    if (const auto out = json.find("output_tokens"); out != json.end() && !out->is_null()) {
      if (!out->is_number_integer() || out->get<int64_t>() < 1) {
        fail("{}:{}: output_tokens {}: must be a whole number of at least 1", path, number,
             out->dump());
      }
      line.output_tokens = out->get<int64_t>();
    }
    lines.push_back(std::move(line));
  }
  if (lines.empty()) fail("{}: holds no prompts", path);
  return lines;
}

int64_t custom_output_len(const DatasetOptions& options, const CustomLine& line) {
  constexpr int64_t kDefault = 256;  // vLLM's --custom-output-len
  const int64_t wanted = options.custom_output_len.value_or(-1);
  if (wanted >= 1) return wanted;
  if (line.output_tokens) return *line.output_tokens;
  if (options.custom_output_len) {
    fail(
        "{}: --custom-output-len -1 takes the length from the file, but a line has no "
        "\"output_tokens\"",
        options.path);
  }
  return kDefault;
}

}  // namespace

Dataset make_custom_dataset(const DatasetOptions& options, const TextCodec* codec,
                            bool wrap_on_client) {
  auto lines = read_custom_file(options.path);
  const bool wrap = wrap_on_client && !options.skip_chat_template;
  if (wrap && codec == nullptr) {
    fail(
        "--dataset-name custom applies the model's chat template, which needs its tokenizer: give "
        "--tokenizer DIR, or --skip-chat-template");
  }
  const auto num_lines = static_cast<int64_t>(lines.size());
  std::vector<int64_t> order(lines.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  if (!options.disable_shuffle) {
    order = MersenneTwister::python_seed(options.seed).python_shuffle(num_lines);
  }
  const int64_t wanted = options.num_prompts > 0 ? options.num_prompts : num_lines;
  Dataset dataset;
  if (wanted < num_lines) order.resize(static_cast<size_t>(wanted));
  if (wanted > num_lines && options.no_oversample) {
    dataset.notes.push_back(fmt::format("{} holds {} prompts; --no-oversample sends only those",
                                        options.path, num_lines));
  } else if (wanted > num_lines) {
    const auto first = order;
    auto rng = MersenneTwister::python_seed(options.seed);
    for (const int64_t pick : rng.python_choices(num_lines, wanted - num_lines)) {
      order.push_back(first[static_cast<size_t>(pick)]);
    }
  }
  if (wrap && std::any_of(lines.begin(), lines.end(), [](const CustomLine& line) {
        return line.prompt.find("<|im_") != std::string::npos;
      })) {
    dataset.notes.push_back(fmt::format(
        "{} holds prompts with control tokens, as a chat template writes them, and the template is "
        "applied on top; --skip-chat-template sends them as they stand",
        options.path));
  }
  for (const int64_t idx : order) {
    const auto& line = lines[static_cast<size_t>(idx)];
    BenchPrompt prompt;
    prompt.text = wrap ? codec->render_user_turn(line.prompt) : line.prompt;
    if (codec != nullptr) {
      prompt.prompt_len = static_cast<int64_t>(codec->encode(prompt.text).size());
    }
    prompt.output_len = custom_output_len(options, line);
    dataset.prompts.push_back(std::move(prompt));
  }
  return dataset;
}

}  // namespace eyrie::bench
