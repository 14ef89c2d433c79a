#include "bench/load.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/check.h"
#include "bench/sse.h"

namespace eyrie::bench {
namespace {

double thread_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// One request in flight.
struct Flight {
  RequestRecord record;
  TimelineBuilder timeline;
  SseParser parser;
  std::string error_body;
  double now = 0.0;  // when the bytes being parsed came

  Flight(bool is_chat, std::function<void(Flight&)> on_event)
      : timeline(is_chat), parser([this, on_event = std::move(on_event)](std::string_view data) {
          timeline.add(parse_stream_chunk(data), now);
          on_event(*this);
        }) {}
};

class LoadRun {
 public:
  LoadRun(const LoadOptions& options, const std::vector<PreparedRequest>& requests)
      : options_(options),
        requests_(requests),
        limit_(options.max_concurrency > 0 ? options.max_concurrency
                                           : static_cast<int64_t>(requests.size())),
        loop_(static_cast<int>(std::min<int64_t>(limit_, 4096)) + 4) {
    CHECK(options.arrivals.empty() || options.arrivals.size() == requests.size());
    result_.records.resize(requests.size());
    progress_.total = static_cast<int64_t>(requests.size());
    for (const auto& request : requests) asked_total_ += static_cast<double>(request.asked_tokens);
  }

  LoadResult run() {
    const double cpu_before = thread_cpu_seconds();
    begin_ = Clock::now();
    while (progress_.done < progress_.total) {
      start_due();
      loop_.step(next_wait());
      report(false);
    }
    result_.duration_s = elapsed();
    const double cpu = thread_cpu_seconds() - cpu_before;
    result_.cpu_share = result_.duration_s > 0.0 ? cpu / result_.duration_s : 0.0;
    report(true);
    return std::move(result_);
  }

 private:
  double elapsed() const { return seconds_between(begin_, Clock::now()); }
  double arrival(size_t idx) const {
    return options_.arrivals.empty() ? 0.0 : options_.arrivals[idx];
  }
  bool has_place() const { return next_ < requests_.size() && progress_.running < limit_; }

  void start_due() {
    while (has_place() && arrival(next_) <= elapsed()) start(next_++);
  }

  double next_wait() const {
    double wait = options_.on_progress ? options_.progress_period_s : 1.0;
    if (has_place()) wait = std::min(wait, arrival(next_) - elapsed());
    return std::max(0.0, wait);
  }

  void start(size_t idx) {
    const auto& prepared = requests_[idx];
    auto flight = std::make_shared<Flight>(options_.is_chat, [this](Flight& f) { count(f); });
    flight->record.index = static_cast<int64_t>(idx);
    flight->record.prompt_tokens = prepared.prompt_len;
    flight->record.asked_tokens = prepared.asked_tokens;
    HttpRequest request;
    request.method = "POST";
    request.url = options_.url;
    request.body = prepared.body;
    request.headers = options_.headers;
    request.headers.push_back("Content-Type: application/json");
    if (!prepared.request_id.empty()) {
      request.headers.push_back("x-request-id: " + prepared.request_id);
    }
    request.insecure = options_.insecure;
    ++progress_.running;
    flight->record.start = elapsed();
    loop_.start(request,
                {.on_body =
                     [this, flight](int status, std::string_view bytes) {
                       flight->now = elapsed();
                       constexpr size_t kErrorBytes = 4096;
                       if (status == 200) {
                         flight->parser.feed(bytes);
                       } else if (flight->error_body.size() < kErrorBytes) {
                         flight->error_body += bytes;
                       }
                     },
                 .on_done = [this, flight](const HttpResult& result) { finish(*flight, result); }});
  }

  // Running totals for the progress line.
  void count(Flight& flight) {
    const int64_t tokens = flight.timeline.tokens_so_far();
    progress_.output_tokens += tokens - flight.record.output_tokens;
    flight.record.output_tokens = tokens;
  }

