#include "server/generation.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/common_fields.h"

namespace eyrie::server {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
// No vocabulary has longer tokens, so a text beyond this many bytes a context token is too long
// without being encoded.
constexpr size_t kMaxBytesPerToken = 512;

Failure invalid(std::string message, std::string param) {
  return {FailureKind::kInvalidArgument, std::move(message), std::move(param)};
}

// --- lengths -------------------------------------------------------------------------------------

// truncate_prompt_tokens keeps the end of the prompt; -1 keeps what the context can hold.
void truncate_prompt(Fields& fields, const Context& context, int64_t max_tokens,
                     std::vector<TokenId>& prompt) {
  const int64_t max_len = context.config.max_model_len;
  const auto wanted = fields.integer("truncate_prompt_tokens", -1, max_len);
  if (!wanted) return;
  if (*wanted == 0) {
    fields.fail("truncate_prompt_tokens", "truncate_prompt_tokens must be -1 or at least 1, got 0");
    return;
  }
  const int64_t kept = *wanted > 0 ? *wanted : std::max<int64_t>(max_len - max_tokens, 1);
  const auto size = static_cast<int64_t>(prompt.size());
  if (size <= kept) return;
  const bool keep_start = fields.string("truncation_side").value_or("left") == "right";
  if (keep_start) {
    prompt.resize(static_cast<size_t>(kept));
  } else {
    prompt.erase(prompt.begin(), prompt.end() - kept);
  }
}

// The output length of one prompt: what was asked for, or what is left of the context.
std::optional<Failure> fit_length(const Context& context, std::optional<int64_t> asked,
                                  engine::GenerateRequest& request) {
  const int64_t max_len = context.config.max_model_len;
  const auto num_prompt = static_cast<int64_t>(request.prompt.size());
  if (num_prompt >= max_len) {
    return invalid(fmt::format("the model's maximum context length is {} tokens, and the prompt "
                               "alone has {}: shorten the prompt",
                               max_len, num_prompt),
                   "input_tokens");
  }
  if (asked && num_prompt + *asked > max_len) {
    return invalid(
        fmt::format("the model's maximum context length is {} tokens, but the prompt has {} and "
                    "{} of output are asked for, {} in all: shorten the prompt or lower "
                    "max_tokens",
                    max_len, num_prompt, *asked, num_prompt + *asked),
        "input_tokens");
  }
  int64_t max_tokens = max_len - num_prompt;
  if (asked) {
    max_tokens = *asked;
  } else if (context.config.defaults.max_tokens) {
    max_tokens = std::min<int64_t>(max_tokens, *context.config.defaults.max_tokens);
  }
  request.params.max_tokens = static_cast<int32_t>(max_tokens);
  if (request.params.min_tokens > max_tokens) {
    return invalid(fmt::format("min_tokens ({}) must not be above max_tokens ({})",
                               request.params.min_tokens, max_tokens),
                   "min_tokens");
  }
  return std::nullopt;
}

bool is_surely_too_long(const std::string& text, const Context& context) {
  return text.size() / kMaxBytesPerToken > static_cast<size_t>(context.config.max_model_len);
}

// --- completions ---------------------------------------------------------------------------------

// One prompt of the list, or the only one.
std::optional<std::vector<TokenId>> read_prompt(Fields& fields, const Context& context,
                                                const Json& prompt) {
  std::vector<TokenId> ids;
  if (prompt.is_string()) {
    const auto& text = prompt.get_ref<const std::string&>();
    if (is_surely_too_long(text, context)) {
      fields.fail("prompt", fmt::format("the prompt's {} bytes cannot fit the model's maximum "
                                        "context length of {} tokens",
                                        text.size(), context.config.max_model_len));
      return std::nullopt;
    }
    ids = context.tokenizer.encode(text, AllowSpecial::kAll);
  } else if (prompt.is_array()) {
    const Json holder = {{"prompt", prompt}};
    Fields reader(holder);
    ids = reader.token_ids("prompt", context.config.vocab_size);
    if (reader.failed()) {
      fields.fail("prompt", reader.failure().message);
      return std::nullopt;
    }
  } else {
    fields.fail("prompt", fmt::format("prompt must be a string, a list of strings, a list of "
                                      "token ids or a list of such lists, got {}",
                                      shown(prompt)));
    return std::nullopt;
  }
  if (ids.empty()) {
    fields.fail("prompt", "the prompt must not be empty");
    return std::nullopt;
  }
  return ids;
}

std::vector<std::vector<TokenId>> read_prompts(Fields& fields, const Context& context) {
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) {
    fields.fail("prompt", "prompt is required");
    return {};
  }
  const bool is_list = prompt->is_array() && !prompt->empty() &&
                       (prompt->front().is_string() || prompt->front().is_array());
  std::vector<std::vector<TokenId>> prompts;
  if (!is_list) {
    if (auto ids = read_prompt(fields, context, *prompt)) prompts.push_back(std::move(*ids));
    return prompts;
  }
  if (prompt->size() > static_cast<size_t>(context.config.max_choices)) {
    fields.fail("prompt", fmt::format("prompt holds {} prompts; one request may hold {}",
                                      prompt->size(), context.config.max_choices));
    return {};
  }
  for (const Json& one : *prompt) {
    auto ids = read_prompt(fields, context, one);
    if (!ids) return {};
    prompts.push_back(std::move(*ids));
  }
  return prompts;
}

