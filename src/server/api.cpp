#include "server/api.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/json_http.h"

namespace eyrie::server {
namespace {

// Takes as long for a wrong key as for a right one, whatever it begins with.
bool equal_in_constant_time(const std::string& given, const std::string& key) {
  size_t difference = given.size() ^ key.size();
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = key.empty() ? '\0' : key[i % key.size()];
    difference |= static_cast<unsigned char>(given[i] ^ other);
  }
  return difference == 0;
}

constexpr const char* kMessages = "/v1/messages";

// Whether path has the form of a route, in which {…} stands for anything without a slash.
bool matches(std::string_view path, std::string_view form) {
  while (!form.empty() && !path.empty()) {
    if (form.front() == '{') {
      const size_t end = std::min(path.find('/'), path.size());
      if (end == 0) return false;
      path.remove_prefix(end);
      form.remove_prefix(form.find('}') + 1);
    } else {
      if (form.front() != path.front()) return false;
      path.remove_prefix(1);
      form.remove_prefix(1);
    }
  }
  return form.empty() && path.empty();
}

bool has_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    if (words.substr(0, end) == word) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

// "GET POST" as an Allow header lists it.
std::string allowed_methods(std::string_view methods) {
  std::string allowed;
  for (const char c : methods) allowed += c == ' ' ? std::string(", ") : std::string(1, c);
  return allowed + (has_word(methods, "GET") ? ", HEAD, OPTIONS" : ", OPTIONS");
}

bool starts_with_any(const std::string& path, std::initializer_list<const char*> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const char* prefix) { return path.rfind(prefix, 0) == 0; });
}

}  // namespace

Api::Api(const ServerConfig& config, engine::Engine& engine, const Tokenizer& tokenizer,
         const chat::ChatTemplate& chat_template)
    : config_(config),
      engine_(engine),
      tokenizer_(tokenizer),
      chat_template_(chat_template),
      created_(unix_seconds()) {
  CHECK(!config.served_model_names.empty() && config.vocab_size > 0);
}

const std::vector<Api::Route>& Api::routes() {
  static const std::vector<Route> routes = {
      {"/health", "GET", &Api::health, false},
      {"/ping", "GET POST", &Api::health, false},
      {"/version", "GET", &Api::version, false},
      {"/load", "GET", &Api::load, false},
      {"/metrics", "GET", &Api::prometheus, false},
      {"/v1/models", "GET", &Api::models, true},
      {"/v1/completions", "POST", &Api::completions, true},
      {"/v1/chat/completions", "POST", &Api::chat_completions, true},
      {"/v1/responses", "POST", &Api::responses, true},
      {"/v1/responses/{response_id}", "GET DELETE", &Api::stored_response, true},
      {"/v1/responses/{response_id}/cancel", "POST", &Api::cancel_response, true},
      {"/v1/messages", "POST", &Api::messages, true},
      {"/v1/messages/count_tokens", "POST", &Api::count_message_tokens, true},
      {"/invocations", "POST", &Api::invocations, true},
      {"/tokenize", "POST", &Api::tokenize, true},
      {"/detokenize", "POST", &Api::detokenize, true},
      {"/tokenizer_info", "GET", &Api::tokenizer_info, true},
  };
  return routes;
}

const Api::Route* Api::find_route(const std::string& path) const {
  for (const Route& route : routes()) {
    if (!matches(path, route.path)) continue;
    const bool is_off = route.handler == &Api::tokenizer_info && config_.tokenizer_info.is_null();
    return is_off ? nullptr : &route;
  }
  return nullptr;
}

std::string Api::handler_name(const std::string& path) const {
  const Route* route = find_route(path);
  if (route == nullptr) return "none";
  return route->counted ? route->path : "";
}

Api::Outcome Api::handle(const HttpRequest& request) {
  const Route* route = find_route(request.path);
  if (!is_authorized(request)) {
    if (request.path.rfind(kMessages, 0) != 0) return json_reply({{"error", "Unauthorized"}}, 401);
    return message_failure_reply({FailureKind::kUnauthorized, "invalid x-api-key", ""});
  }
  if (route == nullptr) return json_reply({{"detail", "Not Found"}}, 404);
  const std::string allowed = allowed_methods(route->methods);
  if (request.method == "OPTIONS") return HttpReply{200, "", "", {{"Allow", allowed}}};
  // A HEAD is a GET whose body is not sent.
  if (!has_word(route->methods, request.method == "HEAD" ? "GET" : request.method)) {
    HttpReply reply = json_reply({{"detail", "Method Not Allowed"}}, 405);
    reply.headers = {{"Allow", allowed}};
    return reply;
  }
  return (this->*route->handler)(request);
}

