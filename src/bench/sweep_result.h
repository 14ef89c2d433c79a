// What a sweep has measured, as values the tables, verdicts and plots are made from. Throughput is
// vLLM's total token throughput (input + output tokens per second), because the published tables
// compare that; output tokens alone stand beside it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace eyrie::bench {

using OrderedJson = nlohmann::ordered_json;

struct SweepConfig {
  std::string name;
  std::vector<std::string> args;  // server flags of this configuration alone
};

// "name" or "name=server flags"
SweepConfig parse_sweep_config(const std::string& text);

struct LatencyMs {
  double p50 = 0.0, p90 = 0.0, p99 = 0.0;
};

// What an Eyrie server says about the drafts it chose (draft_sizing.h).
struct DraftSizing {
  std::vector<double> lengths;      // share of choices by length, 0 … K
  double decode_tok_s = 0.0;        // of steps that only decode
  std::vector<double> fixed_tok_s;  // the same with a fixed length, as modelled; empty: not told
  bool synthetic = false;           // acceptance was made up

  double mean_length() const;
  size_t best_length() const;
  double share_of_best() const;
};

// One run, read back from its result JSON.
struct RunSummary {
  int64_t completed = 0;
  int64_t failed = 0;
  double duration_s = 0.0;
  double total_tok_s = 0.0;
  double output_tok_s = 0.0;
  LatencyMs ttft, tpot;
  std::optional<double> acceptance_length;
  std::vector<double> per_position;
  int64_t num_drafts = 0;
  std::optional<DraftSizing> draft_sizing;
  std::vector<std::string> warnings;
  std::string answers;  // fingerprint of all answers
};
RunSummary summarize_run(const OrderedJson& result);

// A configuration at one concurrency: one or more runs of the same question.
struct SweepPoint {
  size_t config_idx = 0;
  int64_t concurrency = 0;
  std::vector<OrderedJson> results;
  bool from_store = false;

  const RunSummary& run() const { return runs.at(median_idx); }
  double spread() const;  // (max - min) / median of total_tok_s over the repeats

  void add(OrderedJson result, bool stored);

  std::vector<RunSummary> runs;
  size_t median_idx = 0;
};

struct SweepResult {
  std::string title;
  std::string model;
  std::string machine;
  std::string version;
  std::string date;
  std::string command;
  std::string dataset;  // one line
  int64_t devices = 1;
  bool greedy = false;  // temperature 0: every configuration should give the same answers
  std::vector<std::string> common_args;
  std::vector<SweepConfig> configs;  // the first is what speedups refer to
  std::vector<int64_t> concurrencies;
  std::vector<SweepPoint> points;

  const SweepPoint* find(size_t config_idx, int64_t concurrency) const;
  // Ratio of total throughput to the first configuration's at the same concurrency.
  std::optional<double> speedup(const SweepPoint& point) const;
  double per_device(const SweepPoint& point) const;
  // Under greedy decoding, whether every configuration gave the baseline's answers; a sentence, or
  // empty when nothing can be said.
  std::string answers_sentence() const;
  // Acceptance per position over all runs of a configuration, weighted by drafts; empty = no
  // drafts.
  std::vector<double> acceptance_per_position(size_t config_idx) const;
};

OrderedJson sweep_json(const SweepResult& result);

}  // namespace eyrie::bench
