#include "apps/eyrie/latency_report.h"

#include <fmt/format.h>

#include <numeric>

#include "base/human.h"
#include "bench/metrics.h"

namespace eyrie::apps {
namespace {

constexpr double kPercentiles[] = {10, 25, 50, 75, 90, 99};
constexpr double kGiga = 1e9;

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double limit_seconds(const LatencyPoint& point, const MachineLimits& limits) {
  if (limits.bytes_per_second <= 0) return 0;
  return point.read.seconds(limits.bytes_per_second, limits.flops_per_second);
}

double target_ms(const LatencyPoint& point) {
  return 1e3 * bench::percentile(point.target_seconds, 50);
}
double draft_ms(const LatencyPoint& point) {
  return 1e3 * bench::percentile(point.draft_seconds, 50);
}
// What the runner does not account for: scheduling, updating, publishing.
double outside_ms(const LatencyPoint& point) {
  std::vector<double> outside = point.step_seconds;
  for (size_t i = 0; i < outside.size(); ++i) {
    outside[i] -= point.target_seconds[i] + point.draft_seconds[i];
  }
  return 1e3 * bench::percentile(outside, 50);
}

std::vector<std::string> step_row(const LatencyPoint& point, const MachineLimits& limits) {
  const double step = bench::percentile(point.step_seconds, 50);
  std::vector<std::string> row = {
      fmt::format("{}", point.batch_size), fmt::format("{:.3g}", point.draft_length),
      fmt::format("{:.0f}", point.context), fmt::format("{}", point.step_seconds.size())};
  if (point.step_seconds.empty()) {
    row.resize(limits.bytes_per_second > 0 ? 15 : 13, "-");
    return row;
  }
  row.push_back(fmt::format("{:.3f}", step * 1e3));
  row.push_back(fmt::format("{:.3f}", bench::percentile(point.step_seconds, 90) * 1e3));
  for (const double ms : {target_ms(point), draft_ms(point), outside_ms(point)}) {
    row.push_back(fmt::format("{:.3f}", ms));
  }
  row.push_back(fmt::format("{:.2f}", point.tokens_per_sequence));
  row.push_back(fmt::format("{:.1f}", point.output_tokens_per_second));
  row.push_back(fmt::format("{:.3f}", point.read.bytes() / kGiga));
  row.push_back(fmt::format("{:.1f}", point.read.bytes() / kGiga / step));
  if (limits.bytes_per_second > 0) {
    const double limit = limit_seconds(point, limits);
    row.push_back(fmt::format("{:.3f}", limit * 1e3));
    row.push_back(fmt::format("{:.0f} %", 100 * limit / step));
  }
  return row;
}

// Columns are the parts that some point has.
std::string read_table(const std::vector<LatencyPoint>& points) {
  const auto most = std::max_element(
      points.begin(), points.end(),
      [](const auto& a, const auto& b) { return a.read.parts.size() < b.read.parts.size(); });
  std::vector<std::vector<std::string>> rows = {{"batch", "rows", "experts"}};
  for (const auto& [name, bytes] : most->read.parts) rows[0].push_back(name);
  rows[0].push_back("total");
  for (const LatencyPoint& point : points) {
    std::vector<std::string> row = {
        fmt::format("{}", point.batch_size),
        fmt::format("{:.0f}", point.batch_size * (1 + point.draft_length)),
        fmt::format("{:.1f}", point.read.distinct)};
    for (size_t i = 0; i < most->read.parts.size(); ++i) {
      row.push_back(i < point.read.parts.size()
                        ? fmt::format("{:.3f}", point.read.parts[i].second / kGiga)
                        : "-");
    }
    row.push_back(fmt::format("{:.3f}", point.read.bytes() / kGiga));
    rows.push_back(std::move(row));
  }
  return format_table(rows);
}

nlohmann::ordered_json point_json(const LatencyPoint& point, const MachineLimits& limits) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::object();
  for (const auto& [name, bytes] : point.read.parts) parts[name] = bytes;
  nlohmann::ordered_json json = {{"batch_size", point.batch_size},
                                 {"num_drafts", point.num_drafts},
                                 {"draft_length", point.draft_length},
                                 {"avg_latency", mean(point.latencies)},
                                 {"latencies", point.latencies},
                                 {"context", point.context},
                                 {"num_steps", point.step_seconds.size()},
                                 {"tokens_per_sequence_step", point.tokens_per_sequence},
                                 {"output_tokens_per_second", point.output_tokens_per_second},
                                 {"expected_experts", point.read.distinct},
                                 {"read_bytes", parts},
                                 {"flops", point.read.flops}};
  if (point.step_seconds.empty()) return json;
  nlohmann::ordered_json step = {{"mean", mean(point.step_seconds) * 1e3}};
  for (const double q : kPercentiles) {
    step[fmt::format("p{:.0f}", q)] = bench::percentile(point.step_seconds, q) * 1e3;
  }
  json["step_ms"] = step;
  json["target_ms"] = target_ms(point);
  json["draft_ms"] = draft_ms(point);
  json["outside_ms"] = outside_ms(point);
  if (limits.bytes_per_second > 0) {
    const double limit = limit_seconds(point, limits);
    json["limit_ms"] = limit * 1e3;
    json["share_of_limit"] = limit / bench::percentile(point.step_seconds, 50);
  }
  return json;
}

}  // namespace

std::string latency_text(const LatencyPoint& point) {
  std::string text = fmt::format("Avg latency: {} seconds\n", mean(point.latencies));
  for (const double q : kPercentiles) {
    text += fmt::format("{:.0f}% percentile latency: {} seconds\n", q,
                        bench::percentile(point.latencies, q));
  }
  return text;
}

std::string step_tables(const std::vector<LatencyPoint>& points, const MachineLimits& limits) {
  std::vector<std::vector<std::string>> rows = {{"batch", "drafts", "context", "steps", "step ms",
                                                 "p90 ms", "target", "draft", "outside", "tok/step",
                                                 "out tok/s", "GB read", "GB/s"}};
  if (limits.bytes_per_second > 0) rows[0].insert(rows[0].end(), {"limit ms", "of limit"});
  for (const LatencyPoint& point : points) rows.push_back(step_row(point, limits));
  return fmt::format(
      "Decoding steps (medians; of a step's ms: target, draft and what is outside of both; "
      "tok/step "
      "of one sequence)\n{}\nRead by a step, GB (routed experts: "
      "the expected number of distinct ones)\n{}",
      format_table(rows), read_table(points));
}

nlohmann::ordered_json latency_json(const std::vector<LatencyPoint>& points,
                                    const MachineLimits& limits) {
  const LatencyPoint& first = points.front();
  nlohmann::ordered_json percentiles = nlohmann::ordered_json::object();
  for (const double q : kPercentiles) {
    percentiles[fmt::format("{:.0f}", q)] = bench::percentile(first.latencies, q);
  }
  nlohmann::ordered_json batches = nlohmann::ordered_json::array();
  for (const LatencyPoint& point : points) batches.push_back(point_json(point, limits));
  nlohmann::ordered_json eyrie = {{"batches", batches}};
  if (limits.bytes_per_second > 0) eyrie["bytes_per_second"] = limits.bytes_per_second;
  if (limits.flops_per_second > 0) eyrie["flops_per_second"] = limits.flops_per_second;
  return {{"avg_latency", mean(first.latencies)},
          {"latencies", first.latencies},
          {"percentiles", percentiles},
          {"eyrie", eyrie}};
}

}  // namespace eyrie::apps
