// Hand-made sweeps for tests.
#pragma once

#include <string>
#include <vector>

#include "bench/sweep_result.h"

namespace eyrie::bench {

inline OrderedJson fake_result(double total_tok_s) {
  return {{"completed", 10},
          {"failed", 0},
          {"duration", 1.0},
          {"total_token_throughput", total_tok_s},
          {"output_throughput", total_tok_s / 2},
          {"p50_ttft_ms", 10.0},
          {"p99_ttft_ms", 20.0},
          {"p50_tpot_ms", 1.0},
          {"p99_tpot_ms", 2.0}};
}

// tok_s[config][concurrency]; 0 = not run. Configurations are c0, c1, … unless named.
inline SweepResult fake_sweep(const std::vector<std::vector<double>>& tok_s,
                              const std::vector<int64_t>& concurrencies,
                              std::vector<std::string> names = {}) {
  SweepResult result;
  result.title = "a <title> & more";
  result.model = "nano";
  result.machine = "a machine";
  result.version = "0";
  result.date = "today";
  result.command = "eyrie bench sweep nano";
  result.dataset = "custom";
  result.concurrencies = concurrencies;
  for (size_t i = 0; i < tok_s.size(); ++i) {
    result.configs.push_back({names.empty() ? "c" + std::to_string(i) : names[i], {}});
    for (size_t c = 0; c < concurrencies.size(); ++c) {
      if (tok_s[i][c] == 0.0) continue;
      SweepPoint point;
      point.config_idx = i;
      point.concurrency = concurrencies[c];
      point.add(fake_result(tok_s[i][c]), false);
      result.points.push_back(std::move(point));
    }
  }
  return result;
}

}  // namespace eyrie::bench
