#include "chat/message.h"

#include <algorithm>
#include <map>
#include <set>

#include "chat/json_text.h"

namespace eyrie::chat {
namespace {

// Reads one message; the first thing wrong is kept in failure.
class MessageReader {
 public:
  explicit MessageReader(std::string where) : where_(std::move(where)) {}

  Message read(const Json& json);
  const std::optional<Failure>& failure() const { return failure_; }

 private:
  void fail(const std::string& field, std::string_view problem) {
    if (failure_) return;
    failure_ = Failure{FailureKind::kInvalidArgument,
                       fmt::format("{}{} {}", where_, field, problem), "messages"};
  }
  std::string text_field(const Json& json, const char* key, const std::string& prefix = "");
  void content(const Json& json, Message& message);
  ContentPart part(const Json& json, const std::string& field);
  ToolCall call(const Json& json, const std::string& field);

  std::string where_;
  std::optional<Failure> failure_;
};

const Json* find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// A string, or empty when it is absent or null.
std::string MessageReader::text_field(const Json& json, const char* key,
                                      const std::string& prefix) {
  const Json* value = find(json, key);
  if (value == nullptr) return {};
  if (!value->is_string()) {
    fail(prefix + "." + key, fmt::format("must be a string, not {}", value->type_name()));
    return {};
  }
  return value->get<std::string>();
}

Message MessageReader::read(const Json& json) {
  Message message;
  if (!json.is_object()) {
    fail("", fmt::format("must be an object, not {}", json.type_name()));
    return message;
  }
  message.role = text_field(json, "role");
  if (message.role.empty())
    fail(".role", "is missing; system, user, assistant or tool is expected");
  message.name = text_field(json, "name");
  message.reasoning = text_field(json, "reasoning");
  if (message.reasoning.empty()) message.reasoning = text_field(json, "reasoning_content");
  message.tool_call_id = text_field(json, "tool_call_id");
  content(json, message);
  if (const Json* calls = find(json, "tool_calls")) {
    if (!calls->is_array()) {
      fail(".tool_calls", fmt::format("must be a list, not {}", calls->type_name()));
      return message;
    }
    for (size_t i = 0; i < calls->size(); ++i) {
      message.tool_calls.push_back(call((*calls)[i], fmt::format(".tool_calls[{}]", i)));
    }
  }
  return message;
}

void MessageReader::content(const Json& json, Message& message) {
  const Json* content = find(json, "content");
  if (content == nullptr) return;
  if (content->is_string()) {
    message.content.push_back({ContentPart::Kind::kText, content->get<std::string>(), ""});
    return;
  }
  if (!content->is_array()) {
    fail(".content",
         fmt::format("must be a string or a list of parts, not {}", content->type_name()));
    return;
  }
  for (size_t i = 0; i < content->size(); ++i) {
    ContentPart one = part((*content)[i], fmt::format(".content[{}]", i));
    // The parts of a tool's result are its lines; those of other messages follow directly.
    const bool joins = message.role == "tool" && one.kind == ContentPart::Kind::kText;
    if (joins && !message.content.empty()) one.text.insert(0, "\n");
    message.content.push_back(std::move(one));
  }
}

ContentPart MessageReader::part(const Json& json, const std::string& field) {
  using Kind = ContentPart::Kind;
  if (json.is_string()) return {Kind::kText, json.get<std::string>(), ""};
  if (!json.is_object()) {
    fail(field, fmt::format("must be an object, not {}", json.type_name()));
    return {};
  }
  std::string type = text_field(json, "type", field);
  if (type.empty()) {
    for (const char* key : {"text", "image_url", "video_url"}) {
      if (json.contains(key)) type = key;
    }
  }
  for (const char* key : {"text", "refusal", "thinking"}) {
    const bool is_text = type == "input_text" || type == "output_text";
    if (type != key && !(is_text && std::string_view(key) == "text")) continue;
    const Json* text = find(json, key);
    if (text == nullptr || !text->is_string()) {
      fail(field + "." + key, "must be a string");
      return {};
    }
    return {Kind::kText, text->get<std::string>(), ""};
  }
  const bool is_image = type == "image" || type == "image_url" || type == "input_image";
  if (!is_image && type != "video" && type != "video_url") {
    fail(field + ".type",
         fmt::format("\"{}\" is not known; text, image_url or video_url is", type));
    return {};
  }
  ContentPart media{is_image ? Kind::kImage : Kind::kVideo, "", ""};
  for (const char* key : {"image_url", "video_url", "image", "video"}) {
    const Json* source = find(json, key);
    if (source == nullptr) continue;
    if (source->is_object()) source = find(*source, "url");
    if (source != nullptr && source->is_string()) media.url = source->get<std::string>();
  }
  return media;
}

ToolCall MessageReader::call(const Json& json, const std::string& field) {
  ToolCall call;
  const Json* function = json.is_object() ? find(json, "function") : nullptr;
  if (function == nullptr || !function->is_object()) {
    fail(field + ".function", "must be an object with name and arguments");
    return call;
  }
  call.id = text_field(json, "id", field);
  call.name = text_field(*function, "name", field + ".function");
  if (call.name.empty()) fail(field + ".function.name", "is missing");
  const Json* arguments = find(*function, "arguments");
  call.arguments = Json::object();
  if (arguments == nullptr) return call;
  if (!arguments->is_string()) {
    call.arguments = *arguments;
    return call;
  }
  const std::string& text = arguments->get_ref<const std::string&>();
  if (text.empty()) return call;
  Json parsed = Json::parse(text, nullptr, false);
  const bool usable = parsed.is_object() && nests_at_most(parsed, kMaxJsonDepth);
  call.arguments = *arguments;
  if (usable) call.arguments = std::move(parsed);
  return call;
}

Failure bad_tools(const std::string& message) {
  return {FailureKind::kInvalidArgument, message, "tools"};
}

}  // namespace

std::string ToolDefinition::name() const { return json["function"]["name"].get<std::string>(); }

std::string Message::text() const {
  std::string out;
  for (const ContentPart& part : content) out += part.text;
  return out;
}

Result<std::vector<Message>> messages_from_json(const Json& messages) {
  const auto bad = [](const std::string& text) {
    return Failure{FailureKind::kInvalidArgument, text, "messages"};
  };
  if (!messages.is_array() || messages.empty()) {
    return bad("messages must be a list with at least one message");
  }
  if (!nests_at_most(messages, kMaxJsonDepth)) {
    return bad(fmt::format("messages nest deeper than {} levels", kMaxJsonDepth));
  }
  std::vector<Message> out;
  for (size_t i = 0; i < messages.size(); ++i) {
    MessageReader reader(fmt::format("messages[{}]", i));
    out.push_back(reader.read(messages[i]));
    if (reader.failure()) return *reader.failure();
  }
  return out;
}

Result<std::vector<ToolDefinition>> tools_from_json(const Json& tools) {
  std::vector<ToolDefinition> out;
  if (tools.is_null()) return out;
  if (!tools.is_array() || tools.empty()) {
    return bad_tools("tools must be a list with at least one tool, or be left out");
  }
  if (!nests_at_most(tools, kMaxJsonDepth)) {
    return bad_tools(fmt::format("tools nest deeper than {} levels", kMaxJsonDepth));
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& tool = tools[i];
    const Json* type = tool.is_object() ? find(tool, "type") : nullptr;
    const Json* function = tool.is_object() ? find(tool, "function") : nullptr;
    if (type == nullptr || *type != "function" || function == nullptr || !function->is_object()) {
      return bad_tools(
          fmt::format(R"(tools[{}] must be {{"type": "function", "function": {{…}}}})", i));
    }
    const Json* name = find(*function, "name");
    if (name == nullptr || !name->is_string() || name->get_ref<const std::string&>().empty()) {
      return bad_tools(fmt::format("tools[{}].function.name must be a string", i));
    }
    out.push_back({tool});
  }
  return out;
}

namespace {

bool is_kimi_id(std::string_view id) {
  constexpr std::string_view kPrefix = "functions.";
  const size_t colon = id.rfind(':');
  if (!id.starts_with(kPrefix) || colon == std::string_view::npos) return false;
  const std::string_view index = id.substr(colon + 1);
  return colon > kPrefix.size() && !index.empty() &&
         std::all_of(index.begin(), index.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

void normalize_tool_call_ids(std::vector<Message>& messages) {
  std::set<std::string> taken;
  for (const Message& message : messages) {
    for (const ToolCall& call : message.tool_calls) {
      if (is_kimi_id(call.id)) taken.insert(call.id);
    }
  }
  std::map<std::string, std::string> renamed;
  int index = 0;
  for (Message& message : messages) {
    for (ToolCall& call : message.tool_calls) {
      if (is_kimi_id(call.id)) {
        ++index;
        continue;
      }
      std::string id = kimi_tool_call_id(call.name, index++);
      while (!taken.insert(id).second) id = kimi_tool_call_id(call.name, index++);
      renamed[call.id] = id;
      call.id = std::move(id);
    }
    if (message.role != "tool") continue;
    if (const auto found = renamed.find(message.tool_call_id); found != renamed.end()) {
      message.tool_call_id = found->second;
    }
  }
}

int count_tool_calls(const std::vector<Message>& messages) {
  size_t count = 0;
  for (const Message& message : messages) count += message.tool_calls.size();
  return static_cast<int>(count);
}

std::string kimi_tool_call_id(const std::string& name, int index) {
  return fmt::format("functions.{}:{}", name, index);
}

}  // namespace eyrie::chat
