#include "quantize/output_folder.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"

namespace eyrie::quantize {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJournal = ".eyrie-quantize.json";

std::string without_trailing_slash(const std::string& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() ? normal.string() : normal.parent_path().string();
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const fs::path relative =
      fs::weakly_canonical(path).lexically_relative(fs::weakly_canonical(folder));
  return !relative.empty() && *relative.begin() != "..";
}

// Weights in any container, and files that describe the old weights.
bool stays_behind(const fs::path& file) {
  constexpr std::array<std::string_view, 6> kWeights = {".safetensors", ".bin",  ".pt",
                                                        ".pth",         ".gguf", ".partial"};
  constexpr std::array<std::string_view, 4> kDescriptions = {
      "config.json", "model.safetensors.index.json", "hf_quant_config.json", "README.md"};
  const auto is = [](const auto& list, const std::string& value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  };
  const std::string name = file.filename().string();
  return name.starts_with(".") || is(kWeights, file.extension().string()) ||
         is(kDescriptions, name);
}

void copy_folder(const fs::path& from, const fs::path& to) {
  for (const auto& entry : fs::directory_iterator(from)) {
    if (stays_behind(entry.path())) continue;
    const fs::path target = to / entry.path().filename();
    if (entry.is_directory()) {
      fs::create_directory(target);
      copy_folder(entry.path(), target);
    } else if (entry.is_regular_file()) {  // follows links: hub snapshots are links into blobs
      fs::copy_file(entry.path(), target, fs::copy_options::overwrite_existing);
    }
  }
}

}  // namespace

OutputFolder::OutputFolder(const std::string& input, const std::string& output, bool overwrite,
                           const std::string& work)
    : output_(without_trailing_slash(output)), partial_(output_ + ".partial"), work_(work) {
  if (is_inside(output_, input)) fail("output folder {} lies in the input {}", output, input);
  if (is_inside(input, output_)) fail("input folder {} lies in the output {}", input, output);
  if (fs::exists(output_)) {
    if (!overwrite) fail("output folder {} exists; --overwrite replaces it", output);
    if (!fs::is_directory(output_) ||
        (!fs::is_empty(output_) && !fs::exists(output_ + "/config.json"))) {
      fail("{} is not a checkpoint folder and is not replaced", output);
    }
  }
  try {
    fs::create_directories(partial_);
    adopt_leftovers();
  } catch (const fs::filesystem_error& error) {
    fail("cannot create {}: {}", partial_, error.code().message());
  }
}

// Of what an interrupted run left, only whole shards of the same work stay.
void OutputFolder::adopt_leftovers() {
  const std::string journal = partial_ + "/" + kJournal;
  if (fs::exists(journal)) {
    const auto saved = nlohmann::json::parse(read_text_file(journal), nullptr, false);
    if (saved.is_object() && saved.value("work", "") == work_ && saved.contains("shards")) {
      for (const auto& [shard, bytes] : saved["shards"].items()) {
        const fs::path file = fs::path(partial_) / shard;
        if (fs::exists(file) && bytes == fs::file_size(file)) finished_.insert(shard);
      }
    }
  }
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(partial_)) {
    if (!finished_.contains(entry.path().filename().string())) others.push_back(entry.path());
  }
  for (const fs::path& path : others) fs::remove_all(path);
  if (!finished_.empty()) write_journal();
}

void OutputFolder::write_journal() const {
  nlohmann::json shards = nlohmann::json::object();
  for (const std::string& shard : finished_) {
    shards[shard] = fs::file_size(fs::path(partial_) / shard);
  }
  const nlohmann::json journal = {{"work", work_}, {"shards", shards}};
  write_file_atomically(partial_ + "/" + kJournal, journal.dump() + "\n");
}

void OutputFolder::shard_is_finished(const std::string& shard) {
  finished_.insert(shard);
  write_journal();
}

OutputFolder::~OutputFolder() {
  if (committed_ || !finished_.empty()) return;
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
}

void OutputFolder::copy_companions(const std::string& input) const {
  try {
    copy_folder(input, partial_);
  } catch (const fs::filesystem_error& error) {
    fail("cannot copy {}: {}", error.path1().string(), error.code().message());
  }
}

void OutputFolder::commit() {
  const std::string old = output_ + ".old";
  try {
    fs::remove(partial_ + "/" + kJournal);
    const bool replaces = fs::exists(output_);
    if (replaces) {
      fs::remove_all(old);
      fs::rename(output_, old);
    }
    fs::rename(partial_, output_);
    committed_ = true;
    if (replaces) fs::remove_all(old);
  } catch (const fs::filesystem_error& error) {
    fail("cannot put {} in place: {}", output_, error.code().message());
  }
}

}  // namespace eyrie::quantize
