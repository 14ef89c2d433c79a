// A checkpoint's template as a ChatTemplate: finds it, gives it what transformers and vLLM would,
// and turns its text into a prompt that knows which of it came from outside.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "chat/jinja.h"
#include "chat/template.h"
#include "chat/template_rules.h"

namespace eyrie::chat {
namespace {

namespace fs = std::filesystem;

constexpr const char* kThinkBegin = "<think>";
// Where a final message ends; the space tells whether the template trims it.
constexpr const char* kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";

using SpecialTokens = std::vector<jinja::Variable>;

// Keys in order at every level, as Kimi's tokenizer hands tools to its template.
Json sorted_keys(const Json& value) {
  if (value.is_array()) {
    Json out = Json::array();
    for (const Json& item : value) out.push_back(sorted_keys(item));
    return out;
  }
  if (!value.is_object()) return value;
  std::map<std::string, Json> fields;
  for (const auto& [key, item] : value.items()) fields[key] = sorted_keys(item);
  Json out = Json::object();
  for (auto& [key, item] : fields) out[key] = std::move(item);
  return out;
}

Prompt to_prompt(const jinja::Text& text) {
  Prompt prompt;
  size_t at = 0;
  const auto add = [&](size_t end, bool is_control) {
    if (end > at) prompt.segments.push_back({text.bytes.substr(at, end - at), is_control});
    at = std::max(at, end);
  };
  for (const jinja::Range& range : text.outside) {
    add(range.begin, true);
    add(range.end, false);
  }
  add(text.size(), true);
  return prompt;
}

// Whether the template itself opened <think> last of all.
bool opens_thinking(const jinja::Text& text) {
  const std::string_view bytes = text.bytes;
  const jinja::Range kept = jinja::stripped(bytes, false, true, nullptr);
  if (!bytes.substr(0, kept.end).ends_with(kThinkBegin)) return false;
  const size_t begin = kept.end - std::string_view(kThinkBegin).size();
  return text.outside.empty() || text.outside.back().end <= begin;
}

class JinjaTemplate final : public ChatTemplate {
 public:
  JinjaTemplate(jinja::Template main, std::optional<jinja::Template> with_tools,
                SpecialTokens special, ContentFormat format, bool kimi_ids, std::string origin)
      : main_(std::move(main)),
        with_tools_(std::move(with_tools)),
        special_(std::move(special)),
        format_(format),
        kimi_ids_(kimi_ids),
        origin_(std::move(origin)) {
    learn_content_format();
  }

  Result<Prompt> render(const std::vector<Message>& messages,
                        const std::vector<ToolDefinition>& tools,
                        const RenderOptions& options) const override;

  Result<std::unique_ptr<ChatTemplate>> with_source(const std::string& source) const override {
    return parse_for_request(source, special_, format_);
  }
  std::string origin() const override { return origin_; }
  bool uses_kimi_ids() const override { return kimi_ids_; }

  static Result<std::unique_ptr<ChatTemplate>> parse_for_request(const std::string& source,
                                                                 SpecialTokens special,
                                                                 ContentFormat format) {
    auto parsed = jinja::Template::parse(source);
    if (!parsed) return parsed.failure();
    return std::unique_ptr<ChatTemplate>(
        std::make_unique<JinjaTemplate>(std::move(parsed).value(), std::nullopt, std::move(special),
                                        format, spells_kimi_calls(source), "the request's"));
  }
  static bool spells_kimi_calls(const std::string& source) {
    return source.find("<|tool_calls_section_begin|>") != std::string::npos;
  }

 private:
  void learn_content_format();
  bool takes(const Json& content) const;
  Json content_of(const Message& message) const;
  Json json_of(const Message& message) const;
  std::vector<jinja::Variable> variables(const std::vector<Message>& messages,
                                         const std::vector<ToolDefinition>& tools,
                                         const RenderOptions& options) const;

