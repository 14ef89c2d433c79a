#include "server/response_store.h"

namespace eyrie::server {

void ResponseStore::put(const std::string& id, StoredResponse response) {
  const std::lock_guard lock(mutex_);
  if (const auto found = by_id_.find(id); found != by_id_.end()) drop(found->second);
  entries_.push_front({id, std::move(response)});
  by_id_[id] = entries_.begin();
  num_bytes_ += entries_.front().num_bytes();
  while (!entries_.empty() && (entries_.size() > max_responses_ || num_bytes_ > max_bytes_)) {
    drop(std::prev(entries_.end()));
  }
}

std::optional<StoredResponse> ResponseStore::find(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->response;
}

bool ResponseStore::erase(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  drop(found->second);
  return true;
}

void ResponseStore::drop(std::list<Entry>::iterator entry) {
  num_bytes_ -= entry->num_bytes();
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

}  // namespace eyrie::server
