#include "bench/store.h"

#include <sqlite3.h>

#include <filesystem>

#include "base/error.h"

namespace eyrie::bench {
namespace {

constexpr const char* kSchema =
    "CREATE TABLE IF NOT EXISTS runs ("
    "  key TEXT PRIMARY KEY,"
    "  config TEXT NOT NULL,"
    "  concurrency INTEGER NOT NULL,"
    "  finished_at TEXT NOT NULL DEFAULT (datetime('now')),"
    "  result TEXT NOT NULL)";

// A prepared statement for one use.
class Statement {
 public:
  Statement(sqlite3* db, const std::string& path, const char* sql) : db_(db), path_(path) {
    if (sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr) != SQLITE_OK) raise();
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void bind(int at, const std::string& text) {
    sqlite3_bind_text(statement_, at, text.c_str(), static_cast<int>(text.size()),
                      SQLITE_TRANSIENT);
  }
  void bind(int at, int64_t value) { sqlite3_bind_int64(statement_, at, value); }
  bool step() {
    const int code = sqlite3_step(statement_);
    if (code != SQLITE_ROW && code != SQLITE_DONE) raise();
    return code == SQLITE_ROW;
  }
  std::string text(int column) const {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    const int size = sqlite3_column_bytes(statement_, column);
    return {bytes, static_cast<size_t>(size)};
  }
  int64_t integer(int column) const { return sqlite3_column_int64(statement_, column); }

 private:
  [[noreturn]] void raise() const { fail("result store {}: {}", path_, sqlite3_errmsg(db_)); }

  sqlite3* db_;
  const std::string& path_;
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace

RunStore::RunStore(const std::string& path) : path_(path) {
  const auto parent = std::filesystem::path(path).parent_path();
  std::error_code ignored;  // opening says what is wrong, with the path
  if (!parent.empty()) std::filesystem::create_directories(parent, ignored);
  try {
    if (sqlite3_open(path.c_str(), &db_) != SQLITE_OK) {
      fail("result store {}: {}", path, sqlite3_errmsg(db_));
    }
    constexpr int kBusyMs = 5000;  // another sweep may be writing a row
    sqlite3_busy_timeout(db_, kBusyMs);
    Statement(db_, path_, kSchema).step();
  } catch (...) {
    sqlite3_close(db_);
    throw;
  }
}

RunStore::~RunStore() { sqlite3_close(db_); }

std::optional<std::string> RunStore::find(const std::string& key) const {
  Statement query(db_, path_, "SELECT result FROM runs WHERE key = ?");
  query.bind(1, key);
  if (!query.step()) return std::nullopt;
  return query.text(0);
}

void RunStore::put(const std::string& key, const std::string& config, int64_t concurrency,
                   const std::string& result_json) {
  Statement insert(db_, path_,
                   "INSERT OR REPLACE INTO runs (key, config, concurrency, result) "
                   "VALUES (?, ?, ?, ?)");
  insert.bind(1, key);
  insert.bind(2, config);
  insert.bind(3, concurrency);
  insert.bind(4, result_json);
  insert.step();
}

int64_t RunStore::size() const {
  Statement query(db_, path_, "SELECT count(*) FROM runs");
  query.step();
  return query.integer(0);
}

}  // namespace eyrie::bench
