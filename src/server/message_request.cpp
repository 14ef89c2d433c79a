#include "server/message_request.h"

#include <fmt/format.h>

#include <limits>

#include "server/rewrite.h"

namespace eyrie::server {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

bool is_type(const Json& block, const char* type) {
  const auto it = block.find("type");
  return it != block.end() && *it == type;
}

// One message of Anthropic's becomes one of ours, and one more for each tool result in it.
class MessageRewriter {
 public:
  explicit MessageRewriter(Conversation& out) : out_(out) {}

  void add(const Json& message, const std::string& where) {
    if (!message.is_object()) {
      return out_.fail(fmt::format("{} must be an object, got {}", where, shown(message)));
    }
    const auto role = message.find("role");
    if (role == message.end() || (*role != "user" && *role != "assistant" && *role != "system")) {
      return out_.fail(fmt::format("{}.role must be \"user\" or \"assistant\", got {}", where,
                                   role == message.end() ? "nothing" : shown(*role)));
    }
    const auto content = message.find("content");
    if (content == message.end() || (!content->is_string() && !content->is_array())) {
      return out_.fail(fmt::format("{}.content must be a string or a list of blocks", where));
    }
    if (content->is_string()) {
      return out_.add({{"role", *role}, {"content", *content}}, where);
    }
    current_ = {{"role", *role}, {"content", Json::array()}};
    for (size_t i = 0; i < content->size(); ++i) {
      const std::string at = fmt::format("{}.content[{}]", where, i);
      if (!(*content)[i].is_object()) {
        return out_.fail(fmt::format("{} must be an object, got {}", at, shown((*content)[i])));
      }
      block((*content)[i], where, at);
    }
    flush(where);
  }

 private:
  void block(const Json& block, const std::string& where, const std::string& at) {
    if (is_type(block, "text") || is_type(block, "image")) {
      current_["content"].push_back(block);
    } else if (is_type(block, "thinking")) {
      const auto thought = block.find("thinking");
      if (thought == block.end() || !thought->is_string()) {
        return out_.fail(at + ".thinking must be a string");
      }
      current_["reasoning"] = current_.value("reasoning", "") + thought->get<std::string>();
    } else if (is_type(block, "tool_use")) {
      Json call = {{"id", block.value("id", Json())},
                   {"function",
                    {{"name", block.value("name", Json())},
                     {"arguments", block.value("input", Json::object())}}}};
      current_["tool_calls"].push_back(std::move(call));
    } else if (is_type(block, "tool_result")) {
      flush(where);
      out_.add({{"role", "tool"},
                {"tool_call_id", block.value("tool_use_id", Json())},
                {"content", block.value("content", Json(""))}},
               at);
    } else if (!is_type(block, "redacted_thinking")) {
      out_.fail(
          fmt::format("{}.type {} is not known; text, image, thinking, redacted_thinking, "
                      "tool_use and tool_result are",
                      at, shown(block.value("type", Json()))));
    }
  }

  void flush(const std::string& where) {
    const bool is_empty = current_["content"].empty() && current_.size() == 2;
    if (is_empty) return;
    Json fresh = {{"role", current_["role"]}, {"content", Json::array()}};
    out_.add(std::exchange(current_, std::move(fresh)), where);
  }

  Conversation& out_;
  Json current_;
};

void add_messages(Fields& fields, Json& chat) {
  Conversation conversation("messages");
  if (const Json* system = fields.find("system")) {
    if (!system->is_string() && !system->is_array()) {
      return fields.fail("system", "system must be a string or a list of text blocks");
    }
    conversation.add({{"role", "system"}, {"content", *system}}, "system");
  }
  const Json* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return fields.fail("messages", "messages must be a non-empty list of messages");
  }
  MessageRewriter rewriter(conversation);
  for (size_t i = 0; i < messages->size(); ++i) {
    rewriter.add((*messages)[i], fmt::format("messages[{}]", i));
  }
  if (conversation.failure()) return fields.fail("messages", conversation.failure()->message);
  chat["messages"] = conversation.take();
  if (chat["messages"].empty()) return fields.fail("messages", "messages hold no content");
  // An assistant's words at the end are the beginning of the answer.
  const Json& last = chat["messages"].back();
  if (last["role"] == "assistant" && !last.contains("tool_calls")) {
    chat["continue_final_message"] = true;
    chat["add_generation_prompt"] = false;
  }
}

void add_tools(Fields& fields, Json& chat) {
  const Json* tools = fields.find("tools");
  if (tools == nullptr) return;
  if (!tools->is_array()) {
    return fields.fail("tools", "tools must be a list, got " + shown(*tools));
  }
  if (tools->empty()) return;
  Json out = Json::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const bool is_ours = tool.is_object() && (!tool.contains("type") || is_type(tool, "custom") ||
                                              tool["type"].is_null());
    if (!is_ours) {
      return fields.fail("tools",
                         fmt::format("tools[{}] must be {{\"name\", \"description\", "
                                     "\"input_schema\"}}: tools that run on the server are not "
                                     "supported, got {}",
                                     i, shown(tool)));
    }
    if (!tool.contains("name") || !tool["name"].is_string()) {
      return fields.fail("tools", fmt::format("tools[{}].name must be a string", i));
    }
    Json function = {{"name", tool["name"]}};
    if (tool.contains("description")) function["description"] = tool["description"];
    if (tool.contains("input_schema")) function["parameters"] = tool["input_schema"];
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  chat["tools"] = std::move(out);
}

