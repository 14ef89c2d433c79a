#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/mapped_file.h"
#include "bench/fingerprint.h"

namespace eyrie::bench {
namespace {

using Json = nlohmann::ordered_json;

struct MetricName {
  const char* key;      // ttft
  const char* label;    // TTFT
  const char* heading;  // Time to First Token
};
constexpr MetricName kNames[] = {
    {"ttft", "TTFT", "Time to First Token"},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)"},
    {"itl", "ITL", "Inter-token Latency"},
    {"e2el", "E2EL", "End-to-end Latency"},
};

const Distribution& distribution(const Metrics& metrics, std::string_view key) {
  if (key == "ttft") return metrics.ttft;
  if (key == "tpot") return metrics.tpot;
  return key == "itl" ? metrics.itl : metrics.e2el;
}

bool selected(const ServeOptions& options, std::string_view key) {
  return std::find(options.percentile_metrics.begin(), options.percentile_metrics.end(), key) !=
         options.percentile_metrics.end();
}

// 99 → "99", 99.9 → "99.9"
std::string percentile_word(double q) {
  return q == std::floor(q) ? fmt::format("{:.0f}", q) : fmt::format("{}", q);
}

std::string heading(const std::string& title, char fill) {
  constexpr size_t kWidth = 50;
  // Python's centring: an odd column goes to the right here, since 50 is even.
  return title.size() >= kWidth
             ? title + "\n"
             : fmt::format("{}{}{}\n", std::string((kWidth - title.size()) / 2, fill), title,
                           std::string((kWidth - title.size() + 1) / 2, fill));
}

// Values line up on the left of a column of ten; trailing blanks are kept, as scripts may expect.
std::string row(const std::string& label, int64_t value) {
  return fmt::format("{:<40} {:<10}\n", label, value);
}
std::string row(const std::string& label, double value) {
  return fmt::format("{:<40} {:<10.2f}\n", label, value);
}

std::string spec_section(const SpecStats& spec) {
  std::string out = heading("Speculative Decoding", '-');
  out += row("Acceptance rate (%):", spec.acceptance_rate);
  out += row("Acceptance length:", spec.acceptance_length);
  out += row("Drafts:", spec.num_drafts);
  out += row("Draft tokens:", spec.draft_tokens);
  out += row("Accepted tokens:", spec.accepted_tokens);
  if (!spec.per_position.empty()) {
    out += "Per-position acceptance (%):\n";
    for (size_t i = 0; i < spec.per_position.size(); ++i) {
      out += row(fmt::format("  Position {}:", i), spec.per_position[i] * 100.0);
    }
  }
  return out;
}

Json number_or_inf(double value) { return std::isinf(value) ? Json("inf") : Json(value); }

void add_spec(const SpecStats& spec, Json& out) {
  out["spec_decode_acceptance_rate"] = spec.acceptance_rate;
  out["spec_decode_acceptance_length"] = spec.acceptance_length;
  out["spec_decode_num_drafts"] = spec.num_drafts;
  out["spec_decode_draft_tokens"] = spec.draft_tokens;
  out["spec_decode_accepted_tokens"] = spec.accepted_tokens;
  out["spec_decode_per_position_acceptance_rates"] = spec.per_position;
}

void add_detail(const ServeRun& run, Json& out) {
  Json inputs = Json::array(), outputs = Json::array(), starts = Json::array(),
       ttfts = Json::array(), itls = Json::array(), texts = Json::array(), errors = Json::array();
  for (const auto& record : run.records) {
    inputs.push_back(record.prompt_tokens);
    outputs.push_back(record.ok ? record.output_tokens : 0);
    starts.push_back(record.start);
    ttfts.push_back(record.ok ? record.ttft() : 0.0);
    itls.push_back(record.ok ? record.inter_token_gaps() : std::vector<double>{});
    texts.push_back(record.text);
    errors.push_back(record.error);
  }
  out["input_lens"] = std::move(inputs);
  out["output_lens"] = std::move(outputs);
  out["start_times"] = std::move(starts);
  out["ttfts"] = std::move(ttfts);
  out["itls"] = std::move(itls);
  out["generated_texts"] = std::move(texts);
  out["errors"] = std::move(errors);
}

Json own_section(const ServeOptions& options, const ServeRun& run) {
  std::set<std::string> sources;
  for (const auto& record : run.records) {
    if (record.ok) sources.insert(token_source_name(record.token_source));
  }
  Json own;
  own["token_counts_from"] = sources;
  own["dataset"] = options.dataset.name;
  own["seed"] = options.dataset.seed;
  if (options.dataset.name == "random") {
    own["random_range_ratio_mode"] =
        options.dataset.effective_mode() == RangeMode::kVllm ? "vllm" : "inferencex";
  }
  // Same prompts, same fingerprint: same answers. Texts end in a byte that text does not hold.
  uint64_t answers = kFnvStart;
  for (const auto& record : run.records) {
    answers = fnv1a(std::string_view("\xFF", 1), fnv1a(record.text, answers));
  }
  own["answers_fingerprint"] = fmt::format("{:016x}", answers);
  own["prefix_cache_hit_rate"] = run.prefix_hit_rate;
  own["client_cpu_share"] = run.client_cpu_share;
  if (run.draft_sizing) own["draft_sizing"] = draft_sizing_json(*run.draft_sizing);
  own["notes"] = run.notes;
  own["warnings"] = run.warnings;
  return own;
}

}  // namespace

std::string python_float(double value) {
  if (std::isinf(value)) return "inf";
  return value == std::floor(value) && std::fabs(value) < 1e15 ? fmt::format("{:.1f}", value)
                                                               : fmt::format("{}", value);
}

