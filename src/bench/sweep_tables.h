// A sweep as text: the rows that appear while it runs, the full table, the table set beside the
// published one, and the Markdown report.
#pragma once

#include <string>
#include <vector>

#include "bench/reference.h"
#include "bench/sweep_result.h"
#include "bench/verdict.h"

namespace eyrie::bench {

using TableRows = std::vector<std::vector<std::string>>;  // the first row is the header

TableRows sweep_rows(const SweepResult& result);

// Ours, in the published table's shape: C down, configurations across, "tok/s per device
// (speedup)". With a reference, its columns follow; concurrencies of either appear.
TableRows comparison_rows(const SweepResult& result, const Reference* reference);

// One line of the live table, its columns in the places of the header line.
std::string live_header(const SweepResult& result);
std::string live_row(const SweepResult& result, const SweepPoint& point);

// What the reader must know beside the numbers: warnings of runs, each once, and unclean runs.
std::vector<std::string> sweep_warnings(const SweepResult& result);

// "bf16: 1.31× at C=4, 0.98× at C=64" for each configuration but the first.
std::vector<std::string> speedup_sentences(const SweepResult& result);

std::string sweep_markdown(const SweepResult& result, const Reference* reference,
                           const std::vector<Verdict>& verdicts);
std::string verdict_text(const std::vector<Verdict>& verdicts);

}  // namespace eyrie::bench