  jinja::Template main_;
  std::optional<jinja::Template> with_tools_;
  SpecialTokens special_;
  ContentFormat format_;
  bool kimi_ids_;
  std::string origin_;
  bool takes_strings_ = true;
  bool takes_parts_ = false;
};

// Whether a user's message with that content comes out as its text.
bool JinjaTemplate::takes(const Json& content) const {
  std::vector<jinja::Variable> given = special_;
  given.push_back({"messages", Json::array({{{"role", "user"}, {"content", content}}})});
  given.push_back({"add_generation_prompt", true});
  given.push_back({"tools", nullptr});
  given.push_back({"documents", nullptr});
  const auto text = main_.render(given);
  return text.ok() && text.value().bytes.find("PROBE") != std::string::npos &&
         text.value().bytes.find("type") == std::string::npos;
}

void JinjaTemplate::learn_content_format() {
  if (format_ == ContentFormat::kAuto) {
    takes_parts_ = takes(Json::array({{{"type", "text"}, {"text", "PROBE"}}}));
    takes_strings_ = !takes_parts_ || takes("PROBE");
  } else {
    takes_parts_ = format_ == ContentFormat::kParts;
    takes_strings_ = !takes_parts_;
  }
}

Json JinjaTemplate::content_of(const Message& message) const {
  const auto& parts = message.content;
  if (parts.empty()) {
    if (!message.tool_calls.empty()) return nullptr;  // as templates know it from training
    return takes_strings_ ? Json("") : Json::array();
  }
  if (takes_strings_ && (parts.size() == 1 || message.role == "tool")) return message.text();
  if (takes_parts_) {
    Json list = Json::array();
    for (const ContentPart& part : parts) list.push_back({{"type", "text"}, {"text", part.text}});
    return list;
  }
  std::string lines;
  for (const ContentPart& part : parts) lines += (lines.empty() ? "" : "\n") + part.text;
  return lines;
}

Json JinjaTemplate::json_of(const Message& message) const {
  Json json = {{"role", message.role}, {"content", content_of(message)}};
  if (!message.name.empty()) json["name"] = message.name;
  if (!message.tool_call_id.empty()) json["tool_call_id"] = message.tool_call_id;
  if (!message.reasoning.empty()) {
    json["reasoning_content"] = message.reasoning;
    json["reasoning"] = message.reasoning;
  }
  for (const ToolCall& call : message.tool_calls) {
    json["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return json;
}

std::vector<jinja::Variable> JinjaTemplate::variables(const std::vector<Message>& messages,
                                                      const std::vector<ToolDefinition>& tools,
                                                      const RenderOptions& options) const {
  std::vector<jinja::Variable> given = special_;
  for (const auto& [name, value] : options.template_kwargs.items()) given.push_back({name, value});
  // What a caller sets without the request's fields.
  const bool says_thinking = options.template_kwargs.contains("thinking");
  if (!says_thinking && !options.thinking) {
    given.push_back({"thinking", false});
    given.push_back({"enable_thinking", false});
  }
  if (options.preserve_thinking) given.push_back({"preserve_thinking", true});
  Json list = Json::array();
  for (const Message& message : messages) list.push_back(json_of(message));
  given.push_back({"messages", std::move(list)});
  given.push_back({"documents", nullptr});
  given.push_back({"add_generation_prompt", options.add_generation_prompt});
  const bool kimi = main_.mentions("tools_ts_str");
  Json tool_list;
  for (const ToolDefinition& tool : tools) {
    tool_list.push_back(kimi ? sorted_keys(tool.json) : tool.json);
  }
  given.push_back({"tools", std::move(tool_list)});
  if (kimi && !tools.empty()) given.push_back({"tools_ts_str", declare_tools(tools)});
  return given;
}

// Cuts the rendered text where the final message ends.
std::optional<jinja::Text> cut_at_tag(const jinja::Text& text) {
  std::string_view tag = kContinueTag;
  std::string_view bytes = text.bytes;
  const size_t found = bytes.rfind(tag.substr(0, tag.size() - 1));
  if (found == std::string_view::npos) return std::nullopt;
  size_t end = found;
  if (!bytes.substr(found).starts_with(tag)) {  // the template trims, so the message's end too
    end = jinja::stripped(bytes.substr(0, found), false, true, nullptr).end;
  }
  jinja::Budget budget{jinja::Limits{}};
  return jinja::slice(text, 0, end, budget);
}

Result<Prompt> JinjaTemplate::render(const std::vector<Message>& messages,
                                     const std::vector<ToolDefinition>& tools,
                                     const RenderOptions& options) const {
  if (auto failure = first_unsupported(messages)) return *failure;
  if (auto failure = bad_continuation(messages, options)) return *failure;
  const jinja::Template& chosen = !tools.empty() && with_tools_ ? *with_tools_ : main_;
  std::vector<Message> tagged;
  if (options.continue_final_message) {
    tagged = messages;
    if (tagged.back().content.empty()) tagged.back().content.emplace_back();
    tagged.back().content.back().text += kContinueTag;
  }
  auto rendered = chosen.render(variables(tagged.empty() ? messages : tagged, tools, options));
  if (!rendered) {
    return Failure{FailureKind::kInvalidArgument, rendered.failure().message, "messages"};
  }
  if (options.continue_final_message) {
    auto cut = cut_at_tag(rendered.value());
    if (!cut) {
      return Failure{FailureKind::kInvalidArgument,
                     "continue_final_message: the chat template leaves the final message out",
                     "continue_final_message"};
    }
    return to_prompt(*cut);
  }
  Prompt prompt = to_prompt(rendered.value());
  prompt.ends_in_reasoning = options.add_generation_prompt && opens_thinking(rendered.value());
  return prompt;
}

// For a checkpoint without any.
class NoTemplate final : public ChatTemplate {
 public:
  explicit NoTemplate(std::string dir) : dir_(std::move(dir)) {}
  Result<Prompt> render(const std::vector<Message>&, const std::vector<ToolDefinition>&,
                        const RenderOptions&) const override {
    return Failure{FailureKind::kInvalidArgument,
                   dir_ +
                       " has no chat template (chat_template.jinja, chat_template.json or "
                       "chat_template in tokenizer_config.json); start the server with "
                       "--chat-template, or use /v1/completions",
                   "messages"};
  }
  std::string origin() const override { return "none: chat requests are refused"; }
  bool uses_kimi_ids() const override { return false; }

 private:
  std::string dir_;
};

std::optional<std::string> read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Json read_json(const fs::path& path) {
  const auto text = read_text(path);
  if (!text) return Json::object();
  Json json = Json::parse(*text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) fail("{}: no JSON object", path.string());
  return json;
}

SpecialTokens special_tokens(const Json& tokenizer_config) {
  SpecialTokens special;
  const auto spelled = [](const Json& token) {
    return token.is_object() && token.contains("content") ? token["content"] : token;
  };
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const auto found = tokenizer_config.find(name);
    if (found == tokenizer_config.end()) continue;
    const Json text = spelled(*found);
    if (text.is_string()) special.push_back({name, text, true});
  }
  return special;
}

jinja::Template parse_or_fail(const std::string& text, const std::string& origin) {
  auto parsed = jinja::Template::parse(text);
  if (!parsed) fail("{}: {}", origin, parsed.failure().message);
  return std::move(parsed).value();
}

struct Found {
  std::string main;
  std::optional<std::string> with_tools{};
  std::string origin;
};

// "chat_template" as a string, or as a list of {"name", "template"}.
std::optional<Found> from_config(const Json& config, const std::string& origin) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return Found{found->get<std::string>(), std::nullopt, origin};
  if (!found->is_array()) return std::nullopt;
  std::optional<std::string> main;
  std::optional<std::string> with_tools;
  for (const Json& entry : *found) {
    if (!entry.is_object() || !entry.contains("template") || !entry["template"].is_string()) {
      fail("{}: chat_template has an entry without a template", origin);
    }
    if (entry.value("name", "") == "default") main = entry["template"].get<std::string>();
    if (entry.value("name", "") == "tool_use") with_tools = entry["template"].get<std::string>();
  }
  if (!main) return std::nullopt;
  return Found{*main, with_tools, origin};
}

std::optional<Found> find_template(const TemplateSource& source, const Json& tokenizer_config) {
  if (!source.given.empty()) {
    std::error_code ignored;
    if (fs::is_regular_file(source.given, ignored)) {
      return Found{read_text(source.given).value_or(""), std::nullopt, source.given};
    }
    if (source.given.find('{') == std::string::npos) {
      fail("--chat-template {}: there is no such file, and it is no template itself", source.given);
    }
    return Found{source.given, std::nullopt, "--chat-template"};
  }
  const fs::path dir = source.tokenizer_dir;
  if (auto text = read_text(dir / "chat_template.jinja")) {
    return Found{*text, std::nullopt, (dir / "chat_template.jinja").string()};
  }
  if (auto found = from_config(tokenizer_config, (dir / "tokenizer_config.json").string())) {
    return found;
  }
  const fs::path legacy = dir / "chat_template.json";
  return from_config(read_json(legacy), legacy.string());
}

}  // namespace

std::unique_ptr<ChatTemplate> load_chat_template(const TemplateSource& source) {
  const Json tokenizer_config = read_json(fs::path(source.tokenizer_dir) / "tokenizer_config.json");
  const auto found = find_template(source, tokenizer_config);
  if (!found) {
    const std::string& dir = source.model_dir.empty() ? source.tokenizer_dir : source.model_dir;
    const Json config = read_json(fs::path(dir) / "config.json");
    const auto type = config.find("model_type");
    const bool kimi = type != config.end() && type->is_string() &&
                      type->get_ref<const std::string&>().starts_with("kimi_k2");
    if (kimi) return make_kimi_template();
    return std::make_unique<NoTemplate>(dir);
  }
  std::optional<jinja::Template> with_tools;
  if (found->with_tools) with_tools = parse_or_fail(*found->with_tools, found->origin);
  return std::make_unique<JinjaTemplate>(
      parse_or_fail(found->main, found->origin), std::move(with_tools),
      special_tokens(tokenizer_config), source.content_format,
      JinjaTemplate::spells_kimi_calls(found->main), found->origin);
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::with_source(const std::string& source) const {
  return JinjaTemplate::parse_for_request(source, {}, ContentFormat::kAuto);
}

}  // namespace eyrie::chat