// best_of candidates are generated, and the n likeliest of them shown.
void read_best_of(Fields& fields, const Context& context, CompletionGeneration& generation,
                  runtime::SamplingParams& params) {
  generation.num_shown = generation.n;
  const auto best_of = fields.integer("best_of", 1, context.config.max_choices);
  if (!best_of || *best_of == generation.n) return;
  if (*best_of < generation.n) {
    fields.fail("best_of",
                fmt::format("best_of ({}) must not be below n ({})", *best_of, generation.n));
  } else if (generation.stream) {
    fields.fail("best_of", "best_of above n cannot be streamed");
  } else if (params.greedy()) {
    fields.fail("best_of",
                "best_of must be n when temperature is 0: every choice would be the same");
  }
  generation.n = static_cast<int32_t>(*best_of);
  if (!params.logprobs) params.logprobs = 0;
}

std::string text_of_prompt(const Json& prompt, size_t index, const std::vector<TokenId>& ids,
                           const Tokenizer& tokenizer) {
  if (prompt.is_string()) return prompt.get<std::string>();
  if (prompt.is_array() && index < prompt.size() && prompt[index].is_string()) {
    return prompt[index].get<std::string>();
  }
  return tokenizer.decode(ids, false);
}

// --- chat ----------------------------------------------------------------------------------------

// chat_template_kwargs of the server under those of the request, beside the other fields that
// steer the template.
Json template_fields(const Json& body, const ServerConfig& config) {
  Json picked = Json::object();
  for (const char* name :
       {"thinking", "reasoning_effort", "add_generation_prompt", "continue_final_message"}) {
    if (const auto it = body.find(name); it != body.end()) picked[name] = *it;
  }
  Json kwargs = config.default_chat_template_kwargs;
  if (const auto it = body.find("chat_template_kwargs"); it != body.end() && !it->is_null()) {
    if (it->is_object()) {
      for (const auto& [key, value] : it->items()) kwargs[key] = value;
    } else {
      kwargs = *it;  // its type is refused where it is read
    }
  }
  picked["chat_template_kwargs"] = std::move(kwargs);
  return picked;
}

// The chat_template of a request, which only a server that trusts its clients renders; null if it
// brings none.
Result<std::unique_ptr<chat::ChatTemplate>> template_of_request(const Json& body,
                                                                const Context& context) {
  for (const char* name : {"chat_template", "chat_template_kwargs"}) {
    const auto field = body.find(name);
    if (field == body.end()) continue;
    const Json* source = &*field;
    if (field->is_object()) {
      const auto inside = field->find("chat_template");
      if (inside == field->end()) continue;
      source = &*inside;
    }
    if (!source->is_string()) continue;
    if (!context.config.trust_request_chat_template) {
      return invalid(
          "a request's chat_template is refused: the server was started without "
          "--trust-request-chat-template",
          name);
    }
    return context.chat_template.with_source(source->get<std::string>());
  }
  return std::unique_ptr<chat::ChatTemplate>();
}

struct ToolChoice {
  bool offered = false;  // tools are given and may be called
  bool none = false;
};

