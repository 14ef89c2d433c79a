// From messages to a prompt. ChatTemplate is the seam: today the Kimi-K2.5 renderer written in C++,
// later an interpreter for a checkpoint's chat_template.jinja behind the same interface.
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
};

// thinking and preserve_thinking from a chat request's body. First that is given wins:
// chat_template_kwargs.thinking, chat_template_kwargs.enable_thinking, thinking {"type": "enabled"
// | "disabled"} (Moonshot's API) or a bare boolean, reasoning_effort ("none" = off), default on.
// Also reads add_generation_prompt and continue_final_message.
Result<RenderOptions> render_options_from_json(const Json& body);

// A stretch of a prompt. Control text is spelled by the template and encodes to control tokens;
// the rest comes from outside and must not.
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
};

std::unique_ptr<ChatTemplate> make_kimi_template();

// Ids of a prompt: control segments with AllowSpecial::kAll, all other text with kNone. Equals
// encoding Prompt::text() with kAll unless outside text spells a control token.
std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, const Prompt& prompt);

// The text of a tool_declare message: TypeScript declarations, or compact JSON where the schemas
// cannot be written that way. Empty without tools.
std::string declare_tools(const std::vector<ToolDefinition>& tools);

}  // namespace eyrie::chat
