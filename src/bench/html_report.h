// The sweep as one HTML file: tables, plots, verdicts. Self-contained (no scripts, fonts or files
// from elsewhere), follows the reader's light or dark setting, prints well.
#pragma once

#include <string>
#include <vector>

#include "bench/reference.h"
#include "bench/sweep_result.h"
#include "bench/verdict.h"

namespace eyrie::bench {

std::string sweep_html(const SweepResult& result, const Reference* reference,
                       const std::vector<Verdict>& verdicts);

}  // namespace eyrie::bench
