#include "chat/json_text.h"
#include "chat/template.h"

namespace eyrie::chat {
namespace {

Failure bad_field(const std::string& field, const Json& value, const std::string& accepted) {
  return {FailureKind::kInvalidArgument,
          fmt::format("{} must be {}, not {}", field, accepted,
                      value.dump(-1, ' ', false, Json::error_handler_t::replace)),
          field};
}

const Json* find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// Reads an optional boolean into value; a Failure for any other type.
std::optional<Failure> read_bool(const Json& object, const std::string& prefix, const char* key,
                                 std::optional<bool>& value) {
  const Json* field = find(object, key);
  if (field == nullptr) return std::nullopt;
  if (!field->is_boolean()) return bad_field(prefix + key, *field, "true or false");
  value = field->get<bool>();
  return std::nullopt;
}

// Moonshot's own field: {"type": "enabled" | "disabled", "keep": "all"} or a bare boolean.
std::optional<Failure> read_thinking_field(const Json& body, std::optional<bool>& thinking,
                                           std::optional<bool>& preserve) {
  const Json* field = find(body, "thinking");
  if (field == nullptr) return std::nullopt;
  if (field->is_boolean()) {
    thinking = field->get<bool>();
    return std::nullopt;
  }
  const Json* type = find(*field, "type");
  if (type == nullptr || (*type != "enabled" && *type != "disabled")) {
    return bad_field("thinking", *field, R"({"type": "enabled"} or {"type": "disabled"})");
  }
  thinking = *type == "enabled";
  if (const Json* keep = find(*field, "keep")) preserve = *keep == "all";
  return std::nullopt;
}

std::optional<Failure> read_effort(const Json& body, std::optional<bool>& thinking) {
  const Json* effort = find(body, "reasoning_effort");
  if (effort == nullptr) return std::nullopt;
  for (const char* known : {"none", "minimal", "low", "medium", "high", "xhigh", "max"}) {
    if (*effort == known) {
      thinking = *effort != "none";
      return std::nullopt;
    }
  }
  return bad_field("reasoning_effort", *effort, "none, minimal, low, medium, high, xhigh or max");
}

}  // namespace

Result<RenderOptions> render_options_from_json(const Json& body) {
  const Json empty = Json::object();
  const Json* given = find(body, "chat_template_kwargs");
  const Json& kwargs = given != nullptr ? *given : empty;
  if (!kwargs.is_object()) return bad_field("chat_template_kwargs", kwargs, "an object");

  const std::string prefix = "chat_template_kwargs.";
  std::optional<bool> kimi, other, native, effort, preserve, native_preserve, add, keep_open;
  for (const auto& failure :
       {read_bool(kwargs, prefix, "thinking", kimi),
        read_bool(kwargs, prefix, "enable_thinking", other),
        read_bool(kwargs, prefix, "preserve_thinking", preserve),
        read_thinking_field(body, native, native_preserve), read_effort(body, effort),
        read_bool(body, "", "add_generation_prompt", add),
        read_bool(body, "", "continue_final_message", keep_open)}) {
    if (failure) return *failure;
  }
  if (!nests_at_most(kwargs, kMaxJsonDepth)) {
    return Failure{FailureKind::kInvalidArgument,
                   fmt::format("chat_template_kwargs nests deeper than {} levels", kMaxJsonDepth),
                   "chat_template_kwargs"};
  }
  RenderOptions options;
  options.template_kwargs = kwargs;
  const auto offer = [&](const char* name, Json value) {
    if (find(kwargs, name) == nullptr) options.template_kwargs[name] = std::move(value);
  };
  for (const auto& choice : {effort, native, other, kimi}) {  // the last one given wins
    if (choice) options.thinking = *choice;
  }
  if (effort || native || other || kimi) {
    offer("thinking", options.thinking);
    offer("enable_thinking", options.thinking);
  }
  if (native_preserve) offer("preserve_thinking", *native_preserve);
  if (const Json* level = find(body, "reasoning_effort")) offer("reasoning_effort", *level);
  options.preserve_thinking = preserve.value_or(native_preserve.value_or(false));
  options.continue_final_message = keep_open.value_or(false);
  options.add_generation_prompt = add.value_or(!options.continue_final_message);
  if (options.continue_final_message && options.add_generation_prompt) {
    return Failure{FailureKind::kInvalidArgument,
                   "continue_final_message and add_generation_prompt cannot both be true",
                   "continue_final_message"};
  }
  return options;
}

}  // namespace eyrie::chat
