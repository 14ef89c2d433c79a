// The prompt layout of Kimi-K2.5:
//
//   <|im_system|>tool_declare<|im_middle|>DECLARATIONS<|im_end|>          only with tools
//   <|im_user|>NAME<|im_middle|>BODY<|im_end|>                            one a message
//   <|im_assistant|>assistant<|im_middle|><think>                         generation prompt
//
// without anything between the messages. <|im_assistant|> heads an assistant's, <|im_system|> every
// message that is neither a user's nor an assistant's.
#include <utility>

#include "chat/json_text.h"
#include "chat/template.h"
#include "chat/template_rules.h"

namespace eyrie::chat {
namespace {

class PromptBuilder {
 public:
  void control(std::string_view text) { append(text, true); }
  void text(std::string_view text) { append(text, false); }
  Prompt take() { return std::move(prompt_); }

 private:
  void append(std::string_view text, bool is_control) {
    if (text.empty()) return;
    auto& segments = prompt_.segments;
    if (segments.empty() || segments.back().is_control != is_control) {
      segments.push_back({"", is_control});
    }
    segments.back().text += text;
  }
  Prompt prompt_;
};

void header(std::string_view role, std::string_view shown, PromptBuilder& out) {
  out.control(role == "user"        ? "<|im_user|>"
              : role == "assistant" ? "<|im_assistant|>"
                                    : "<|im_system|>");
  out.text(shown);
  out.control("<|im_middle|>");
}

void tool_calls(const std::vector<ToolCall>& calls, PromptBuilder& out) {
  if (calls.empty()) return;
  out.control("<|tool_calls_section_begin|>");
  for (const ToolCall& call : calls) {
    out.control("<|tool_call_begin|>");
    out.text(call.id);
    out.control("<|tool_call_argument_begin|>");
    out.text(call.arguments.is_string() ? call.arguments.get_ref<const std::string&>()
                                        : dump_json(call.arguments));
    out.control("<|tool_call_end|>");
  }
  out.control("<|tool_calls_section_end|>");
}

// Messages up to the last assistant message that calls no tool belong to finished turns; their
// reasoning is left out, so it survives only inside the tool loop under way.
size_t num_finished_messages(const std::vector<Message>& messages) {
  for (size_t i = messages.size(); i > 0; --i) {
    if (messages[i - 1].role == "assistant" && messages[i - 1].tool_calls.empty()) return i;
  }
  return 0;
}

}  // namespace

std::optional<Failure> first_unsupported(const std::vector<Message>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    for (const ContentPart& part : messages[i].content) {
      if (part.kind == ContentPart::Kind::kText) continue;
      return Failure{FailureKind::kInvalidArgument,
                     fmt::format("messages[{}] has {} part, but this model reads text only", i,
                                 part.kind == ContentPart::Kind::kImage ? "an image" : "a video"),
                     "messages"};
    }
  }
  return std::nullopt;
}

std::optional<Failure> bad_continuation(const std::vector<Message>& messages,
                                        const RenderOptions& options) {
  if (!options.continue_final_message) return std::nullopt;
  if (options.add_generation_prompt || messages.empty()) {
    return Failure{FailureKind::kInvalidArgument,
                   "continue_final_message needs a final message and add_generation_prompt false",
                   "continue_final_message"};
  }
  if (messages.back().tool_calls.empty()) return std::nullopt;
  return Failure{FailureKind::kInvalidArgument,
                 "continue_final_message cannot continue a message that ends in tool calls",
                 "continue_final_message"};
}

namespace {

class KimiTemplate final : public ChatTemplate {
 public:
  std::string origin() const override { return "the built-in one for Kimi-K2.5"; }
  bool uses_kimi_ids() const override { return true; }
  Result<Prompt> render(const std::vector<Message>& messages,
                        const std::vector<ToolDefinition>& tools,
                        const RenderOptions& options) const override {
    if (auto failure = first_unsupported(messages)) return *failure;
    if (auto failure = bad_continuation(messages, options)) return *failure;
    const bool open = options.continue_final_message;
    PromptBuilder out;
    if (!tools.empty()) {
      header("system", "tool_declare", out);
      out.text(declare_tools(tools));
      out.control("<|im_end|>");
    }
    const size_t num_finished = options.preserve_thinking ? 0 : num_finished_messages(messages);
    for (size_t i = 0; i < messages.size(); ++i) {
      const Message& message = messages[i];
      header(message.role, message.name.empty() ? message.role : message.name, out);
      if (message.role == "assistant") {
        out.control("<think>");
        if (i >= num_finished && options.thinking) out.text(message.reasoning);
        out.control("</think>");
      } else if (message.role == "tool") {
        out.text("## Return of " + message.tool_call_id + "\n");
      }
      out.text(message.text());
      if (message.role == "assistant") tool_calls(message.tool_calls, out);
      if (!(open && i + 1 == messages.size())) out.control("<|im_end|>");
    }
    if (options.add_generation_prompt) {
      header("assistant", "assistant", out);
      out.control(options.thinking ? "<think>" : "<think></think>");
    }
    Prompt prompt = out.take();
    prompt.ends_in_reasoning = options.add_generation_prompt && options.thinking;
    return prompt;
  }
};

}  // namespace

std::string Prompt::text() const {
  std::string out;
  for (const Segment& segment : segments) out += segment.text;
  return out;
}

std::unique_ptr<ChatTemplate> make_kimi_template() { return std::make_unique<KimiTemplate>(); }

std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, const Prompt& prompt) {
  std::vector<TokenId> ids;
  std::string plain;  // since the last control token, whoever wrote it
  for (const Segment& segment : prompt.segments) {
    std::string_view rest = segment.text;
    while (segment.is_control) {
      const auto control = tokenizer.find_control(rest);
      if (!control) break;
      plain += rest.substr(0, control->offset);
      tokenizer.encode_append(std::exchange(plain, {}), AllowSpecial::kNone, ids);
      ids.push_back(control->id);
      rest.remove_prefix(control->offset + control->size);
    }
    plain += rest;
  }
  tokenizer.encode_append(plain, AllowSpecial::kNone, ids);
  return ids;
}

}  // namespace eyrie::chat
