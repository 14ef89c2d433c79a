// A conversation as the chat API knows it: messages, tools, tool calls. Plain values; reading them
// from a request's JSON is here too, so that server, benchmark and tests agree on the schema.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace eyrie::chat {

// Ordered, since the order of keys in arguments and schemas is part of the prompt.
using Json = nlohmann::ordered_json;

struct ContentPart {
  enum class Kind { kText, kImage, kVideo };
  Kind kind = Kind::kText;
  std::string text{};  // of a text part
  std::string url{};   // of a media part
};

struct ToolCall {
  std::string id{};
  std::string name{};
  Json arguments;  // a string is inserted as it is, any other value as JSON
};

// One entry of the request's tools, kept as it came: {"type":"function","function":{…}}.
struct ToolDefinition {
  Json json;
  std::string name() const;
};

struct Message {
  std::string role{};
  std::string name{};                  // stands in the header instead of the role unless empty
  std::vector<ContentPart> content{};  // empty for null
  std::string reasoning{};  // of an assistant: reasoning or reasoning_content; null = empty
  std::vector<ToolCall> tool_calls{};  // of an assistant
  std::string tool_call_id{};          // of a tool's result

  std::string text() const;  // text parts joined
};

// The request's "messages": roles, content as string, null or parts, tool_calls with arguments as
// JSON text (parsed, as vLLM does, so that the prompt has one spelling of it) or as an object.
Result<std::vector<Message>> messages_from_json(const Json& messages);
// The request's "tools": a non-empty list of functions with a name; null gives an empty vector.
Result<std::vector<ToolDefinition>> tools_from_json(const Json& tools);

// Rewrites ids that are not of Kimi's form functions.NAME:INDEX (call_ab12, search:2), in the calls
// and in the results that name them. The index counts the calls of the whole conversation. A model
// that sees foreign ids copies their form and then its calls cannot be told apart.
void normalize_tool_call_ids(std::vector<Message>& messages);

// Calls in the history: where the index of a new id made by us begins.
int count_tool_calls(const std::vector<Message>& messages);
std::string kimi_tool_call_id(const std::string& name, int index);

}  // namespace eyrie::chat
