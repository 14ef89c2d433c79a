// Every finished run of a sweep in one SQLite file, so that an interrupted sweep goes on where it
// stopped and an old result is never taken for a new question: the key is the whole question
// (configuration, dataset, model, concurrency, machine, program) as text. Used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

struct sqlite3;

namespace eyrie::bench {

class RunStore {
 public:
  // Creates the file and its table where they are missing. Error names the path.
  explicit RunStore(const std::string& path);
  ~RunStore();
  RunStore(const RunStore&) = delete;
  RunStore& operator=(const RunStore&) = delete;

  std::optional<std::string> find(const std::string& key) const;  // the result, as JSON
  void put(const std::string& key, const std::string& config, int64_t concurrency,
           const std::string& result_json);
  int64_t size() const;

 private:
  std::string path_;
  sqlite3* db_ = nullptr;
};

}  // namespace eyrie::bench