bool Api::is_authorized(const HttpRequest& request) const {
  if (request.method == "OPTIONS") return true;
  if (config_.api_keys.empty() || !starts_with_any(request.path, {"/v1", "/v2", "/inference"})) {
    return true;
  }
  constexpr std::string_view kScheme = "Bearer ";
  const bool has_scheme = request.authorization.rfind(kScheme, 0) == 0;
  const std::string bearer = has_scheme ? request.authorization.substr(kScheme.size()) : "";
  bool found = false;
  for (const std::string& key : config_.api_keys) {
    found |= equal_in_constant_time(bearer, key) && has_scheme;
    found |= equal_in_constant_time(request.api_key, key) && !request.api_key.empty();
  }
  return found;
}

Api::Outcome Api::health(const HttpRequest&) {
  return HttpReply{engine_.healthy() ? 200 : 503, "", "application/json"};
}

Api::Outcome Api::version(const HttpRequest&) { return json_reply({{"version", config_.version}}); }

Api::Outcome Api::load(const HttpRequest&) {
  const int64_t load = config_.track_server_load ? metrics_.num_generating.load() : 0;
  return json_reply({{"server_load", load}});
}

Api::Outcome Api::prometheus(const HttpRequest&) {
  return HttpReply{200, metrics_text(engine_.stats(), config_, metrics_),
                   "text/plain; version=0.0.4; charset=utf-8"};
}

Api::Outcome Api::models(const HttpRequest&) {
  Json cards = Json::array();
  for (const std::string& name : config_.served_model_names) {
    Json permission = {{"id", "modelperm-" + random_id()},
                       {"object", "model_permission"},
                       {"created", created_},
                       {"allow_create_engine", false},
                       {"allow_sampling", true},
                       {"allow_logprobs", true},
                       {"allow_search_indices", false},
                       {"allow_view", true},
                       {"allow_fine_tuning", false},
                       {"organization", "*"},
                       {"group", nullptr},
                       {"is_blocking", false}};
    cards.push_back({{"id", name},
                     {"object", "model"},
                     {"created", created_},
                     {"owned_by", "eyrie"},
                     {"root", config_.model_root},
                     {"parent", nullptr},
                     {"max_model_len", config_.max_model_len},
                     {"permission", Json::array({std::move(permission)})}});
  }
  return json_reply({{"object", "list"}, {"data", std::move(cards)}});
}

Api::Outcome Api::tokenize(const HttpRequest& request) {
  const auto body = json_body(request);
  if (!body.ok()) return failure_reply(body.failure());
  Fields fields(body.value());
  const auto model = served_model(fields, config_);
  if (!model.ok()) return failure_reply(model.failure());
  const bool wants_strings = fields.boolean("return_token_strs").value_or(false);
  const auto prompt = fields.string("prompt");
  if (fields.failed()) return failure_reply(fields.failure());

  std::vector<TokenId> tokens;
  if (prompt) {
    tokens = tokenizer_.encode(*prompt, AllowSpecial::kAll);
  } else if (fields.find("messages") != nullptr) {
    auto chat = render_chat(body.value(), context(), true);
    if (!chat.ok()) return failure_reply(chat.failure());
    tokens = std::move(chat.value().tokens);
  } else {
    return failure_reply(
        {FailureKind::kInvalidArgument, "prompt or messages is required", "prompt"});
  }
  Json strings = nullptr;
  if (wants_strings) {
    strings = Json::array();
    for (const TokenId& token : tokens) {
      strings.push_back(tokenizer_.decode(std::span(&token, 1), false));
    }
  }
  return json_reply({{"count", tokens.size()},
                     {"max_model_len", config_.max_model_len},
                     {"tokens", tokens},
                     {"token_strs", std::move(strings)}});
}

Api::Outcome Api::detokenize(const HttpRequest& request) {
  const auto body = json_body(request);
  if (!body.ok()) return failure_reply(body.failure());
  Fields fields(body.value());
  const auto model = served_model(fields, config_);
  if (!model.ok()) return failure_reply(model.failure());
  const std::vector<TokenId> tokens = fields.token_ids("tokens", config_.vocab_size);
  if (fields.find("tokens") == nullptr) fields.fail("tokens", "tokens is required");
  if (fields.failed()) return failure_reply(fields.failure());
  return json_reply({{"prompt", tokenizer_.decode(tokens, false)}});
}

Api::Outcome Api::tokenizer_info(const HttpRequest&) { return json_reply(config_.tokenizer_info); }

}  // namespace eyrie::server
