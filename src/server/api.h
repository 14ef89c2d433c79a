// What each endpoint means: from a request to a reply, or to a generation the engine has to run. No
// sockets here. Any I/O thread; the api holds no state but counters and stored responses.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "chat/template.h"
#include "engine/engine.h"
#include "server/answer.h"
#include "server/config.h"
#include "server/http_metrics.h"
#include "server/response_store.h"
#include "tokenizer/tokenizer.h"

namespace eyrie::server {

struct HttpRequest {
  std::string method;
  std::string path;  // without the query
  std::string content_type;
  std::string authorization;
  std::string api_key;     // x-api-key, Anthropic's way
  std::string request_id;  // X-Request-Id
  std::string body;
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  Headers headers = {};  // more of them
};

HttpReply failure_reply(const Failure& failure);
// The same in the shape of the answer's API.
HttpReply failure_reply(const Answer& answer, const Failure& failure);

// A request for the engine: what to submit, and what makes the answer of what comes back.
struct GenerationWork {
  std::vector<engine::GenerateRequest> requests;
  std::unique_ptr<Answer> answer;
  bool stream = false;
};

class Api {
 public:
  Api(const ServerConfig& config, engine::Engine& engine, const Tokenizer& tokenizer,
      const chat::ChatTemplate& chat_template);

  std::variant<HttpReply, GenerationWork> handle(const HttpRequest& request);

  // The name of a path in metrics: itself when there is such an endpoint; "" when it is not
  // counted.
  std::string handler_name(const std::string& path) const;
  HttpMetrics& metrics() { return metrics_; }

 private:
  using Outcome = std::variant<HttpReply, GenerationWork>;
  struct Route {
    const char* path;     // {…} is a part that varies
    const char* methods;  // "GET", "POST", "GET POST", …
    Outcome (Api::*handler)(const HttpRequest&);
    bool counted;
  };
  static const std::vector<Route>& routes();
  const Route* find_route(const std::string& path) const;  // nullptr: no such endpoint

  bool is_authorized(const HttpRequest& request) const;
  Outcome health(const HttpRequest&);
  Outcome version(const HttpRequest&);
  Outcome load(const HttpRequest&);
  Outcome prometheus(const HttpRequest&);
  Outcome models(const HttpRequest&);
  Outcome completions(const HttpRequest& request);
  Outcome chat_completions(const HttpRequest& request);
  Outcome invocations(const HttpRequest& request);
  Outcome responses(const HttpRequest& request);
  Outcome stored_response(const HttpRequest& request);
  Outcome cancel_response(const HttpRequest& request);
  Outcome messages(const HttpRequest& request);
  Outcome count_message_tokens(const HttpRequest& request);
  Outcome tokenize(const HttpRequest& request);
  Outcome detokenize(const HttpRequest& request);
  Outcome tokenizer_info(const HttpRequest&);
  template <typename Parsed>
  Outcome generate(const HttpRequest& request, Result<Parsed> parsed, const std::string& prefix);
  Context context() const { return {config_, tokenizer_, chat_template_}; }

  const ServerConfig& config_;
  engine::Engine& engine_;
  const Tokenizer& tokenizer_;
  const chat::ChatTemplate& chat_template_;
  const int64_t created_;  // unix seconds
  HttpMetrics metrics_;
  ResponseStore response_store_;
};

}  // namespace eyrie::server