ToolChoice read_tool_choice(Fields& fields, const ServerConfig& config) {
  const bool has_tools = fields.find("tools") != nullptr;
  const Json* choice = fields.find("tool_choice");
  ToolChoice result;
  if (choice == nullptr) {
    result.offered = has_tools;
  } else if (choice->is_object() || *choice == "required") {
    if (!has_tools) {
      fields.fail("tool_choice", "tool_choice needs tools");
    } else {
      fields.fail("tool_choice",
                  fmt::format("tool_choice {} is not supported: this server has no constrained "
                              "decoding yet, only \"auto\" and \"none\"",
                              shown(*choice)));
    }
  } else if (*choice == "auto") {
    if (!has_tools) fields.fail("tool_choice", "tool_choice \"auto\" needs tools");
    result.offered = has_tools;
  } else if (*choice == "none") {
    result.none = true;
  } else {
    fields.fail("tool_choice",
                fmt::format("tool_choice must be \"none\", \"auto\", \"required\" or a function, "
                            "got {}",
                            shown(*choice)));
  }
  if (result.offered && !config.parse_tools) {
    fields.fail("tools",
                "tools need a tool-call parser: start the server with "
                "--enable-auto-tool-choice --tool-call-parser kimi_k2");
  }
  return result;
}

}  // namespace

Result<std::string> served_model(Fields& fields, const ServerConfig& config) {
  const auto& names = config.served_model_names;
  const auto asked = fields.string("model");
  if (fields.failed()) return fields.failure();
  if (!asked || asked->empty()) return names.front();
  if (std::find(names.begin(), names.end(), *asked) != names.end()) return *asked;
  return Failure{
      FailureKind::kNotFound,
      fmt::format("the model `{}` does not exist; this server has `{}`", *asked, names.front()),
      "model"};
}

Result<CompletionGeneration> parse_completion(const Json& body, const Context& context) {
  Fields fields(body);
  CompletionGeneration generation;
  auto model = served_model(fields, context.config);
  if (!model.ok()) return model.failure();
  generation.model = std::move(model).value();

  engine::GenerateRequest request;
  read_common(fields, context, generation, request);
  request.params.logprobs = read_num_logprobs(fields, "logprobs", context, 0);
  read_prompt_logprobs(fields, context, generation, request.params);
  generation.shows_logprobs = request.params.logprobs.has_value();
  read_best_of(fields, context, generation, request.params);
  if (generation.echo && generation.shows_logprobs && !request.params.prompt_logprobs) {
    request.params.prompt_logprobs = request.params.logprobs;
  }
  // Left out it is 16; null means what is left of the context.
  std::optional<int64_t> max_tokens = fields.integer("max_tokens", 0, kMaxInt32);
  if (!body.contains("max_tokens")) max_tokens = 16;
  if (max_tokens == 0) {
    if (!generation.echo) {
      fields.fail("max_tokens", "max_tokens must be at least 1 (0 only together with echo)");
    }
    generation.prompt_only = true;
    max_tokens = 1;
  }
  std::vector<std::vector<TokenId>> prompts;
  if (!fields.failed()) prompts = read_prompts(fields, context);
  if (fields.failed()) return fields.failure();
  if (static_cast<int64_t>(prompts.size()) * generation.n > context.config.max_choices) {
    return invalid(fmt::format("{} prompts with n {} are more than the {} choices one request may "
                               "ask for",
                               prompts.size(), generation.n, context.config.max_choices),
                   "n");
  }

  for (size_t i = 0; i < prompts.size(); ++i) {
    request.prompt = std::move(prompts[i]);
    request.n = generation.n;
    request.first_choice_idx = static_cast<int32_t>(i) * generation.n;
    truncate_prompt(fields, context, max_tokens.value_or(1), request.prompt);
    if (fields.failed()) return fields.failure();
    if (auto failure = fit_length(context, max_tokens, request)) return *failure;
    if (generation.echo) {
      generation.prompt_texts.push_back(
          text_of_prompt(*fields.find("prompt"), i, request.prompt, context.tokenizer));
    }
    generation.prompts.push_back(request);
  }
  return generation;
}

