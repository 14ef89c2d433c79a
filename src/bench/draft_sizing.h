// How an Eyrie server sized its drafts during a run, as its /metrics tell: which lengths it chose,
// and how fast decoding was beside what each fixed length would have given by the step costs and
// the acceptance it measured. The best of those is the optimum that a fixed length could reach;
// nothing here says that drafts pay, only how much there was to gain.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/sweep_result.h"
#include "bench/verdict.h"

namespace eyrie::bench {

// One sample line whose name begins with eyrie:, added up.
struct DraftSizingCounters {
  std::map<int, double> lengths;
  double decode_tokens = 0.0;
  double decode_seconds = 0.0;
  std::map<int, double> fixed_seconds;
  bool synthetic = false;

  void take(std::string_view name, std::string_view labels, double value);
};

// nullopt when the server does not count draft lengths, or chose none.
std::optional<DraftSizing> draft_sizing(const DraftSizingCounters& before,
                                        const DraftSizingCounters& after);

// Rows of the text report, and the same as JSON.
std::vector<std::pair<std::string, double>> draft_sizing_rows(const DraftSizing& sizing);
nlohmann::ordered_json draft_sizing_json(const DraftSizing& sizing);
std::optional<DraftSizing> draft_sizing_from(const nlohmann::ordered_json& json);

// "adaptive C=4: 2.1 drafts in the mean; decoding 812 tok/s; by measured costs and acceptance 700
// with none and 800 with 3 throughout, the best fixed length: 101 %"
std::vector<std::string> draft_sizing_sentences(const SweepResult& result);

// For every configuration that sizes its drafts, beside no draft (the first configuration, if it
// has none) and beside the same drafts at fixed lengths: ≥ 0.97 ×, within 5 %, and ≥ 90 % of the
// optimum. Empty when no configuration does.
std::vector<Verdict> judge_draft_sizing(const SweepResult& result);

}  // namespace eyrie::bench
