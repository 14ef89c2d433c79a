// From messages to a prompt. ChatTemplate is the seam: a checkpoint's own template, run by the
// Jinja interpreter (jinja.h), or the Kimi-K2.5 renderer written in C++ for Kimi checkpoints
// without one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "chat/message.h"
#include "tokenizer/tokenizer.h"

namespace eyrie::chat {

struct RenderOptions {
  bool add_generation_prompt = true;
  bool thinking = true;                 // off: the generation prompt closes <think> at once
  bool preserve_thinking = false;       // K2.6: keep the reasoning of finished turns too
  bool continue_final_message = false;  // leave the last message open; excludes a generation prompt
  // What a Jinja template sees beside messages and tools: chat_template_kwargs, reasoning_effort
  // and, once any field turns thinking on or off, both thinking and enable_thinking.
  Json template_kwargs = Json::object();
};

// thinking and preserve_thinking from a chat request's body. First that is given wins:
// chat_template_kwargs.thinking, chat_template_kwargs.enable_thinking, thinking {"type": "enabled"
// | "disabled"} (Moonshot's API) or a bare boolean, reasoning_effort ("none" = off), default on.
// Also reads add_generation_prompt and continue_final_message.
Result<RenderOptions> render_options_from_json(const Json& body);

// A stretch of a prompt. In control text, spelled by the template, spellings of control tokens
// become those tokens; the rest comes from outside, and there they do not.
struct Segment {
  std::string text;
  bool is_control = false;
  bool operator==(const Segment&) const = default;
};

struct Prompt {
  std::vector<Segment> segments;   // neighbours differ in is_control
  bool ends_in_reasoning = false;  // the answer begins inside <think>

  std::string text() const;
};

class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;
  // Failure for what this model cannot take (an image part on a text-only model).
  virtual Result<Prompt> render(const std::vector<Message>& messages,
                                const std::vector<ToolDefinition>& tools,
                                const RenderOptions& options) const = 0;
  // The template a request brings, with this one's special tokens and settings.
  virtual Result<std::unique_ptr<ChatTemplate>> with_source(const std::string& source) const;
  // Trained on call ids functions.NAME:INDEX, so a history's others are to be rewritten.
  virtual bool uses_kimi_ids() const = 0;
  // Where it comes from, for the log.
  virtual std::string origin() const = 0;
};

std::unique_ptr<ChatTemplate> make_kimi_template();

enum class ContentFormat {
  kAuto,    // what the template can take, found out by trying
  kString,  // a message's content is a string; several parts are lines
  kParts,   // always a list of parts ("openai")
};

struct TemplateSource {
  std::string tokenizer_dir;
  std::string model_dir{};  // empty: the tokenizer's
  std::string given{};      // --chat-template: a file, or the template itself
  ContentFormat content_format = ContentFormat::kAuto;
};

// The template that is given, or else the checkpoint's: chat_template.jinja,
// tokenizer_config.json's chat_template (with "tool_use" for requests with tools, if it has one),
// chat_template.json. Without any, Kimi's own for a model_type kimi_k2…; for other models one that
// refuses every conversation and says why. Throws Error for a template that cannot be read or
// parsed.
std::unique_ptr<ChatTemplate> load_chat_template(const TemplateSource& source);

// Ids of a prompt. Equals encoding Prompt::text() with AllowSpecial::kAll unless outside text
// spells a control token or a part of one.
std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, const Prompt& prompt);

// The text of a tool_declare message: TypeScript declarations, or compact JSON where the schemas
// cannot be written that way. Empty without tools.
std::string declare_tools(const std::vector<ToolDefinition>& tools);

}  // namespace eyrie::chat
