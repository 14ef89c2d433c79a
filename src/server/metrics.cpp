#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "server/config.h"
#include "server/http_metrics.h"

namespace eyrie::server {
namespace {

using engine::EngineStats;
using engine::Histogram;

std::string escaped(const std::string& value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string shown_bound(double bound) {
  const std::string text = fmt::format("{}", bound);
  // Python's client, and so every dashboard's query, writes 1 as 1.0.
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

// Writes one metric family after the other; labels are "name=\"value\",…" without braces.
class Writer {
 public:
  void family(const std::string& name, const char* type, const char* help) {
    text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <typename Value>
  void sample(const std::string& name, const std::string& labels, Value value) {
    if (labels.empty()) {
      text += fmt::format("{} {}\n", name, value);
    } else {
      text += fmt::format("{}{{{}}} {}\n", name, labels, value);
    }
  }
  void histogram_samples(const std::string& name, const std::string& labels,
                         const Histogram& histogram) {
    int64_t below = 0;
    const std::string comma = labels.empty() ? "" : ",";
    for (size_t i = 0; i < histogram.bounds().size(); ++i) {
      below += histogram.counts()[i];
      sample(name + "_bucket",
             fmt::format("{}{}le=\"{}\"", labels, comma, shown_bound(histogram.bounds()[i])),
             below);
    }
    sample(name + "_bucket", fmt::format("{}{}le=\"+Inf\"", labels, comma), histogram.count());
    sample(name + "_count", labels, histogram.count());
    sample(name + "_sum", labels, histogram.sum());
  }
  std::string text;
};

// Everything of the engine has the labels model_name and engine.
class EngineWriter {
 public:
  EngineWriter(Writer& writer, const std::string& model)
      : writer_(writer), labels_(fmt::format("engine=\"0\",model_name=\"{}\"", escaped(model))) {}

  template <typename Value>
  void gauge(const char* name, const char* help, Value value) {
    writer_.family(full(name), "gauge", help);
    writer_.sample(full(name), labels_, value);
  }
  template <typename Value>
  void gauge_sample(const char* name, const std::string& label, Value value) {
    writer_.sample(full(name), labels_ + "," + label, value);
  }
  void gauge_family(const char* name, const char* help) {
    writer_.family(full(name), "gauge", help);
  }
  void counter(const char* name, const char* help, int64_t value) {
    counter_family(name, help);
    counter_sample(name, "", value);
  }
  void counter_family(const char* name, const char* help) {
    writer_.family(full(name) + "_total", "counter", help);
  }
  template <typename Value>
  void counter_sample(const char* name, const std::string& label, Value value) {
    writer_.sample(full(name) + "_total", label.empty() ? labels_ : labels_ + "," + label, value);
  }
  void histogram(const char* name, const char* help, const Histogram& histogram) {
    writer_.family(full(name), "histogram", help);
    writer_.histogram_samples(full(name), labels_, histogram);
  }

 private:
  // A name is vLLM's unless it brings another prefix.
  static std::string full(const std::string& name) {
    return name.find(':') == name.npos ? "vllm:" + name : name;
  }
  Writer& writer_;
  std::string labels_;
};

// What vLLM does not have.
void write_draft_lengths(EngineWriter& out, const EngineStats& stats) {
  out.counter_family("eyrie:draft_lengths", "Sequences x steps by drafts asked for.");
  for (size_t k = 0; k < stats.draft_lengths.size(); ++k) {
    out.counter_sample("eyrie:draft_lengths", fmt::format("length=\"{}\"", k),
                       stats.draft_lengths[k]);
  }
  out.gauge("eyrie:synthetic_acceptance", "1: acceptance is made up, and so is the text.",
            stats.synthetic_acceptance ? 1 : 0);
  const sched::DraftAccount& account = stats.draft_account;
  if (account.fixed_seconds.empty()) return;
  out.counter("eyrie:decode_tokens", "Tokens of steps that only decode.", account.num_tokens);
  out.counter_family("eyrie:decode_seconds", "Seconds that these steps took.");
  out.counter_sample("eyrie:decode_seconds", "", account.seconds);
  out.counter_family("eyrie:decode_fixed_length_seconds",
                     "Seconds they would have taken with this many drafts throughout, by costs and "
                     "acceptance as measured.");
  for (size_t k = 0; k < account.fixed_seconds.size(); ++k) {
    out.counter_sample("eyrie:decode_fixed_length_seconds", fmt::format("length=\"{}\"", k),
                       account.fixed_seconds[k]);
  }
}

void write_engine(EngineWriter& out, const EngineStats& stats) {
  out.gauge("num_requests_running", "Sequences in the running batch.", stats.num_running);
  out.gauge("num_requests_waiting", "Sequences waiting to run.", stats.num_waiting);
  // Nothing is put off here for any reason but room.
  out.gauge_family("num_requests_waiting_by_reason", "Sequences waiting to run, by reason.");
  out.gauge_sample("num_requests_waiting_by_reason", "reason=\"capacity\"", stats.num_waiting);
  out.gauge_sample("num_requests_waiting_by_reason", "reason=\"deferred\"", 0);
  out.gauge_family("engine_sleep_state", "Always awake.");
  out.gauge_sample("engine_sleep_state", "sleep_state=\"awake\"", 1);
  out.gauge_sample("engine_sleep_state", "sleep_state=\"weights_offloaded\"", 0);
  out.gauge_sample("engine_sleep_state", "sleep_state=\"discard_all\"", 0);
  out.gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", stats.kv_usage);
  out.counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.",
              stats.prefix_cache_queries);
  out.counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.",
              stats.prefix_cache_hits);
  out.counter("num_preemptions", "Sequences that lost their blocks and were computed again.",
              stats.num_preemptions);
  out.counter("prompt_tokens", "Prompt tokens, cached ones included.", stats.prompt_tokens);
  out.counter("prompt_tokens_cached", "Prompt tokens found in the prefix cache.",
              stats.prompt_tokens_cached);
  out.counter_family("prompt_tokens_by_source", "Prompt tokens by where their KV came from.");
  out.counter_sample("prompt_tokens_by_source", "source=\"local_compute\"",
                     stats.prompt_tokens - stats.prompt_tokens_cached);
  out.counter_sample("prompt_tokens_by_source", "source=\"local_cache_hit\"",
                     stats.prompt_tokens_cached);
  out.counter("generation_tokens", "Tokens generated.", stats.generation_tokens);
  out.counter_family("request_success", "Finished sequences by reason.");
  for (size_t i = 0; i < engine::kFinishedReasons.size(); ++i) {
    out.counter_sample("request_success",
                       fmt::format("finished_reason=\"{}\"", engine::kFinishedReasons[i]),
                       stats.finished[i]);
  }
  if (stats.num_speculative_tokens > 0) {
    out.counter("spec_decode_num_drafts", "Sequences x steps that verified drafts.",
                stats.num_drafts);
    out.counter("spec_decode_num_draft_tokens", "Draft tokens verified.", stats.num_draft_tokens);
    out.counter("spec_decode_num_accepted_tokens", "Draft tokens that were right.",
                stats.num_accepted_tokens);
    out.counter_family("spec_decode_num_accepted_tokens_per_pos",
                       "Draft tokens that were right, by position in the draft.");
    for (size_t i = 0; i < stats.accepted_per_position.size(); ++i) {
      out.counter_sample("spec_decode_num_accepted_tokens_per_pos",
                         fmt::format("position=\"{}\"", i), stats.accepted_per_position[i]);
    }
    write_draft_lengths(out, stats);
  }
  out.histogram("iteration_tokens_total", "Tokens computed in a step.", stats.iteration_tokens);
  out.histogram("time_to_first_token_seconds", "From arrival to the first token.",
                stats.time_to_first_token);
  out.histogram("inter_token_latency_seconds", "Between two outputs of a sequence.",
                stats.inter_token_latency);
  out.histogram("request_time_per_output_token_seconds", "Decode time over tokens after the first.",
                stats.time_per_output_token);
  out.histogram("e2e_request_latency_seconds", "From arrival to the last token.",
                stats.e2e_latency);
  out.histogram("request_queue_time_seconds", "From arrival to the first step.", stats.queue_time);
  out.histogram("request_inference_time_seconds", "From the first step to the last token.",
                stats.inference_time);
  out.histogram("request_prefill_time_seconds", "From the first step to the first token.",
                stats.prefill_time);
  out.histogram("request_decode_time_seconds", "From the first token to the last.",
                stats.decode_time);
  out.histogram("request_prompt_tokens", "Prompt tokens of a sequence.",
                stats.request_prompt_tokens);
  out.histogram("request_generation_tokens", "Tokens generated for a sequence.",
                stats.request_generation_tokens);
  out.histogram("request_params_max_tokens", "max_tokens of a sequence.", stats.request_max_tokens);
  out.histogram("request_prefill_kv_computed_tokens",
                "Prompt tokens of a sequence that were not in the prefix cache.",
                stats.request_prefill_tokens);
  out.histogram("request_params_n", "n of a request.", stats.request_n);
}

void write_cache_config(Writer& out, const ServerConfig& config) {
  out.family("vllm:cache_config_info", "gauge", "The cache's configuration, as labels.");
  std::string labels = "engine=\"0\"";
  for (const auto& [name, value] : config.cache_config_labels) {
    labels += fmt::format(",{}=\"{}\"", name, escaped(value));
  }
  out.sample("vllm:cache_config_info", labels, "1.0");
}

void write_process(Writer& out) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  out.family("process_cpu_seconds_total", "counter", "User and system CPU time.");
  out.sample("process_cpu_seconds_total", "", seconds(usage.ru_utime) + seconds(usage.ru_stime));
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  int64_t resident = 0;
  if (statm >> pages >> resident) {
    out.family("process_resident_memory_bytes", "gauge", "Resident memory.");
    out.sample("process_resident_memory_bytes", "", resident * sysconf(_SC_PAGESIZE));
  }
}

}  // namespace

HttpMetrics::HttpMetrics()
    : all_durations_({.01, .025, .05, .075, .1,  .25, .5,  .75, 1,  1.5, 2,
                      2.5, 3,    3.5, 4,    4.5, 5,   7.5, 10,  30, 60}) {}

void HttpMetrics::observe(const std::string& handler, const std::string& method, int status,
                          double seconds, size_t request_bytes, size_t reply_bytes) {
  std::lock_guard lock(mutex_);
  Sizes& sizes = sizes_[handler];
  ++sizes.count;
  sizes.request_bytes += static_cast<int64_t>(request_bytes);
  sizes.reply_bytes += static_cast<int64_t>(reply_bytes);
  ++counts_[{handler, method, status / 100}];
  durations_.try_emplace({handler, method}, std::vector<double>{.1, .5, 1})
      .first->second.observe(seconds);
  all_durations_.observe(seconds);
}

std::string HttpMetrics::text() const {
  Writer out;
  std::lock_guard lock(mutex_);
  out.family("http_requests_total", "counter", "HTTP requests by handler, method and status.");
  for (const auto& [key, count] : counts_) {
    const auto& [handler, method, status] = key;
    out.sample("http_requests_total",
               fmt::format("handler=\"{}\",method=\"{}\",status=\"{}xx\"", handler, method, status),
               count);
  }
  const auto sizes = [&](const std::string& name, const char* help, int64_t Sizes::*bytes) {
    out.family(name, "summary", help);
    for (const auto& [handler, of_handler] : sizes_) {
      const std::string labels = fmt::format("handler=\"{}\"", handler);
      out.sample(name + "_count", labels, of_handler.count);
      out.sample(name + "_sum", labels, of_handler.*bytes);
    }
  };
  sizes("http_request_size_bytes", "Bytes of bodies received, by handler.", &Sizes::request_bytes);
  sizes("http_response_size_bytes", "Bytes of bodies sent whole (streams count 0), by handler.",
        &Sizes::reply_bytes);
  out.family("http_request_duration_seconds", "histogram", "Time to answer, by handler.");
  for (const auto& [key, histogram] : durations_) {
    out.histogram_samples("http_request_duration_seconds",
                          fmt::format("handler=\"{}\",method=\"{}\"", key.first, key.second),
                          histogram);
  }
  out.family("http_request_duration_highr_seconds", "histogram", "Time to answer.");
  out.histogram_samples("http_request_duration_highr_seconds", "", all_durations_);
  return out.text;
}

std::string metrics_text(const EngineStats& stats, const ServerConfig& config,
                         const HttpMetrics& http) {
  Writer out;
  if (config.engine_metrics) {
    EngineWriter engine(out, config.served_model_names.front());
    write_engine(engine, stats);
    write_cache_config(out, config);
  }
  write_process(out);
  return out.text + http.text();
}

}  // namespace eyrie::server
