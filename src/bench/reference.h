// Published tables (data/references/*.json) and what can honestly be said about ours beside them.
// Speedups are compared, never tok/s: another machine and another model give other speeds, but a
// draft that pays there should pay here. Absolute figures are judged only when the user says that
// this is the same hardware.
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

enum class Outcome { kMet, kNotMet, kNotRun, kNotCompared };
const char* outcome_word(Outcome outcome);

struct Verdict {
  Outcome outcome = Outcome::kNotRun;
  std::string criterion;
  std::string detail;
};

struct VerdictOptions {
  double noise = 0.03;         // relative; two figures closer than this are called equal
  bool same_hardware = false;  // then absolute figures are judged too
};

std::vector<Verdict> judge(const Reference& reference, const SweepResult& result,
                           const VerdictOptions& options);

// What to check when a figure is low: each setting of the published run and what was in effect.
std::vector<std::string> settings_in_effect(const Reference& reference, const SweepResult& result,
                                            size_t config_idx);

}  // namespace eyrie::bench
