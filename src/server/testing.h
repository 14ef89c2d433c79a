// For server tests: a blocking HTTP/1.1 client of a few lines, and a server over a tape.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "chat/template.h"
#include "engine/tape_runner.h"
#include "server/server.h"

namespace eyrie::server {

struct Response {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool complete = false;  // as long as its framing said
  chat::Json json() const { return chat::Json::parse(body); }
  std::string error() const { return json().at("error").at("message").get<std::string>(); }
};

// One connection; requests one after the other.
class Connection {
 public:
  explicit Connection(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    timeval patience{60, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool connected() const { return connected_; }
  int fd() const { return fd_; }

  void send_text(const std::string& text) {
    size_t sent = 0;
    while (sent < text.size()) {
      const ssize_t n = ::send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<size_t>(n);
    }
  }
  void send_request(const std::string& method, const std::string& path,
                    const std::string& body = "", const std::string& headers = "") {
    std::string text = method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + headers;
    if (method == "POST") {
      if (headers.find("Content-Type") == std::string::npos) {
        text += "Content-Type: application/json\r\n";
      }
      text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    }
    send_text(text + "\r\n" + body);
  }

  Response read_response() {
    Response response;
    if (!read_until("\r\n\r\n")) return response;
    const size_t end = received_.find("\r\n\r\n");
    const std::string head = received_.substr(0, end + 2);
    received_.erase(0, end + 4);
    response.status = std::stoi(head.substr(9, 3));
    for (size_t at = head.find("\r\n") + 2; at < head.size();) {
      const size_t line_end = head.find("\r\n", at);
      const size_t colon = head.find(": ", at);
      std::string name = head.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      response.headers[name] = head.substr(colon + 2, line_end - colon - 2);
      at = line_end + 2;
    }
    if (response.status == 100) {
      response.complete = true;
    } else if (response.headers.contains("content-length")) {
      const auto size = static_cast<size_t>(std::stoul(response.headers["content-length"]));
      while (received_.size() < size && read_more()) {
      }
      response.complete = received_.size() >= size;
      response.body = received_.substr(0, size);
      received_.erase(0, size);
    } else if (response.headers.contains("transfer-encoding")) {
      read_chunks(response);
    } else {
      while (read_more()) {
      }
      response.body = std::exchange(received_, {});
      response.complete = true;
    }
    return response;
  }

  // True once the server has closed its side.
  bool closed() {
    while (read_more()) {
    }
    return eof_;
  }
  bool read_until(const std::string& mark) {
    while (received_.find(mark) == std::string::npos) {
      if (!read_more()) return false;
    }
    return true;
  }

 private:
  bool read_more() {
    char bytes[65536];
    const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
    eof_ = n == 0;
    if (n <= 0) return false;
    received_.append(bytes, static_cast<size_t>(n));
    return true;
  }
  void read_chunks(Response& response) {
    while (read_until("\r\n")) {
      const size_t line = received_.find("\r\n");
      const size_t size = std::stoul(received_.substr(0, line), nullptr, 16);
      received_.erase(0, line + 2);
      while (received_.size() < size + 2 && read_more()) {
      }
      if (received_.size() < size + 2) return;
      response.body += received_.substr(0, size);
      received_.erase(0, size + 2);
      if (size == 0) {
        response.complete = true;
        return;
      }
    }
  }

  int fd_;
  bool connected_ = false;
  bool eof_ = false;
  std::string received_;
};

// The events of a stream, [DONE] checked and left out.
inline std::vector<chat::Json> events_of(const Response& response) {
  std::vector<chat::Json> events;
  EXPECT_TRUE(response.complete);
  bool done = false;
  for (size_t at = 0; at < response.body.size();) {
    const size_t end = response.body.find("\n\n", at);
    const std::string event = response.body.substr(at, end - at);
    EXPECT_EQ(event.rfind("data: ", 0), 0U) << event;
    EXPECT_FALSE(done) << "an event after [DONE]";
    if (event == "data: [DONE]") {
      done = true;
    } else {
      events.push_back(chat::Json::parse(event.substr(6)));
    }
    if (end == std::string::npos) break;
    at = end + 2;
  }
  EXPECT_TRUE(done) << response.body;
  return events;
}

// The events of a stream that names them; each name is also its JSON's type.
inline std::vector<chat::Json> named_events_of(const Response& response) {
  std::vector<chat::Json> events;
  EXPECT_TRUE(response.complete);
  for (size_t at = 0; at < response.body.size();) {
    const size_t end = response.body.find("\n\n", at);
    const std::string event = response.body.substr(at, end - at);
    const size_t data = event.find("\ndata: ");
    EXPECT_EQ(event.rfind("event: ", 0), 0U) << event;
    EXPECT_NE(data, std::string::npos) << event;
    if (data == std::string::npos || end == std::string::npos) break;
    events.push_back(chat::Json::parse(event.substr(data + 7)));
    EXPECT_EQ(events.back()["type"], event.substr(7, data - 7));
    at = end + 2;
  }
  return events;
}

inline std::vector<std::string> types_of(const std::vector<chat::Json>& events) {
  std::vector<std::string> types;
  for (const chat::Json& event : events) types.push_back(event["type"].get<std::string>());
  return types;
}

inline const Tokenizer& byte_tokenizer() {
  static const Tokenizer tokenizer = engine::make_byte_tokenizer();
  return tokenizer;
}

// Engine and server over a tape, listening on a free loopback port.
struct ServerRig {
  explicit ServerRig(engine::TapeRunner::Tape tape, int64_t num_right_drafts = 0)
      : tape_(std::move(tape)), num_right_drafts_(num_right_drafts) {
    config.served_model_names = {"nano"};
    config.model_root = "/models/nano";
    config.max_model_len = 2048;
    config.vocab_size = byte_tokenizer().vocab_size();
    config.version = "1.2.3";
    config.system_fingerprint = "eyrie-test";
    config.access_log = false;
    engine_config.scheduler = {.max_num_seqs = 16,
                               .max_num_batched_tokens = 256,
                               .max_model_len = 2048,
                               .block_size = 16,
                               .num_blocks = 512,
                               .num_speculative_tokens = num_right_drafts > 0 ? 6 : 0};
    engine_config.log_interval = std::chrono::seconds(0);
  }
  ~ServerRig() {
    server.reset();
    engine.reset();
  }

  void start() {
    auto owned = std::make_unique<engine::TapeRunner>(
        tape_, [right = num_right_drafts_](int64_t) { return right; });
    runner = owned.get();
    runner->before_step = before_step;
    engine = std::make_unique<engine::Engine>(engine_config, std::move(owned), byte_tokenizer());
    server = std::make_unique<Server>(config, Listener("127.0.0.1", 0), *engine, byte_tokenizer(),
                                      *chat_template);
    engine->start();
    server->start();
  }

  Response request(const std::string& method, const std::string& path, const std::string& body = "",
                   const std::string& headers = "") {
    Connection connection(server->port());
    connection.send_request(method, path, body, headers);
    return connection.read_response();
  }
  Response post(const std::string& path, const chat::Json& body) {
    return request("POST", path, body.dump());
  }

  ServerConfig config;
  engine::EngineConfig engine_config;
  std::function<void()> before_step;
  engine::TapeRunner* runner = nullptr;
  std::unique_ptr<chat::ChatTemplate> chat_template = chat::make_kimi_template();
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<Server> server;

 private:
  engine::TapeRunner::Tape tape_;
  int64_t num_right_drafts_;
};

}  // namespace eyrie::server
