#include "bench/sweep_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "bench/draft_sizing.h"
#include "bench/shell_words.h"

namespace eyrie::bench {
namespace {

double number(const OrderedJson& object, const std::string& key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0.0;
}

LatencyMs latency(const OrderedJson& result, const std::string& metric) {
  return {number(result, "p50_" + metric + "_ms"), number(result, "p90_" + metric + "_ms"),
          number(result, "p99_" + metric + "_ms")};
}

}  // namespace

SweepConfig parse_sweep_config(const std::string& text) {
  // A name ends at the first '='; flags hold '=' signs of their own.
  const size_t equals = text.find('=');
  SweepConfig config;
  config.name = text.substr(0, equals);
  if (config.name.empty() || config.name.starts_with('-')) {
    fail("--config '{}': must be NAME or NAME=SERVER FLAGS", text);
  }
  if (equals != std::string::npos) config.args = split_shell_words(text.substr(equals + 1));
  return config;
}

RunSummary summarize_run(const OrderedJson& result) {
  RunSummary run;
  run.completed = static_cast<int64_t>(number(result, "completed"));
  run.failed = static_cast<int64_t>(number(result, "failed"));
  run.duration_s = number(result, "duration");
  run.total_tok_s = number(result, "total_token_throughput");
  run.output_tok_s = number(result, "output_throughput");
  run.ttft = latency(result, "ttft");
  run.tpot = latency(result, "tpot");
  if (result.contains("spec_decode_acceptance_length")) {
    run.acceptance_length = number(result, "spec_decode_acceptance_length");
    run.num_drafts = static_cast<int64_t>(number(result, "spec_decode_num_drafts"));
    const auto rates = result.find("spec_decode_per_position_acceptance_rates");
    if (rates != result.end()) run.per_position = rates->get<std::vector<double>>();
  }
  if (const auto own = result.find("eyrie"); own != result.end()) {
    run.warnings = own->value("warnings", run.warnings);
    run.answers = own->value("answers_fingerprint", run.answers);
    if (const auto sizing = own->find("draft_sizing"); sizing != own->end()) {
      run.draft_sizing = draft_sizing_from(*sizing);
    }
  }
  return run;
}

void SweepPoint::add(OrderedJson result, bool stored) {
  from_store = (runs.empty() || from_store) && stored;
  runs.push_back(summarize_run(result));
  results.push_back(std::move(result));
  std::vector<size_t> order(runs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return runs[a].total_tok_s < runs[b].total_tok_s; });
  median_idx = order[(order.size() - 1) / 2];
}

double SweepPoint::spread() const {
  double low = run().total_tok_s, high = low;
  for (const auto& one : runs) {
    low = std::min(low, one.total_tok_s);
    high = std::max(high, one.total_tok_s);
  }
  return run().total_tok_s > 0.0 ? (high - low) / run().total_tok_s : 0.0;
}

const SweepPoint* SweepResult::find(size_t config_idx, int64_t concurrency) const {
  for (const auto& point : points) {
    if (point.config_idx == config_idx && point.concurrency == concurrency) return &point;
  }
  return nullptr;
}

std::optional<double> SweepResult::speedup(const SweepPoint& point) const {
  const SweepPoint* base = find(0, point.concurrency);
  if (base == nullptr || base->run().total_tok_s <= 0.0) return std::nullopt;
  return point.run().total_tok_s / base->run().total_tok_s;
}

double SweepResult::per_device(const SweepPoint& point) const {
  return point.run().total_tok_s / static_cast<double>(devices);
}

std::string SweepResult::answers_sentence() const {
  if (!greedy || configs.size() < 2) return "";
  std::string differ;
  int compared = 0;
  for (const auto& point : points) {
    const SweepPoint* base = find(0, point.concurrency);
    if (point.config_idx == 0 || base == nullptr || base->run().answers.empty()) continue;
    if (point.run().failed > 0 || base->run().failed > 0) continue;
    ++compared;
    if (point.run().answers != base->run().answers) {
      differ += fmt::format("{}{} C={}", differ.empty() ? "" : ", ", configs[point.config_idx].name,
                            point.concurrency);
    }
  }
  if (compared == 0) return "";
  if (differ.empty()) {
    return fmt::format("Greedy answers are those of {}, character for character, in all {} runs.",
                       configs[0].name, compared);
  }
  return fmt::format("Greedy answers differ from those of {}: {}.", configs[0].name, differ);
}

std::vector<double> SweepResult::acceptance_per_position(size_t config_idx) const {
  std::vector<double> accepted;
  double drafts = 0.0;
  for (const auto& point : points) {
    if (point.config_idx != config_idx) continue;
    for (const auto& run : point.runs) {
      const auto weight = static_cast<double>(run.num_drafts);
      drafts += weight;
      accepted.resize(std::max(accepted.size(), run.per_position.size()));
      for (size_t i = 0; i < run.per_position.size(); ++i) {
        accepted[i] += weight * run.per_position[i];
      }
    }
  }
  for (double& rate : accepted) rate = drafts > 0.0 ? rate / drafts : 0.0;
  return accepted;
}

OrderedJson sweep_json(const SweepResult& result) {
  OrderedJson out;
  out["title"] = result.title;
  out["date"] = result.date;
  out["model"] = result.model;
  out["machine"] = result.machine;
  out["version"] = result.version;
  out["command"] = result.command;
  out["dataset"] = result.dataset;
  out["devices"] = result.devices;
  out["answers"] = result.answers_sentence();
  out["common_args"] = result.common_args;
  out["configs"] = OrderedJson::array();
  for (const auto& config : result.configs) {
    out["configs"].push_back({{"name", config.name}, {"args", config.args}});
  }
  out["points"] = OrderedJson::array();
  for (const auto& point : result.points) {
    OrderedJson entry;
    entry["config"] = result.configs[point.config_idx].name;
    entry["concurrency"] = point.concurrency;
    entry["total_token_throughput"] = point.run().total_tok_s;
    entry["total_token_throughput_per_device"] = result.per_device(point);
    entry["output_throughput"] = point.run().output_tok_s;
    const auto speedup = result.speedup(point);
    entry["speedup"] = speedup ? OrderedJson(*speedup) : OrderedJson(nullptr);
    const auto& length = point.run().acceptance_length;
    entry["acceptance_length"] = length ? OrderedJson(*length) : OrderedJson(nullptr);
    entry["spread"] = point.spread();
    entry["from_store"] = point.from_store;
    entry["runs"] = point.results;
    out["points"].push_back(std::move(entry));
  }
  return out;
}

}  // namespace eyrie::bench
