#include "bench/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace eyrie::bench {
namespace {

constexpr double kMsPerSecond = 1000.0;

double percentile_of_sorted(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0.0;
  const double rank = q / 100.0 * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(std::floor(rank));
  const size_t high = std::min(low + 1, sorted.size() - 1);
  const double fraction = rank - static_cast<double>(low);
  return sorted[low] + (sorted[high] - sorted[low]) * fraction;
}

// The brace that closes the labels; one inside a quoted value does not count.
size_t label_end(std::string_view line) {
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (quoted && line[i] == '\\') {
      ++i;
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (!quoted && line[i] == '}') {
      return i;
    }
  }
  return line.npos;
}

// One sample line of the exposition format: name{labels} value.
struct Sample {
  std::string_view name, labels;
  double value = 0.0;
};

std::optional<Sample> parse_sample(std::string_view line) {
  Sample sample;
  const size_t name_end = line.find_first_of("{ ");
  if (line.empty() || line.front() == '#' || name_end == line.npos) return std::nullopt;
  sample.name = line.substr(0, name_end);
  line.remove_prefix(name_end);
  if (line.front() == '{') {
    const size_t close = label_end(line);
    if (close == line.npos) return std::nullopt;
    sample.labels = line.substr(1, close - 1);
    line.remove_prefix(close + 1);
  }
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const auto [end, code] = std::from_chars(line.data(), line.data() + line.size(), sample.value);
  if (code != std::errc()) return std::nullopt;
  return sample;
}

// The number in position="3"; -1 without one.
int position_of(std::string_view labels) {
  constexpr std::string_view kKey = "position=\"";
  const size_t found = labels.find(kKey);
  if (found == labels.npos) return -1;
  const std::string_view digits = labels.substr(found + kKey.size());
  int position = -1;
  std::from_chars(digits.data(), digits.data() + digits.size(), position);
  return position;
}

// Tokens and requests alive per second of the run, counted from the earliest start.
void fill_peaks(const std::vector<RequestRecord>& records, Metrics& metrics) {
  double first = 0.0, last = 0.0;
  bool any = false;
  for (const auto& record : records) {
    if (!record.ok) continue;
    const double end = record.chunks.back().at;
    first = any ? std::min(first, record.start) : record.start;
    last = any ? std::max(last, end) : end;
    any = true;
  }
  if (!any) return;
  const auto bin_of = [&](double at) { return static_cast<size_t>(std::max(0.0, at - first)); };
  std::vector<double> tokens(bin_of(last) + 1);
  std::vector<int64_t> alive(tokens.size());
  for (const auto& record : records) {
    if (!record.ok) continue;
    for (const auto& chunk : record.chunks) tokens[bin_of(chunk.at)] += chunk.tokens;
    for (size_t b = bin_of(record.start); b <= bin_of(record.chunks.back().at); ++b) ++alive[b];
  }
  metrics.max_output_tokens_per_s = *std::max_element(tokens.begin(), tokens.end());
  metrics.max_concurrent_requests = *std::max_element(alive.begin(), alive.end());
}

bool meets(const RequestRecord& record, const GoodputLimits& limits) {
  const auto within = [](const std::optional<double>& limit, double seconds) {
    return !limit || seconds * kMsPerSecond <= *limit;
  };
  return within(limits.ttft_ms, record.ttft()) && within(limits.tpot_ms, record.tpot()) &&
         within(limits.e2el_ms, record.latency());
}

}  // namespace

double percentile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return percentile_of_sorted(values, q);
}

Distribution summarize(std::vector<double> values, const std::vector<double>& percentiles) {
  Distribution result;
  for (const double q : percentiles) result.percentiles.emplace_back(q, 0.0);
  if (values.empty()) return result;
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0.0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  result.std = std::sqrt(squares / n);
  result.median = percentile_of_sorted(values, 50.0);
  for (auto& [q, value] : result.percentiles) value = percentile_of_sorted(values, q);
  return result;
}