void add_tool_choice(Fields& fields, Json& chat) {
  const Json* choice = fields.object("tool_choice");
  if (choice == nullptr) return;
  Fields reader(*choice, "tool_choice.");
  const std::string type = reader.string("type").value_or("");
  if (reader.boolean("disable_parallel_tool_use").value_or(false)) {
    chat["parallel_tool_calls"] = false;
  }
  if (reader.failed()) return fields.fail("tool_choice", reader.failure().message);
  if (type == "auto" || type == "none") {
    if (type == "none" || chat.contains("tools")) chat["tool_choice"] = type;
  } else if (type == "any" || type == "tool") {
    fields.fail("tool_choice",
                fmt::format("tool_choice.type \"{}\" is not supported: this server has no "
                            "constrained decoding yet, only \"auto\" and \"none\"",
                            type));
  } else {
    fields.fail(
        "tool_choice",
        "tool_choice.type must be \"auto\", \"any\", \"tool\" or \"none\", got " + shown(*choice));
  }
}

// A budget of thought is taken and not kept: how long the model thinks is its own.
void add_thinking(Fields& fields, Json& chat) {
  if (const Json* thinking = fields.object("thinking")) {
    const std::string type = Fields(*thinking).string("type").value_or("");
    if (type != "enabled" && type != "disabled" && type != "adaptive" && type != "between_tools") {
      return fields.fail("thinking",
                         "thinking.type must be \"enabled\", \"adaptive\", \"between_tools\" or "
                         "\"disabled\", got " +
                             shown(*thinking));
    }
    chat["thinking"] = {{"type", type == "disabled" ? "disabled" : "enabled"}};
  }
  if (const Json* output = fields.object("output_config")) {
    if (output->contains("format") && !(*output)["format"].is_null()) {
      return fields.fail("output_config",
                         "output_config.format is not supported: this server has no constrained "
                         "decoding yet");
    }
    if (const auto effort = Fields(*output).string("effort")) chat["reasoning_effort"] = *effort;
  }
}

}  // namespace

Json message_error_body(const Failure& failure) {
  const char* type = "api_error";
  switch (failure.kind) {
    case FailureKind::kInvalidArgument:
      type = "invalid_request_error";
      break;
    case FailureKind::kUnauthorized:
      type = "authentication_error";
      break;
    case FailureKind::kNotFound:
      type = "not_found_error";
      break;
    case FailureKind::kTooLarge:
      type = "request_too_large";
      break;
    case FailureKind::kOverloaded:
      type = "rate_limit_error";
      break;
    case FailureKind::kUnavailable:
      type = "overloaded_error";
      break;
    case FailureKind::kTimeout:
      type = "timeout_error";
      break;
    case FailureKind::kInternal:
      break;
  }
  return {{"type", "error"}, {"error", {{"type", type}, {"message", failure.message}}}};
}

Result<Json> chat_from_message(const Json& body, bool is_counting) {
  Fields fields(body);
  Json chat = picked(body, {"model", "temperature", "top_p", "top_k", "min_p", "seed", "stream",
                            "chat_template_kwargs", "priority", "cache_salt", "request_id"});
  const auto max_tokens = fields.integer("max_tokens", 1, kMaxInt32);
  if (max_tokens) chat["max_completion_tokens"] = *max_tokens;
  if (!max_tokens && !is_counting) fields.fail("max_tokens", "max_tokens is required");
  const std::vector<std::string> stops = fields.strings("stop_sequences");
  if (!stops.empty()) chat["stop"] = stops;
  for (const char* name : {"mcp_servers", "container", "output_format"}) {
    if (const Json* value = fields.find(name); value != nullptr && !value->empty()) {
      fields.fail(name, fmt::format("{} is not supported by this server", name));
    }
  }
  add_messages(fields, chat);
  add_tools(fields, chat);
  add_tool_choice(fields, chat);
  add_thinking(fields, chat);
  if (fields.failed()) return fields.failure();
  return chat;
}

Result<MessageGeneration> parse_message(const Json& body, const Context& context) {
  auto chat = chat_from_message(body, false);
  if (!chat.ok()) return chat.failure();
  auto parsed = parse_chat(chat.value(), context);
  if (!parsed.ok()) return parsed.failure();
  MessageGeneration generation;
  static_cast<ChatGeneration&>(generation) = std::move(parsed).value();
  return generation;
}

}  // namespace eyrie::server
