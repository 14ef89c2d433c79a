#include "engine/stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace eyrie::engine {
namespace {

const std::vector<double> kRequestSeconds = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                             30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kTokenSeconds = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                           .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const std::vector<double> kFirstTokenSeconds = {.001, .005, .01, .02, .04, .06, .08, .1,
                                                .25,  .5,   .75, 1,   2.5, 5,   7.5, 10,
                                                20,   40,   80,  160, 640, 2560};
const std::vector<double> kIterationTokens = {1,   8,    16,   32,   64,   128,  256,
                                              512, 1024, 2048, 4096, 8192, 16384};

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

}  // namespace

void Histogram::observe(double value, int64_t times) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)] += times;
  sum_ += value * static_cast<double>(times);
  count_ += times;
}

std::vector<double> one_two_five_buckets(int64_t max) {
  std::vector<double> bounds;
  for (int64_t decade = 1; decade <= max; decade *= 10) {
    for (const int64_t step : {1, 2, 5}) {
      if (step * decade <= max) bounds.push_back(static_cast<double>(step * decade));
    }
  }
  return bounds;
}

EngineStats::EngineStats(int32_t max_model_len, int32_t speculative_tokens)
    : num_speculative_tokens(speculative_tokens),
      accepted_per_position(static_cast<size_t>(speculative_tokens), 0),
      draft_lengths(static_cast<size_t>(speculative_tokens) + 1, 0),
      iteration_tokens(kIterationTokens),
      time_to_first_token(kFirstTokenSeconds),
      inter_token_latency(kTokenSeconds),
      time_per_output_token(kTokenSeconds),
      e2e_latency(kRequestSeconds),
      queue_time(kRequestSeconds),
      inference_time(kRequestSeconds),
      prefill_time(kRequestSeconds),
      decode_time(kRequestSeconds),
      request_prompt_tokens(one_two_five_buckets(max_model_len)),
      request_generation_tokens(one_two_five_buckets(max_model_len)),
      request_max_tokens(one_two_five_buckets(max_model_len)),
      request_prefill_tokens(one_two_five_buckets(max_model_len)),
      request_n({1, 2, 5, 10, 20}) {}

std::string stats_log_line(const EngineStats& before, const EngineStats& now, double seconds) {
  const int64_t computed = (now.prompt_tokens - now.prompt_tokens_cached) -
                           (before.prompt_tokens - before.prompt_tokens_cached);
  const int64_t generated = now.generation_tokens - before.generation_tokens;
  const int64_t preemptions = now.num_preemptions - before.num_preemptions;
  std::string line = fmt::format(
      "Engine 000: Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} "
      "tokens/s, Running: {} reqs, Waiting: {} reqs, ",
      static_cast<double>(computed) / seconds, static_cast<double>(generated) / seconds,
      now.num_running, now.num_waiting);
  if (preemptions > 0) line += fmt::format("Preemptions: {}, ", preemptions);
  const double hit_rate = share(now.prefix_cache_hits - before.prefix_cache_hits,
                                now.prefix_cache_queries - before.prefix_cache_queries);
  line += fmt::format("GPU KV cache usage: {:.1f}%, Prefix cache hit rate: {:.1f}%",
                      now.kv_usage * 100.0, hit_rate * 100.0);
  return line;
}

std::string spec_decode_log_line(const EngineStats& before, const EngineStats& now,
                                 double seconds) {
  const int64_t drafts = now.num_drafts - before.num_drafts;
  if (drafts == 0) return "";
  const int64_t drafted = now.num_draft_tokens - before.num_draft_tokens;
  const int64_t accepted = now.num_accepted_tokens - before.num_accepted_tokens;
  std::string per_position;
  for (size_t i = 0; i < now.accepted_per_position.size(); ++i) {
    const int64_t at = now.accepted_per_position[i] - before.accepted_per_position[i];
    per_position += fmt::format("{}{:.3f}", i > 0 ? ", " : "", share(at, drafts));
  }
  return fmt::format(
      "SpecDecoding metrics: Mean acceptance length: {:.2f}, Accepted throughput: {:.2f} "
      "tokens/s, Drafted throughput: {:.2f} tokens/s, Accepted: {} tokens, Drafted: {} tokens, "
      "Per-position acceptance rate: {}, Avg Draft acceptance rate: {:.1f}%",
      1.0 + share(accepted, drafts), static_cast<double>(accepted) / seconds,
      static_cast<double>(drafted) / seconds, accepted, drafted, per_position,
      share(accepted, drafted) * 100.0);
}

std::string draft_length_log_line(const EngineStats& before, const EngineStats& now) {
  if (now.num_speculative_tokens == 0) return "";
  int64_t total = 0;
  double drafts = 0;
  for (size_t k = 0; k < now.draft_lengths.size(); ++k) {
    const int64_t times = now.draft_lengths[k] - before.draft_lengths[k];
    total += times;
    drafts += static_cast<double>(times) * static_cast<double>(k);
  }
  if (total == 0) return "";
  std::string line = fmt::format("Draft lengths: mean {:.2f}", drafts / static_cast<double>(total));
  for (size_t k = 0; k < now.draft_lengths.size(); ++k) {
    const int64_t times = now.draft_lengths[k] - before.draft_lengths[k];
    if (times > 0) line += fmt::format(", {}: {:.1f}%", k, share(times, total) * 100.0);
  }
  const sched::DraftAccount& account = now.draft_account;
  const double seconds = account.seconds - before.draft_account.seconds;
  if (account.fixed_seconds.empty() || seconds <= 0) return line;
  const auto fixed_seconds = [&](size_t k) {
    const std::vector<double>& earlier = before.draft_account.fixed_seconds;
    return account.fixed_seconds[k] - (k < earlier.size() ? earlier[k] : 0);
  };
  size_t best = 0;
  for (size_t k = 1; k < account.fixed_seconds.size(); ++k) {
    if (fixed_seconds(k) < fixed_seconds(best)) best = k;
  }
  line += fmt::format(
      "; steps that only decode took {:.2f} s, by measured costs and acceptance {:.2f} s with "
      "none, {:.2f} s with {} throughout, the best fixed length",
      seconds, fixed_seconds(0), fixed_seconds(best), best);
  return line;
}

}  // namespace eyrie::engine