  void finish(Flight& flight, const HttpResult& result) {
    flight.now = elapsed();
    flight.parser.finish();
    RequestRecord& record = flight.record;
    record.end = flight.now;
    record.status = result.status;
    finished_output_ += static_cast<double>(record.output_tokens);
    finished_asked_ += static_cast<double>(record.asked_tokens);
    flight.timeline.finish(record, [this](const std::string& text) {
      return options_.count_text ? options_.count_text(text) : int64_t{0};
    });
    record.error = why_failed(flight, result);
    record.ok = record.error.empty();
    result_.refused = result_.refused || result.refused;
    --progress_.running;
    ++progress_.done;
    if (!record.ok) ++progress_.failed;
    const auto slot = static_cast<size_t>(record.index);
    result_.records[slot] = std::move(record);
    start_due();  // the freed place is taken before other news is looked at
  }

  static std::string why_failed(const Flight& flight, const HttpResult& result) {
    if (!result.error.empty()) return result.error;
    if (result.status != 200) {
      const std::string detail = error_message(flight.error_body);
      return fmt::format("HTTP {} {}{}{}", result.status, result.reason, detail.empty() ? "" : ": ",
                         detail);
    }
    if (!flight.timeline.error().empty()) return flight.timeline.error();
    if (flight.record.chunks.empty()) return "the answer held no chunk with choices";
    return "";
  }

  void report(bool last) {
    if (!options_.on_progress) return;
    const double now = elapsed();
    if (!last && now < next_report_) return;
    next_report_ = now + options_.progress_period_s;
    progress_.elapsed_s = now;
    const double running_output = static_cast<double>(progress_.output_tokens) - finished_output_;
    progress_.fraction = asked_total_ > 0.0
                             ? std::min(1.0, (finished_asked_ + running_output) / asked_total_)
                             : static_cast<double>(progress_.done) /
                                   static_cast<double>(std::max<int64_t>(1, progress_.total));
    options_.on_progress(progress_);
  }

  const LoadOptions& options_;
  const std::vector<PreparedRequest>& requests_;
  const int64_t limit_;
  HttpLoop loop_;
  LoadResult result_;
  Progress progress_;
  Clock::time_point begin_;
  size_t next_ = 0;
  double next_report_ = 0.0;
  double asked_total_ = 0.0, finished_asked_ = 0.0, finished_output_ = 0.0;
};

double ramp_rate(const ArrivalOptions& options, int64_t i, int64_t n) {
  const double progress = n > 1 ? static_cast<double>(i) / static_cast<double>(n - 1) : 0.0;
  if (options.ramp_up == "linear") {
    return options.ramp_start + (options.ramp_end - options.ramp_start) * progress;
  }
  return options.ramp_start * std::pow(options.ramp_end / options.ramp_start, progress);
}

}  // namespace

LoadResult run_load(const LoadOptions& options, const std::vector<PreparedRequest>& requests) {
  raise_open_file_limit();
  return LoadRun(options, requests).run();
}

std::vector<double> arrival_times(const ArrivalOptions& options, int64_t n, MersenneTwister& rng) {
  std::vector<double> times;
  const bool ramps = !options.ramp_up.empty();
  if (!ramps && std::isinf(options.request_rate)) return times;
  double at = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const double rate = ramps ? ramp_rate(options, i, n) : options.request_rate;
    // A ramp that starts at zero has no first interval to wait for.
    if (rate > 0.0) {
      at += std::isinf(options.burstiness)
                ? 1.0 / rate
                : rng.numpy_gamma(options.burstiness, 1.0 / (rate * options.burstiness));
    }
    times.push_back(at);
  }
  if (!ramps && at > 0.0) {
    const double stretch = static_cast<double>(n) / options.request_rate / at;
    for (double& time : times) time *= stretch;
  }
  return times;
}

}  // namespace eyrie::bench
