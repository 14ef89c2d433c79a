// Answers of /v1/responses kept for previous_response_id and GET, in memory only and bounded: the
// least recently used goes first. Text rather than JSON values, which take several times the
// memory. Any thread.
#pragma once

#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace eyrie::server {

struct StoredResponse {
  std::string body;      // what the client got, JSON
  std::string messages;  // the conversation up to and with its output, a JSON list of chat messages
};

class ResponseStore {
 public:
  static constexpr size_t kMaxResponses = 4096;
  static constexpr size_t kMaxBytes = size_t{64} << 20;

  explicit ResponseStore(size_t max_responses = kMaxResponses, size_t max_bytes = kMaxBytes)
      : max_responses_(max_responses), max_bytes_(max_bytes) {}

  void put(const std::string& id, StoredResponse response);
  std::optional<StoredResponse> find(const std::string& id);
  bool erase(const std::string& id);

 private:
  struct Entry {
    std::string id;
    StoredResponse response;
    size_t num_bytes() const { return id.size() + response.body.size() + response.messages.size(); }
  };
  void drop(std::list<Entry>::iterator entry);

  const size_t max_responses_;
  const size_t max_bytes_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_id_;
  size_t num_bytes_ = 0;
};

}  // namespace eyrie::server
