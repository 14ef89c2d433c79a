#include "bench/warnings.h"

#include <fmt/format.h>

#include <algorithm>

namespace eyrie::bench {
namespace {

// Limits, all of taste: below them the effect is within what a repeated run varies.
constexpr double kHitRateWorthSaying = 0.01;
constexpr double kClientShareWorthSaying = 0.5;
constexpr double kShortShareWorthSaying = 0.01;

int64_t count_too_long(const Dataset& dataset, int64_t max_model_len) {
  return std::count_if(dataset.prompts.begin(), dataset.prompts.end(), [&](const auto& prompt) {
    return prompt.prompt_len + prompt.output_len > max_model_len;
  });
}

void warn_failures(const ServeRun& run, std::vector<std::string>& out) {
  if (run.metrics.failed == 0) return;
  const auto first = std::find_if(run.records.begin(), run.records.end(),
                                  [](const auto& record) { return !record.ok; });
  out.push_back(fmt::format("{} of {} requests failed and count only as failed; the first said: {}",
                            run.metrics.failed, run.records.size(), first->error));
}

void warn_short_answers(const ServeRun& run, std::vector<std::string>& out) {
  int64_t shorter = 0, asked = 0, got = 0;
  for (const auto& record : run.records) {
    if (!record.ok) continue;
    shorter += record.output_tokens < record.asked_tokens ? 1 : 0;
    asked += record.asked_tokens;
    got += record.output_tokens;
  }
  if (static_cast<double>(shorter) <=
      kShortShareWorthSaying * static_cast<double>(run.metrics.completed)) {
    return;
  }
  out.push_back(fmt::format(
      "{} of {} answers ended before the length asked for ({} of {} tokens): the work depends on "
      "what the model says; --ignore-eos fixes it",
      shorter, run.metrics.completed, got, asked));
}

void warn_token_source(const ServeRun& run, std::vector<std::string>& out) {
  const auto spread = std::count_if(run.records.begin(), run.records.end(), [](const auto& record) {
    return record.ok && record.output_tokens > 1 && record.token_source == TokenSource::kEvenShare;
  });
  if (spread == 0) return;
  out.push_back(fmt::format(
      "the server does not say how many tokens a chunk holds ({} requests): ITL is each request's "
      "average, its percentiles hide jitter",
      spread));
}

}  // namespace

std::vector<std::string> warnings_before(const ServeOptions& options, const Dataset& dataset,
                                         const ServerInfo& server) {
  std::vector<std::string> out;
  const auto n = static_cast<int64_t>(dataset.prompts.size());
  if (!server.is_listed) {
    out.push_back(fmt::format(
        "WARNING: the server lists {}, not {}: give the name it serves with --served-model-name",
        server.served_names, server.model_name));
  }
  if (server.max_model_len > 0) {
    const int64_t too_long = count_too_long(dataset, server.max_model_len);
    if (too_long > 0) {
      std::string line = fmt::format(
          "WARNING: {} of {} requests ask for more than the server's context of {} tokens and will "
          "be refused",
          too_long, n, server.max_model_len);
      if (options.dataset.name == "random" &&
          options.dataset.effective_mode() == RangeMode::kVllm &&
          options.dataset.input_range_ratio.value_or(0.0) > 0.0) {
        line += "; with --random-range-ratio-mode inferencex the ratio only shortens";
      }
      out.push_back(std::move(line));
    }
  }
  return out;
}

std::vector<std::string> warnings_after(const ServeOptions& options, const Dataset& dataset,
                                        const ServerInfo& server, const ServeRun& run,
                                        double preemptions) {
  std::vector<std::string> out;
  const auto n = static_cast<int64_t>(dataset.prompts.size());
  warn_failures(run, out);
  if (server.max_model_len > 0 && count_too_long(dataset, server.max_model_len) > 0 &&
      run.metrics.failed > 0) {
    out.push_back(fmt::format(
        "{} requests asked for more than the server's context of {} tokens: the result is of the "
        "shorter ones only",
        count_too_long(dataset, server.max_model_len), server.max_model_len));
  }
  if (run.draft_sizing && run.draft_sizing->synthetic) {
    out.push_back(
        "the server makes acceptance up (rejection_sample_method synthetic): speeds are those of "
        "such drafts, the text is nonsense");
  }
  if (options.dataset.name == "random" && run.spec) {
    out.push_back(
        fmt::format("random tokens with speculation: drafts were judged on nonsense (acceptance "
                    "length {:.2f}), "
                    "which says little about real text; --dataset-name custom measures that",
                    run.spec->acceptance_length));
  }
  if (run.prefix_hit_rate > kHitRateWorthSaying) {
    out.push_back(fmt::format(
        "{:.1f} % of prompt tokens came from the server's prefix cache (repeated prompts, warm-ups "
        "or earlier runs) and cost no prefill; --no-enable-prefix-caching at the server avoids it",
        run.prefix_hit_rate * 100.0));
  }
  if (dataset.num_repeated > 0) {
    out.push_back(
        fmt::format("{} of {} prompts repeat an earlier one of this run", dataset.num_repeated, n));
  }
  if (run.client_cpu_share > kClientShareWorthSaying) {
    out.push_back(fmt::format(
        "this client kept {:.0f} % of a core busy: it may have been the bottleneck, and arrival "
        "times are late",
        run.client_cpu_share * 100.0));
  }
  warn_short_answers(run, out);
  warn_token_source(run, out);
  if (options.max_concurrency && n < *options.max_concurrency) {
    out.push_back(
        fmt::format("{} prompts never reach --max-concurrency {}", n, *options.max_concurrency));
  }
  if (preemptions > 0.0) {
    out.push_back(fmt::format(
        "the server preempted {:.0f} times: its KV cache is too small for this load, work was done "
        "twice",
        preemptions));
  }
  return out;
}

}  // namespace eyrie::bench
