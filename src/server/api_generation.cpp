// Endpoints that run the model.
#include <fmt/format.h>

#include <type_traits>

#include "base/log.h"
#include "server/json_http.h"
#include "server/message_request.h"
#include "server/response_request.h"

namespace eyrie::server {
namespace {

// The {response_id} of a path under /v1/responses.
std::string response_id(const std::string& path) {
  constexpr std::string_view kRoot = "/v1/responses/";
  const std::string rest = path.substr(kRoot.size());
  return rest.substr(0, rest.find('/'));
}

Failure no_response(const std::string& id) {
  return {FailureKind::kNotFound,
          fmt::format("the response \"{}\" is not here: it was not stored, or has made room for "
                      "later ones",
                      id),
          "response_id"};
}

}  // namespace

template <typename Parsed>
Api::Outcome Api::generate(const HttpRequest& request, Result<Parsed> parsed,
                           const std::string& prefix) {
  if (!parsed.ok()) return failure_reply(parsed.failure());
  Parsed& generation = parsed.value();
  std::string id = request.request_id;
  if (id.empty()) id = generation.request_id.empty() ? random_id() : generation.request_id;
  if (id.rfind(prefix, 0) != 0) id.insert(0, prefix);
  AnswerHeader header{id, unix_seconds(), config_.system_fingerprint};
  if (config_.log_requests) {
    log::info("Received request {}: {} prompts of {} tokens, n {}, max_tokens {}, temperature {}",
              header.id, generation.prompts.size(), generation.prompts.front().prompt.size(),
              generation.n, generation.prompts.front().params.max_tokens,
              generation.prompts.front().params.temperature);
  }
  GenerationWork work;
  work.stream = generation.stream;
  if constexpr (std::is_same_v<Parsed, ResponseGeneration>) {
    work.answer = make_answer(std::move(header), generation, config_, tokenizer_, response_store_);
  } else {
    work.answer = make_answer(std::move(header), generation, config_, tokenizer_);
  }
  work.requests = std::move(generation.prompts);
  return work;
}

Api::Outcome Api::completions(const HttpRequest& request) {
  const auto body = json_body(request);
  if (!body.ok()) return failure_reply(body.failure());
  return generate(request, parse_completion(body.value(), context()), "cmpl-");
}

Api::Outcome Api::chat_completions(const HttpRequest& request) {
  const auto body = json_body(request);
  if (!body.ok()) return failure_reply(body.failure());
  return generate(request, parse_chat(body.value(), context()), "chatcmpl-");
}

// SageMaker's one address for both.
Api::Outcome Api::invocations(const HttpRequest& request) {
  const auto body = json_body(request);
  if (!body.ok()) return failure_reply(body.failure());
  return body.value().contains("messages") ? chat_completions(request) : completions(request);
}

Api::Outcome Api::responses(const HttpRequest& request) {
  const auto body = json_body(request);
  if (!body.ok()) return failure_reply(body.failure());
  return generate(request, parse_response(body.value(), context(), response_store_), "resp_");
}

Api::Outcome Api::stored_response(const HttpRequest& request) {
  const std::string id = response_id(request.path);
  if (request.method == "DELETE") {
    if (!response_store_.erase(id)) return failure_reply(no_response(id));
    return json_reply({{"id", id}, {"object", "response"}, {"deleted", true}});
  }
  const auto found = response_store_.find(id);
  if (!found) return failure_reply(no_response(id));
  return HttpReply{200, found->body, "application/json"};
}

// Only background responses can be cancelled, and there are none; a client that wants no more of an
// answer closes its connection.
Api::Outcome Api::cancel_response(const HttpRequest& request) {
  const std::string id = response_id(request.path);
  if (!response_store_.find(id)) return failure_reply(no_response(id));
  return failure_reply({FailureKind::kInvalidArgument,
                        fmt::format("the response \"{}\" is complete and cannot be cancelled", id),
                        "response_id"});
}

Api::Outcome Api::messages(const HttpRequest& request) {
  const auto body = json_body(request);
  if (!body.ok()) return message_failure_reply(body.failure());
  auto parsed = parse_message(body.value(), context());
  if (!parsed.ok()) return message_failure_reply(parsed.failure());
  return generate(request, std::move(parsed), "msg_");
}

Api::Outcome Api::count_message_tokens(const HttpRequest& request) {
  const auto body = json_body(request);
  if (!body.ok()) return message_failure_reply(body.failure());
  Fields fields(body.value());
  const auto model = served_model(fields, config_);
  if (!model.ok()) return message_failure_reply(model.failure());
  const auto chat = chat_from_message(body.value(), true);
  if (!chat.ok()) return message_failure_reply(chat.failure());
  const auto rendered = render_chat(chat.value(), context(), true);
  if (!rendered.ok()) return message_failure_reply(rendered.failure());
  return json_reply({{"input_tokens", rendered.value().tokens.size()}});
}

}  // namespace eyrie::server
