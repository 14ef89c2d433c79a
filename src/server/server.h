// The HTTP front end: connections in, answers and SSE streams out. A few I/O threads (one by
// default) run coroutines, one a connection; all of a connection's work is on its strand. What an
// endpoint means is in api.h; nothing here knows OpenAI's schema.
//
//   Listener listener(host, port);            // before the model loads
//   Server server(config, std::move(listener), engine, tokenizer, chat_template);
//   server.start();                           // answers from now on
//   … SIGTERM: server.stop_accepting(); engine.drain(t); server.drain(t); …
//   server.stop();
#pragma once

#include <chrono>
#include <memory>

#include "chat/template.h"
#include "engine/engine.h"
#include "server/config.h"
#include "server/listener.h"
#include "tokenizer/tokenizer.h"

namespace eyrie::server {

class Server {
 public:
  // Everything referred to outlives the server.
  Server(const ServerConfig& config, Listener listener, engine::Engine& engine,
         const Tokenizer& tokenizer, const chat::ChatTemplate& chat_template);
  ~Server();  // stop()

  void start();
  void stop_accepting();
  // Waits until no request is being answered, or the time is up. True: all are done.
  bool drain(std::chrono::milliseconds timeout);
  void stop();  // closes what is open; returns when the I/O threads have ended

  int port() const;
  int32_t num_connections() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace eyrie::server
