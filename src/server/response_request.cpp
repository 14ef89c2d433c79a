#include "server/response_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "server/rewrite.h"

namespace eyrie::server {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// Items to chat messages. A thought, words and calls that follow each other are one assistant
// message.
class ItemRewriter {
 public:
  explicit ItemRewriter(Conversation& out) : out_(out) {}

  void add(const Json& item, const std::string& where) {
    if (!item.is_object()) {
      return out_.fail(fmt::format("{} must be an object, got {}", where, shown(item)));
    }
    const Json type = item.value("type", Json("message"));
    if (type == "message") {
      message(item, where);
    } else if (type == "reasoning") {
      reasoning(item, where);
    } else if (type == "function_call") {
      function_call(item, where);
    } else if (type == "function_call_output") {
      flush();
      out_.add({{"role", "tool"},
                {"tool_call_id", item.value("call_id", Json())},
                {"content", item.value("output", Json())}},
               where);
    } else {
      out_.fail(
          fmt::format("{}.type {} is not supported; message, reasoning, function_call and "
                      "function_call_output are",
                      where, shown(type)));
    }
  }

  void flush() {
    if (!turn_.is_null()) out_.add(std::exchange(turn_, nullptr), where_);
  }

 private:
  void message(const Json& item, const std::string& where) {
    const Json role = item.value("role", Json());
    if (!item.contains("content")) return out_.fail(where + ".content is required");
    if (role != "assistant") {
      flush();
      return out_.add({{"role", role}, {"content", item["content"]}}, where);
    }
    turn_without({"content", "tool_calls"}, where);
    turn_["content"] = item["content"];
  }

  void reasoning(const Json& item, const std::string& where) {
    std::string thought;
    for (const char* name : {"content", "summary"}) {
      const Json parts = item.value(name, Json());
      if (!thought.empty() || !parts.is_array()) continue;
      for (const Json& part : parts) {
        const Json text = part.is_object() ? part.value("text", Json()) : Json();
        if (!text.is_string()) {
          return out_.fail(fmt::format("{}.{} holds {}: parts with text are expected", where, name,
                                       shown(part)));
        }
        thought += text.get<std::string>();
      }
    }
    turn_without({"content", "tool_calls"}, where);
    turn_["reasoning"] = turn_.value("reasoning", "") + thought;
  }

  void function_call(const Json& item, const std::string& where) {
    turn_without({}, where);
    turn_["tool_calls"].push_back(
        {{"id", item.value("call_id", Json())},
         {"type", "function"},
         {"function",
          {{"name", item.value("name", Json())}, {"arguments", item.value("arguments", Json())}}}});
  }

  // The assistant's message under way, or a new one where it has one of these fields already.
  void turn_without(std::initializer_list<const char*> names, const std::string& where) {
    if (std::any_of(names.begin(), names.end(),
                    [&](const char* name) { return turn_.contains(name); })) {
      flush();
    }
    if (turn_.is_null()) {
      turn_ = {{"role", "assistant"}};
      where_ = where;
    }
  }

  Conversation& out_;
  Json turn_;
  std::string where_;  // where it began
};

// The messages without instructions: those of the previous response and the new input.
Json read_input(Fields& fields, const Json& earlier) {
  Conversation conversation("input");
  const Json* input = fields.find("input");
  if (input == nullptr || (!input->is_string() && !input->is_array()) || input->empty()) {
    fields.fail("input", fmt::format("input must be a string or a non-empty list of items, got {}",
                                     input == nullptr ? "nothing" : shown(*input)));
    return {};
  }
  if (input->is_string()) {
    conversation.add({{"role", "user"}, {"content", *input}}, "input");
  } else {
    ItemRewriter rewriter(conversation);
    for (size_t i = 0; i < input->size(); ++i) {
      rewriter.add((*input)[i], fmt::format("input[{}]", i));
    }
    rewriter.flush();
  }
  if (conversation.failure()) {
    fields.fail("input", conversation.failure()->message);
    return {};
  }
  Json messages = earlier;
  for (Json& message : conversation.take()) messages.push_back(std::move(message));
  return messages;
}

void add_tools(Fields& fields, Json& chat) {
  const Json* tools = fields.find("tools");
  if (tools != nullptr && !tools->is_array()) {
    return fields.fail("tools", "tools must be a list, got " + shown(*tools));
  }
  if (tools != nullptr && !tools->empty()) {
    chat["tools"] = Json::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      const Json& tool = (*tools)[i];
      const bool is_function = tool.is_object() && tool.value("type", Json()) == "function" &&
                               tool.value("name", Json()).is_string();
      if (!is_function) {
        return fields.fail("tools",
                           fmt::format("tools[{}] must be {{\"type\": \"function\", \"name\", "
                                       "\"description\", \"parameters\"}}: other tools are not "
                                       "supported, got {}",
                                       i, shown(tool)));
      }
      chat["tools"].push_back({{"type", "function"},
                               {"function", picked(tool, {"name", "description", "parameters"})}});
    }
  }
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  // OpenAI's clients say "auto" without tools.
  if (*choice == "auto" && !chat.contains("tools")) return;
  chat["tool_choice"] = *choice;
}