Result<RenderedChat> render_chat(const Json& body, const Context& context, bool with_tools) {
  const auto messages_json = body.find("messages");
  if (messages_json == body.end() || messages_json->is_null()) {
    return invalid("messages is required", "messages");
  }
  if (!messages_json->is_array() || messages_json->empty()) {
    return invalid(
        fmt::format("messages must be a non-empty list of messages, got {}", shown(*messages_json)),
        "messages");
  }
  auto own_template = template_of_request(body, context);
  if (!own_template.ok()) return own_template.failure();
  const chat::ChatTemplate& chat_template =
      own_template.value() ? *own_template.value() : context.chat_template;
  auto messages = chat::messages_from_json(*messages_json);
  if (!messages.ok()) return messages.failure();
  std::vector<chat::ToolDefinition> tools;
  if (const auto it = body.find("tools"); it != body.end() && !it->is_null()) {
    auto parsed = chat::tools_from_json(*it);
    if (!parsed.ok()) return parsed.failure();
    tools = std::move(parsed).value();
  }
  const auto options = chat::render_options_from_json(template_fields(body, context.config));
  if (!options.ok()) return options.failure();

  RenderedChat rendered;
  for (const chat::ToolDefinition& tool : tools) rendered.tool_names.push_back(tool.name());
  rendered.num_history_calls = chat::count_tool_calls(messages.value());
  if (chat_template.uses_kimi_ids()) chat::normalize_tool_call_ids(messages.value());
  if (!with_tools) tools.clear();
  const auto prompt = chat_template.render(messages.value(), tools, options.value());
  if (!prompt.ok()) return prompt.failure();
  size_t num_bytes = 0;
  for (const chat::Segment& segment : prompt.value().segments) num_bytes += segment.text.size();
  if (num_bytes / kMaxBytesPerToken > static_cast<size_t>(context.config.max_model_len)) {
    return invalid(fmt::format("the conversation's {} bytes cannot fit the model's maximum context "
                               "length of {} tokens",
                               num_bytes, context.config.max_model_len),
                   "messages");
  }
  rendered.tokens = chat::encode_prompt(context.tokenizer, prompt.value());
  rendered.ends_in_reasoning = prompt.value().ends_in_reasoning;
  if (options.value().continue_final_message) {
    rendered.last_assistant_text = messages.value().back().text();
  }
  return rendered;
}

Result<ChatGeneration> parse_chat(const Json& body, const Context& context) {
  const ServerConfig& config = context.config;
  Fields fields(body);
  ChatGeneration generation;
  auto model = served_model(fields, config);
  if (!model.ok()) return model.failure();
  generation.model = std::move(model).value();

  engine::GenerateRequest request;
  read_common(fields, context, generation, request);
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top_logprobs = read_num_logprobs(fields, "top_logprobs", context, -1);
  if (top_logprobs.value_or(0) != 0 && !logprobs) {
    fields.fail("top_logprobs", "top_logprobs needs logprobs to be true");
  }
  if (logprobs) request.params.logprobs = top_logprobs.value_or(0);
  read_prompt_logprobs(fields, context, generation, request.params);
  std::optional<int64_t> max_tokens = fields.integer("max_completion_tokens", 1, kMaxInt32);
  const auto old_max_tokens = fields.integer("max_tokens", 1, kMaxInt32);
  if (!max_tokens) max_tokens = old_max_tokens;
  const ToolChoice tool_choice = read_tool_choice(fields, config);
  generation.include_reasoning = fields.boolean("include_reasoning").value_or(true);
  generation.return_prompt_text = fields.boolean("return_prompt_text").value_or(false);
  generation.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  generation.role = config.response_role;
  if (fields.failed()) return fields.failure();

  const bool with_tools = !(tool_choice.none && config.exclude_tools_when_tool_choice_none);
  auto rendered = render_chat(body, context, with_tools);
  if (!rendered.ok()) return rendered.failure();
  RenderedChat& chat = rendered.value();
  generation.parser = {
      .reasoning = config.parse_reasoning,
      .starts_in_reasoning = chat.ends_in_reasoning,
      // Nobody parses calls of a request without tools but its client, from the text.
      .tools = tool_choice.offered                              ? chat::ToolMode::kParse
               : chat.tool_names.empty() || !config.parse_tools ? chat::ToolMode::kOff
                                                                : chat::ToolMode::kDrop,
      .skip_special = request.text.skip_special,
      .tool_names = std::move(chat.tool_names),
      .first_call_index = chat.num_history_calls,
  };
  if (generation.echo) generation.echo_text = std::move(chat.last_assistant_text);

  request.prompt = std::move(chat.tokens);
  request.n = generation.n;
  truncate_prompt(fields, context, max_tokens.value_or(1), request.prompt);
  if (fields.failed()) return fields.failure();
  if (auto failure = fit_length(context, max_tokens, request)) return *failure;
  generation.prompts.push_back(std::move(request));
  return generation;
}

}  // namespace eyrie::server
