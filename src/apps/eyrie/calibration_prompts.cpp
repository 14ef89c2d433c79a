#include "apps/eyrie/calibration_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>

#include "base/error.h"
#include "chat/template.h"

namespace eyrie::apps {
namespace {

using chat::Json;

// What a row became, or what is wrong with it.
using Row = Result<std::vector<TokenId>>;

Failure bad(std::string message) { return {FailureKind::kInvalidArgument, std::move(message), ""}; }

// Tokenizer and template are read when a row needs them: rows of ids need neither.
class RowReader {
 public:
  explicit RowReader(const CalibrationFile& file) : file_(file) {}

  Row read(const std::string& line) {
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object()) return bad(fmt::format("not a JSON object: {:.60}", line));
    if (const auto prompt = row.find("prompt"); prompt != row.end() && prompt->is_array()) {
      return ids_of(*prompt);
    }
    if (row.contains("messages")) return conversation(row);
    for (const char* field : {"prompt", "question", "text"}) {
      const auto text = row.find(field);
      if (text == row.end()) continue;
      if (!text->is_string()) return bad(fmt::format("\"{}\" is not a text", field));
      return tokenizer().encode(text->get_ref<const std::string&>(), AllowSpecial::kAll);
    }
    return bad(R"(has none of "prompt", "messages", "question" and "text")");
  }

 private:
  const Tokenizer& tokenizer() {
    if (!tokenizer_) tokenizer_ = Tokenizer::load(file_.model);
    return *tokenizer_;
  }

  Row ids_of(const Json& list) const {
    std::vector<TokenId> ids;
    for (const Json& id : list) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
          id.get<int64_t>() >= file_.vocab_size) {
        return bad(fmt::format("\"prompt\" has {}, expected token ids from 0 to {}", id.dump(),
                               file_.vocab_size - 1));
      }
      ids.push_back(id.get<TokenId>());
    }
    return ids;
  }

  Row conversation(const Json& row) {
    const auto messages = chat::messages_from_json(row["messages"]);
    if (!messages.ok()) return messages.failure();
    std::vector<chat::ToolDefinition> tools;
    if (row.contains("tools")) {
      auto given = chat::tools_from_json(row["tools"]);
      if (!given.ok()) return given.failure();
      tools = std::move(given.value());
    }
    if (template_ == nullptr) template_ = chat::load_chat_template({.tokenizer_dir = file_.model});
    chat::RenderOptions options;
    options.add_generation_prompt =
        messages.value().empty() || messages.value().back().role != "assistant";
    const auto prompt = template_->render(messages.value(), tools, options);
    if (!prompt.ok()) return prompt.failure();
    return chat::encode_prompt(tokenizer(), prompt.value());
  }

  const CalibrationFile& file_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<chat::ChatTemplate> template_;
};

}  // namespace

std::vector<std::vector<TokenId>> read_calibration_prompts(const CalibrationFile& file) {
  std::ifstream lines(file.path);
  if (!lines) fail("--calibration {}: cannot be read", file.path);
  RowReader reader(file);
  std::vector<std::vector<TokenId>> prompts;
  int64_t number = 0;
  for (std::string line;
       static_cast<int64_t>(prompts.size()) < file.max_samples && std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Row row = reader.read(line);
    if (!row.ok()) fail("--calibration {}:{}: {}", file.path, number, row.failure().message);
    if (row.value().empty()) fail("--calibration {}:{}: has no tokens", file.path, number);
    std::vector<TokenId>& ids = row.value();
    ids.resize(std::min(ids.size(), static_cast<size_t>(file.max_tokens)));
    prompts.push_back(std::move(ids));
  }
  if (prompts.empty()) fail("--calibration {}: holds no prompts", file.path);
  return prompts;
}

}  // namespace eyrie::apps
