#include "apps/eyrie/inspect_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.h"
#include "chat/template.h"
#include "tokenizer/tokenizer.h"

namespace eyrie::apps {
namespace {

std::string describe_tokens(const std::string& folder) {
  try {
    const Tokenizer tokenizer = Tokenizer::load(folder);
    const int32_t base = tokenizer.num_base_tokens();
    return fmt::format("tiktoken.model, {} tokens and {} control tokens", base,
                       tokenizer.vocab_size() - base);
  } catch (const Error& error) {
    return error.what();
  }
}

std::string describe_template(const std::string& folder) {
  try {
    return chat::load_chat_template({.tokenizer_dir = folder})->origin();
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

nlohmann::json text_side(const std::string& folder) {
  constexpr std::array kFiles = {"tiktoken.model", "tokenizer.json", "tokenizer_config.json",
                                 "chat_template.jinja", "chat_template.json"};
  const bool any = std::any_of(kFiles.begin(), kFiles.end(), [&](const char* name) {
    return std::filesystem::exists(folder + "/" + name);
  });
  if (!any) return nullptr;
  return {{"tokens", describe_tokens(folder)}, {"template", describe_template(folder)}};
}

}  // namespace eyrie::apps
