#include "bench/reference.h"

#include <fmt/format.h>

#include <cctype>
#include <filesystem>

#include "base/error.h"
#include "base/mapped_file.h"
#include "bench/server_process.h"

namespace eyrie::bench {
namespace fs = std::filesystem;
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::vector<fs::path> reference_folders() {
  std::vector<fs::path> folders = {fs::path("data") / "references"};
  // build/release/eyrie in a checkout; bin/eyrie beside share/ when installed.
  const fs::path here = fs::path(own_executable()).parent_path();
  for (const char* up : {"../..", "..", "../share/eyrie"}) {
    folders.push_back(here / up / "data" / "references");
  }
  return folders;
}

std::string known_references() {
  std::string names;
  std::error_code ignored;
  for (const auto& folder : reference_folders()) {
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      if (entry.path().extension() != ".json") continue;
      names += (names.empty() ? "" : ", ") + entry.path().stem().string();
    }
    if (!names.empty()) break;
  }
  return names.empty() ? "none found" : names;
}

}  // namespace

const ReferenceRow* Reference::find(int64_t concurrency) const {
  for (const auto& row : rows) {
    if (row.concurrency == concurrency) return &row;
  }
  return nullptr;
}

Reference parse_reference(const std::string& text, const std::string& path) {
  try {
    const auto json = nlohmann::json::parse(text);
    Reference reference;
    reference.name = json.at("name").get<std::string>();
    reference.title = json.at("title").get<std::string>();
    reference.source_title = json.at("source").at("title").get<std::string>();
    reference.source_url = json.at("source").at("url").get<std::string>();
    reference.metric = json.at("metric").get<std::string>();
    reference.hardware = json.at("hardware").get<std::string>();
    reference.workload = json.at("workload").get<std::string>();
    reference.devices = json.at("devices").get<int64_t>();
    for (const auto& column : json.at("columns")) {
      reference.column_ids.push_back(column.at("id").get<std::string>());
      reference.column_titles.push_back(column.at("title").get<std::string>());
    }
    for (const auto& row : json.at("rows")) {
      reference.rows.push_back(
          {row.at("concurrency").get<int64_t>(), row.at("values").get<std::vector<double>>()});
      if (reference.rows.back().per_device.size() != reference.column_ids.size()) {
        fail("{}: the row of concurrency {} has {} values for {} columns", path,
             reference.rows.back().concurrency, reference.rows.back().per_device.size(),
             reference.column_ids.size());
      }
    }
    if (reference.rows.empty() || reference.column_ids.size() < 2) {
      fail("{}: needs at least one row and two columns", path);
    }
    reference.speedup_at = json.at("speedup_at").get<std::vector<int64_t>>();
    const auto& settings = json.at("settings");
    reference.environment = settings.at("environment").get<std::vector<std::string>>();
    for (const auto& flag : settings.at("flags")) {
      reference.flags.push_back(
          {flag.at("name").get<std::string>(), flag.at("aliases").get<std::vector<std::string>>(),
           flag.at("value").get<std::string>(), flag.at("unset").get<std::string>()});
    }
    return reference;
  } catch (const nlohmann::json::exception& error) {
    fail("{}: {}", path, error.what());
  }
}

Reference load_reference(const std::string& name_or_path) {
  std::error_code ignored;
  if (fs::is_regular_file(name_or_path, ignored)) {
    return parse_reference(read_text_file(name_or_path), name_or_path);
  }
  for (const auto& folder : reference_folders()) {
    const fs::path path = folder / (name_or_path + ".json");
    if (fs::is_regular_file(path, ignored)) {
      return parse_reference(read_text_file(path.string()), path.string());
    }
  }
  fail("--reference {}: no such file or published table (there are: {})", name_or_path,
       known_references());
}

std::vector<std::optional<size_t>> match_columns(const Reference& reference,
                                                 const std::vector<SweepConfig>& configs) {
  std::vector<std::optional<size_t>> columns(reference.column_ids.size());
  if (!configs.empty()) columns[0] = 0;
  for (size_t column = 1; column < columns.size(); ++column) {
    for (size_t i = 1; i < configs.size() && !columns[column]; ++i) {
      const bool named =
          lower(configs[i].name).find(lower(reference.column_ids[column])) != std::string::npos;
      if (named) columns[column] = i;
    }
  }
  return columns;
}

}  // namespace eyrie::bench