std::string report_text(const ServeOptions& options, const ServeRun& run) {
  const Metrics& m = run.metrics;
  std::string out = heading(" Serving Benchmark Result ", '=');
  out += row("Successful requests:", m.completed);
  out += row("Failed requests:", m.failed);
  if (options.max_concurrency) out += row("Maximum request concurrency:", *options.max_concurrency);
  if (std::isfinite(options.arrivals.request_rate)) {
    out += row("Request rate configured (RPS):", options.arrivals.request_rate);
  }
  out += row("Benchmark duration (s):", m.duration_s);
  out += row("Total input tokens:", m.total_input);
  out += row("Total generated tokens:", m.total_output);
  out += row("Request throughput (req/s):", m.request_throughput);
  if (m.request_goodput) out += row("Request goodput (req/s):", *m.request_goodput);
  out += row("Output token throughput (tok/s):", m.output_throughput);
  out += row("Peak output token throughput (tok/s):", m.max_output_tokens_per_s);
  out += row("Peak concurrent requests:", static_cast<double>(m.max_concurrent_requests));
  out += row("Total token throughput (tok/s):", m.total_token_throughput);
  for (const auto& name : kNames) {
    if (!selected(options, name.key)) continue;
    const Distribution& values = distribution(m, name.key);
    out += heading(name.heading, '-');
    out += row(fmt::format("Mean {} (ms):", name.label), values.mean);
    out += row(fmt::format("Median {} (ms):", name.label), values.median);
    for (const auto& [q, value] : values.percentiles) {
      out += row(fmt::format("P{} {} (ms):", percentile_word(q), name.label), value);
    }
  }
  if (run.spec) out += spec_section(*run.spec);
  if (run.draft_sizing) {
    out += heading("Draft Lengths", '-');
    for (const auto& [label, value] : draft_sizing_rows(*run.draft_sizing)) {
      out += row(label, value);
    }
  }
  out += std::string(50, '=') + "\n";
  for (const auto& warning : run.warnings) out += "WARNING: " + warning + "\n";
  return out;
}

Json result_json(const ServeOptions& options, const ServeRun& run) {
  const Metrics& m = run.metrics;
  Json out;
  out["date"] = run.date;
  out["endpoint_type"] = options.backend;
  out["backend"] = options.backend;
  out["label"] = options.label.empty() ? Json(nullptr) : Json(options.label);
  out["model_id"] = run.model_id;
  out["tokenizer_id"] = run.tokenizer_id;
  out["num_prompts"] = run.records.size();
  for (const auto& [key, value] : options.metadata) out[key] = value;
  out["request_rate"] = number_or_inf(options.arrivals.request_rate);
  out["burstiness"] = number_or_inf(options.arrivals.burstiness);
  out["max_concurrency"] = options.max_concurrency ? Json(*options.max_concurrency) : Json(nullptr);
  if (!options.arrivals.ramp_up.empty()) {
    out["ramp_up_strategy"] = options.arrivals.ramp_up;
    out["ramp_up_start_rps"] = options.arrivals.ramp_start;
    out["ramp_up_end_rps"] = options.arrivals.ramp_end;
  }
  out["duration"] = m.duration_s;
  out["completed"] = m.completed;
  out["failed"] = m.failed;
  out["total_input_tokens"] = m.total_input;
  out["total_output_tokens"] = m.total_output;
  out["request_throughput"] = m.request_throughput;
  out["request_goodput"] = m.request_goodput ? Json(*m.request_goodput) : Json(nullptr);
  out["output_throughput"] = m.output_throughput;
  out["total_token_throughput"] = m.total_token_throughput;
  out["max_output_tokens_per_s"] = m.max_output_tokens_per_s;
  out["max_concurrent_requests"] = m.max_concurrent_requests;
  out["rtfx"] = 0.0;  // seconds of audio per second; no audio here
  if (options.save_detailed) add_detail(run, out);
  for (const auto& name : kNames) {
    if (!selected(options, name.key)) continue;
    const Distribution& values = distribution(m, name.key);
    out[fmt::format("mean_{}_ms", name.key)] = values.mean;
    out[fmt::format("median_{}_ms", name.key)] = values.median;
    out[fmt::format("std_{}_ms", name.key)] = values.std;
    for (const auto& [q, value] : values.percentiles) {
      out[fmt::format("p{}_{}_ms", percentile_word(q), name.key)] = value;
    }
  }
  if (run.spec) add_spec(*run.spec, out);
  out["eyrie"] = own_section(options, run);
  return out;
}

std::string result_file_name(const ServeOptions& options, const ServeRun& run) {
  if (!options.result_filename.empty()) return options.result_filename;
  const std::string model = std::filesystem::path(run.model_id).filename().string();
  return fmt::format(
      "{}-{}qps{}-{}-{}.json", options.label.empty() ? options.backend : options.label,
      python_float(options.arrivals.request_rate),
      options.max_concurrency ? fmt::format("-concurrency{}", *options.max_concurrency) : "", model,
      run.date);
}

std::string save_result(const ServeOptions& options, const ServeRun& run) {
  namespace fs = std::filesystem;
  fs::path path = result_file_name(options, run);
  if (!options.result_dir.empty()) path = fs::path(options.result_dir) / path;
  std::error_code code;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), code);
  if (code) fail("--result-dir {}: {}", path.parent_path().string(), code.message());
  const std::string text =
      result_json(options, run).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (!options.append_result) {
    write_file_atomically(path.string(), text + "\n");
    return path.string();
  }
  std::ofstream file(path, std::ios::app);
  file << text << "\n";
  file.flush();
  if (!file) fail("cannot append to {}", path.string());
  return path.string();
}

}  // namespace eyrie::bench