void add_text_format(Fields& fields) {
  const Json* text = fields.object("text");
  if (text == nullptr) return;
  Fields reader(*text, "text.");
  if (const Json* format = reader.object("format")) {
    const std::string type = Fields(*format).string("type").value_or("");
    if (type != "text") {
      reader.fail("format", fmt::format("text.format.type \"{}\" is not supported: this server has "
                                        "no constrained decoding yet, only \"text\"",
                                        type));
    }
  }
  if (reader.failed()) fields.fail("text.format", reader.failure().message);
}

void add_options(Fields& fields, Json& chat) {
  if (const auto tokens = fields.integer("max_output_tokens", 1, kMaxInt32)) {
    chat["max_completion_tokens"] = *tokens;
  }
  if (const Json* reasoning = fields.object("reasoning")) {
    Fields reader(*reasoning, "reasoning.");
    if (const auto effort = reader.string("effort")) chat["reasoning_effort"] = *effort;
    if (reader.failed()) fields.fail("reasoning", reader.failure().message);
  }
  if (const auto truncation = fields.string("truncation"); truncation == "auto") {
    chat["truncate_prompt_tokens"] = -1;
  } else if (truncation && truncation != "disabled") {
    fields.fail("truncation",
                "truncation must be \"auto\" or \"disabled\", got \"" + *truncation + "\"");
  }
  const std::vector<std::string> include = fields.strings("include");
  const auto top = fields.integer("top_logprobs", 0, kMaxInt32);
  if (std::find(include.begin(), include.end(), "message.output_text.logprobs") != include.end()) {
    chat["logprobs"] = true;
    chat["top_logprobs"] = top.value_or(0);
  }
  if (fields.boolean("background").value_or(false)) {
    fields.fail("background", "background is not supported by this server");
  }
  for (const char* name : {"conversation", "prompt"}) {
    if (fields.find(name) != nullptr) {
      fields.fail(name, fmt::format("{} is not supported by this server", name));
    }
  }
  add_text_format(fields);
}

Json repeated(const Json& body, const ChatGeneration& generation, bool store) {
  const engine::GenerateRequest& request = generation.prompts.front();
  Json said = {{"instructions", nullptr},
               {"max_output_tokens", nullptr},
               {"max_tool_calls", nullptr},
               {"metadata", Json::object()},
               {"parallel_tool_calls", generation.parallel_tool_calls},
               {"previous_response_id", nullptr},
               {"prompt", nullptr},
               {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
               {"service_tier", "auto"},
               {"temperature", request.params.temperature},
               {"text", {{"format", {{"type", "text"}}}}},
               {"tool_choice", "auto"},
               {"tools", Json::array()},
               {"top_logprobs", 0},
               {"top_p", request.params.top_p},
               {"truncation", "disabled"},
               {"user", nullptr}};
  for (auto& [name, value] : said.items()) {
    if (const auto it = body.find(name); it != body.end() && !it->is_null()) value = *it;
  }
  said["store"] = store;
  return said;
}

}  // namespace

Result<ResponseGeneration> parse_response(const Json& body, const Context& context,
                                          ResponseStore& store) {
  Fields fields(body);
  Json chat = picked(body, {"model",
                            "temperature",
                            "top_p",
                            "top_k",
                            "min_p",
                            "presence_penalty",
                            "frequency_penalty",
                            "repetition_penalty",
                            "seed",
                            "stop",
                            "stop_token_ids",
                            "ignore_eos",
                            "min_tokens",
                            "logit_bias",
                            "bad_words",
                            "allowed_token_ids",
                            "include_stop_str_in_output",
                            "skip_special_tokens",
                            "priority",
                            "cache_salt",
                            "request_id",
                            "stream",
                            "chat_template_kwargs",
                            "parallel_tool_calls"});
  Json earlier = Json::array();
  if (const auto previous = fields.string("previous_response_id")) {
    const auto found = store.find(*previous);
    if (!found) {
      return Failure{FailureKind::kNotFound,
                     fmt::format("the response \"{}\" is not here: it was not stored, or has made "
                                 "room for later ones",
                                 *previous),
                     "previous_response_id"};
    }
    earlier = Json::parse(found->messages);
  }
  ResponseGeneration generation;
  generation.store = fields.boolean("store").value_or(true);
  generation.messages = read_input(fields, earlier);
  if (fields.failed()) return fields.failure();
  chat["messages"] = generation.messages;
  if (const auto instructions = fields.string("instructions")) {
    const Json system = {{"role", "system"}, {"content", *instructions}};
    chat["messages"].insert(chat["messages"].begin(), system);
  }
  add_options(fields, chat);
  add_tools(fields, chat);
  if (fields.failed()) return fields.failure();

  auto parsed = parse_chat(chat, context);
  if (!parsed.ok()) return parsed.failure();
  static_cast<ChatGeneration&>(generation) = std::move(parsed).value();
  generation.said = repeated(body, generation, generation.store);
  return generation;
}

}  // namespace eyrie::server