ServerCounters parse_server_counters(std::string_view text) {
  ServerCounters counters;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const auto sample = parse_sample(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (sample && sample->name.starts_with("eyrie:")) {
      counters.draft_sizing.take(sample->name, sample->labels, sample->value);
    }
    if (!sample || !sample->name.starts_with("vllm:") || !sample->name.ends_with("_total")) {
      continue;
    }
    const std::string_view name = sample->name.substr(5, sample->name.size() - 5 - 6);
    if (name.starts_with("spec_decode")) counters.has_spec = true;
    if (name.starts_with("prefix_cache")) counters.has_prefix_cache = true;
    if (name == "spec_decode_num_drafts") counters.num_drafts += sample->value;
    if (name == "spec_decode_num_draft_tokens") counters.draft_tokens += sample->value;
    if (name == "spec_decode_num_accepted_tokens") counters.accepted_tokens += sample->value;
    if (name == "spec_decode_num_accepted_tokens_per_pos") {
      counters.accepted_per_pos[position_of(sample->labels)] += sample->value;
    }
    if (name == "prefix_cache_queries") counters.prefix_queries += sample->value;
    if (name == "prefix_cache_hits") counters.prefix_hits += sample->value;
    if (name == "num_preemptions") counters.preemptions += sample->value;
  }
  return counters;
}

std::optional<SpecStats> spec_stats(const ServerCounters& before, const ServerCounters& after) {
  const double drafts = after.num_drafts - before.num_drafts;
  const double drafted = after.draft_tokens - before.draft_tokens;
  const double accepted = after.accepted_tokens - before.accepted_tokens;
  if (!after.has_spec || drafts <= 0.0) return std::nullopt;
  SpecStats stats;
  stats.num_drafts = std::llround(drafts);
  stats.draft_tokens = std::llround(drafted);
  stats.accepted_tokens = std::llround(accepted);
  stats.acceptance_rate = drafted > 0.0 ? accepted / drafted * 100.0 : 0.0;
  stats.acceptance_length = 1.0 + accepted / drafts;
  for (const auto& [position, count] : after.accepted_per_pos) {
    if (position < 0) continue;
    const auto was = before.accepted_per_pos.find(position);
    const double moved = count - (was == before.accepted_per_pos.end() ? 0.0 : was->second);
    stats.per_position.resize(static_cast<size_t>(position) + 1);
    stats.per_position[static_cast<size_t>(position)] = moved / drafts;
  }
  return stats;
}

Metrics compute_metrics(const std::vector<RequestRecord>& records, double duration_s,
                        const std::vector<double>& percentiles, const GoodputLimits& limits) {
  Metrics metrics;
  metrics.duration_s = duration_s;
  std::vector<double> ttfts, tpots, itls, e2els;
  int64_t good = 0;
  for (const auto& record : records) {
    if (!record.ok) {
      ++metrics.failed;
      continue;
    }
    ++metrics.completed;
    metrics.total_input += record.prompt_tokens;
    metrics.total_output += record.output_tokens;
    ttfts.push_back(record.ttft() * kMsPerSecond);
    e2els.push_back(record.latency() * kMsPerSecond);
    if (record.output_tokens > 1) tpots.push_back(record.tpot() * kMsPerSecond);
    for (const double gap : record.inter_token_gaps()) itls.push_back(gap * kMsPerSecond);
    if (meets(record, limits)) ++good;
  }
  const auto per_second = [&](int64_t count) {
    return duration_s > 0.0 ? static_cast<double>(count) / duration_s : 0.0;
  };
  metrics.request_throughput = per_second(metrics.completed);
  metrics.output_throughput = per_second(metrics.total_output);
  metrics.total_token_throughput = per_second(metrics.total_input + metrics.total_output);
  if (limits.any()) metrics.request_goodput = per_second(good);
  fill_peaks(records, metrics);
  metrics.ttft = summarize(std::move(ttfts), percentiles);
  metrics.tpot = summarize(std::move(tpots), percentiles);
  metrics.itl = summarize(std::move(itls), percentiles);
  metrics.e2el = summarize(std::move(e2els), percentiles);
  return metrics;
}

}  // namespace eyrie::bench
