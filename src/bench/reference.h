// Published tables (data/references/*.json): figures, where they come from, and the settings of the
// run that gave them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/sweep_result.h"

namespace eyrie::bench {

struct ReferenceFlag {
  std::string name;
  std::vector<std::string> aliases;
  std::string value;  // "given" for a flag without value
  std::string unset;  // what holds when it is not given
};

struct ReferenceRow {
  int64_t concurrency = 0;
  std::vector<double> per_device;  // tok/s, one a column
};

struct Reference {
  std::string name, title, source_title, source_url, metric, hardware, workload;
  int64_t devices = 1;
  std::vector<std::string> column_ids;  // no-draft, bf16, fp8: the first is the baseline
  std::vector<std::string> column_titles;
  std::vector<ReferenceRow> rows;
  std::vector<int64_t> speedup_at;       // concurrencies named by the success criteria
  std::vector<std::string> environment;  // NAME=VALUE the published run had
  std::vector<ReferenceFlag> flags;

  const ReferenceRow* find(int64_t concurrency) const;
};

// A file, or NAME in data/references of the working folder or beside the executable.
Reference load_reference(const std::string& name_or_path);
Reference parse_reference(const std::string& text, const std::string& path);

// Which of our configurations stands for each column; nullopt = none. A configuration whose name
// contains the column's id ("bf16", "fp8") stands for it; the baseline is our first.
std::vector<std::optional<size_t>> match_columns(const Reference& reference,
                                                 const std::vector<SweepConfig>& configs);

}  // namespace eyrie::bench
