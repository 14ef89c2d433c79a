#include "server/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>

#include "base/log.h"

namespace eyrie::server {
namespace {

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string random_id() {
  thread_local std::mt19937_64 rng(std::random_device{}());
  return fmt::format("{:016x}{:016x}", rng(), rng());
}

HttpReply json_reply(const Json& json, int status = 200) {
  return {status, json.dump(-1, ' ', false, Json::error_handler_t::replace), "application/json"};
}

// Takes as long for a wrong key as for a right one, whatever it begins with.
bool equal_in_constant_time(const std::string& given, const std::string& key) {
  size_t difference = given.size() ^ key.size();
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = key.empty() ? '\0' : key[i % key.size()];
    difference |= static_cast<unsigned char>(given[i] ^ other);
  }
  return difference == 0;
}

bool is_json(const std::string& content_type) {
  std::string media = content_type.substr(0, content_type.find(';'));
  std::erase(media, ' ');
  std::transform(media.begin(), media.end(), media.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return media == "application/json";
}

bool starts_with_any(const std::string& path, std::initializer_list<const char*> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const char* prefix) { return path.rfind(prefix, 0) == 0; });
}

// The JSON body of a POST whose content type says so.
Result<Json> json_body(const HttpRequest& request) {
  if (!is_json(request.content_type)) {
    return Failure{
        FailureKind::kInvalidArgument,
        fmt::format("the content type must be application/json, got \"{}\"", request.content_type),
        ""};
  }
  return parse_body(request.body);
}

}  // namespace

HttpReply failure_reply(const Failure& failure) {
  return json_reply(error_body(failure), http_status(failure.kind));
}

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
      {"/tokenize", "POST", &Api::tokenize, true},
      {"/detokenize", "POST", &Api::detokenize, true},
  };
  return routes;
}

std::string Api::handler_name(const std::string& path) const {
  for (const Route& route : routes()) {
    if (path == route.path) return route.counted ? path : "";
  }
  return "none";
}

Api::Outcome Api::handle(const HttpRequest& request) {
  const auto route = std::find_if(routes().begin(), routes().end(),
                                  [&](const Route& r) { return request.path == r.path; });
  if (!is_authorized(request)) return json_reply({{"error", "Unauthorized"}}, 401);
  if (route == routes().end()) return json_reply({{"detail", "Not Found"}}, 404);
  if (std::strstr(route->methods, request.method.c_str()) == nullptr) {
    return json_reply({{"detail", "Method Not Allowed"}}, 405);
  }
  return (this->*route->handler)(request);
}

bool Api::is_authorized(const HttpRequest& request) const {
  if (config_.api_keys.empty() || !starts_with_any(request.path, {"/v1", "/v2", "/inference"})) {
    return true;
  }
  constexpr std::string_view kScheme = "Bearer ";
  const bool has_scheme = request.authorization.rfind(kScheme, 0) == 0;
  const std::string given = has_scheme ? request.authorization.substr(kScheme.size()) : "";
  bool found = false;
  for (const std::string& key : config_.api_keys) found |= equal_in_constant_time(given, key);
  return found && has_scheme;
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

template <typename Parsed>
Api::Outcome Api::generate(const HttpRequest& request, Result<Parsed> parsed, const char* prefix) {
  if (!parsed.ok()) return failure_reply(parsed.failure());
  Parsed& generation = parsed.value();
  std::string id = request.request_id;
  if (id.empty()) id = generation.request_id.empty() ? random_id() : generation.request_id;
  AnswerHeader header{prefix + id, unix_seconds(), config_.system_fingerprint};
  if (config_.log_requests) {
    log::info("Received request {}: {} prompts of {} tokens, n {}, max_tokens {}, temperature {}",
              header.id, generation.prompts.size(), generation.prompts.front().prompt.size(),
              generation.n, generation.prompts.front().params.max_tokens,
              generation.prompts.front().params.temperature);
  }
  GenerationWork work;
  work.answer = make_answer(std::move(header), generation, config_, tokenizer_);
  work.requests = std::move(generation.prompts);
  work.stream = generation.stream;
  return work;
}

Api::Outcome Api::completions(const HttpRequest& request) {
  const auto body = json_body(request);
  if (!body.ok()) return failure_reply(body.failure());
  return generate(request, parse_completion(body.value(), {config_, tokenizer_, chat_template_}),
                  "cmpl-");
}

Api::Outcome Api::chat_completions(const HttpRequest& request) {
  const auto body = json_body(request);
  if (!body.ok()) return failure_reply(body.failure());
  return generate(request, parse_chat(body.value(), {config_, tokenizer_, chat_template_}),
                  "chatcmpl-");
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
    auto chat = render_chat(body.value(), {config_, tokenizer_, chat_template_}, true);
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

}  // namespace eyrie::server
