// Where a model named on the command line lies: a folder, or an id in the local Hugging Face cache.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace eyrie::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

fs::path hub_cache() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string xdg = environment("XDG_CACHE_HOME"); !xdg.empty()) {
    return fs::path(xdg) / "huggingface" / "hub";
  }
  return fs::path(environment("HOME")) / ".cache" / "huggingface" / "hub";
}

// "org/name" or "name": what a hub id can look like. A leading dot or slash means a path.
bool looks_like_id(const std::string& model) {
  constexpr const char* kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./";
  const size_t slash = model.find('/');
  return !model.empty() && model.find_first_not_of(kAllowed) == std::string::npos &&
         model.front() != '.' && model.front() != '/' && model.back() != '/' &&
         model.find("..") == std::string::npos &&
         (slash == std::string::npos || model.find('/', slash + 1) == std::string::npos);
}

// The snapshot that refs/main names, or the only one there is.
fs::path snapshot_of(const fs::path& repository) {
  std::string commit;
  std::ifstream(repository / "refs" / "main") >> commit;
  if (!commit.empty() && commit.find('/') == std::string::npos &&
      fs::is_directory(repository / "snapshots" / commit)) {
    return repository / "snapshots" / commit;
  }
  std::vector<fs::path> snapshots;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(repository / "snapshots", ignored)) {
    if (entry.is_directory()) snapshots.push_back(entry.path());
  }
  return snapshots.size() == 1 ? snapshots[0] : fs::path();
}

}  // namespace

std::string resolve_model_path(const std::string& model) {
  if (fs::is_directory(model)) return model;
  if (fs::exists(model)) fail("model {} is a file; a checkpoint folder is expected", model);
  if (!looks_like_id(model)) fail("model folder {} does not exist", model);
  std::string folder = "models--";
  for (const char c : model) folder += c == '/' ? std::string("--") : std::string(1, c);
  const fs::path cache = hub_cache();
  const fs::path snapshot = snapshot_of(cache / folder);
  if (snapshot.empty()) {
    fail(
        "model {} is neither a folder nor in the Hugging Face cache ({}); get it with "
        "`huggingface-cli download {}` or give a local folder",
        model, cache.string(), model);
  }
  return snapshot.string();
}

}  // namespace eyrie::checkpoint
