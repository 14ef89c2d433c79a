#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "runtime/row_scan.h"

namespace eyrie::runtime {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// `max` is the row's.
TokenId first_of(std::span<const float> row, float max) {
  return static_cast<TokenId>(find_at_least(row, 0, max));
}

// Sampling weights below e^-40 are nothing: no noise can lift them over the likeliest token.
constexpr double kNegligible = -40.0;

// e^x for x <= 0, as sampling weights need it: to float32's rounding.
double weight_of(double x) { return x < kNegligible ? 0.0 : std::exp(static_cast<float>(x)); }

// Exponential noise of one (seed, position): four token ids share a Philox block.
class RaceNoise {
 public:
  RaceNoise(uint64_t seed, int64_t position)
      : stream_(seed), position_(static_cast<uint64_t>(position)) {}

  // The token's score weight / e, if it is above `best`; otherwise anything not above it.
  double score(TokenId token, double weight, double best) {
    const double u = uniform(token);
    // -log u >= 1 - u: most tokens cannot win, and that is known without a logarithm.
    if (weight <= best * (1.0 - u)) return 0.0;
    return weight / -std::log(u);
  }

 private:
  double uniform(TokenId token) {
    const int64_t lane = token >> 2;
    if (lane != lane_) {
      lane_ = lane;
      block_ = stream_.block(position_, static_cast<uint64_t>(lane));
    }
    return (static_cast<double>(block_[static_cast<size_t>(token & 3)]) + 0.5) * 0x1.0p-32;
  }

  NoiseStream stream_;
  uint64_t position_;
  int64_t lane_ = -1;
  PhiloxBlock block_{};
};

void mask_bad_words(std::span<float> logits, const SamplingParams& params,
                    std::span<const TokenId> output) {
  for (const auto& word : params.bad_words) {
    if (word.empty()) continue;
    const size_t prefix = word.size() - 1;
    if (prefix > output.size() || static_cast<size_t>(word.back()) >= logits.size()) continue;
    if (std::equal(word.begin(), word.end() - 1, output.end() - static_cast<int64_t>(prefix))) {
      logits[static_cast<size_t>(word.back())] = kMasked;
    }
  }
}

}  // namespace

TokenHistory::TokenHistory(std::span<const TokenId> prompt, const SamplingParams& params,
                           int64_t vocab_size) {
  output_.reserve(static_cast<size_t>(params.max_tokens) + 64);
  thinking_budget_ = params.thinking_budget;
  if (thinking_budget_) {
    num_thinking_.reserve(output_.capacity() + 1);
    int32_t num = -1;
    for (const TokenId token : prompt) num = next_thinking(token, num);
    num_thinking_.push_back(std::min(num, 0));  // what the prompt thought is not counted
  }
  counts_ = params.has_penalties();
  if (!counts_) return;
  const auto size = static_cast<size_t>(vocab_size);
  in_prompt_.resize(size);
  listed_.resize(size);
  output_count_.resize(size);
  seen_.reserve(std::min(size, prompt.size() + static_cast<size_t>(params.max_tokens) + 64));
  for (const TokenId token : prompt) {
    const auto t = static_cast<size_t>(token);
    CHECK_LT(t, size);
    if (!listed_[t]) seen_.push_back(token);
    listed_[t] = in_prompt_[t] = true;
  }
}

int32_t TokenHistory::next_thinking(TokenId token, int32_t before) const {
  if (token == thinking_budget_->begin) return 0;
  if (token == thinking_budget_->end || token == thinking_budget_->other_end) return -1;
  return before < 0 ? before : before + 1;
}

void TokenHistory::push(TokenId token) {
  output_.push_back(token);
  if (thinking_budget_) num_thinking_.push_back(next_thinking(token, num_thinking_.back()));
  if (!counts_) return;
  const auto t = static_cast<size_t>(token);
  CHECK_LT(t, output_count_.size());
  if (!listed_[t]) seen_.push_back(token);
  listed_[t] = true;
  ++output_count_[t];
}

void TokenHistory::pop() {
  CHECK(!output_.empty());
  if (counts_) --output_count_[static_cast<size_t>(output_.back())];
  output_.pop_back();
  if (thinking_budget_) num_thinking_.pop_back();
}

Sampler::Sampler(int64_t vocab_size) {
  const auto size = static_cast<size_t>(vocab_size);
  logits_.reserve(size);
  candidates_.reserve(size);
  weight_.reserve(size);
  sorted_.reserve(size);
}

TokenId Sampler::sample(std::span<const float> logits, const SamplingParams& params,
                        const TokenHistory& history, int64_t position, Logprobs* out) {
  CHECK(!logits.empty());
  const RowScan raw = scan_row(logits);
  if (!raw.finite) return kNumericFault;
  const bool changed = process(logits, params, history);
  const std::span<const float> row = changed ? std::span<const float>(logits_) : logits;
  const float max = changed ? scan_row(row).max : raw.max;
  TokenId token = -1;
  if (max == kMasked) {
    // Every token is forbidden: masks cannot ask for the impossible, so the raw row decides.
    token = first_of(logits, raw.max);
  } else {
    token = params.greedy() ? first_of(row, max) : race(row, max, params, position);
  }
  if (out != nullptr) CHECK(logprobs_of(logits, token, params.logprobs.value_or(0), out));
  return token;
}

// Copies the row into logits_ and applies everything that comes before the temperature. False when
// there is nothing to apply (logits_ is then left alone).
bool Sampler::process(std::span<const float> logits, const SamplingParams& params,
                      const TokenHistory& history) {
  const bool below_min_tokens = history.num_output_tokens() < params.min_tokens;
  if (params.allowed_token_ids.empty() && params.bad_words.empty() && !below_min_tokens &&
      params.logit_bias.empty() && !params.has_penalties() && !history.must_end_thinking()) {
    return false;
  }
  if (history.must_end_thinking()) {
    const auto end = static_cast<size_t>(params.thinking_budget->end);
    logits_.assign(logits.size(), kMasked);
    logits_[end] = logits[end];
    return true;
  }
  if (params.allowed_token_ids.empty()) {
    logits_.assign(logits.begin(), logits.end());
  } else {
    logits_.assign(logits.size(), kMasked);
    for (const TokenId token : params.allowed_token_ids) {
      logits_[static_cast<size_t>(token)] = logits[static_cast<size_t>(token)];
    }
  }
  mask_bad_words(logits_, params, history.output());
  if (below_min_tokens) {
    const auto mask = [&](TokenId token) {
      if (static_cast<size_t>(token) < logits_.size())
        logits_[static_cast<size_t>(token)] = kMasked;
    };
    std::for_each(params.eos_token_ids.begin(), params.eos_token_ids.end(), mask);
    std::for_each(params.stop_token_ids.begin(), params.stop_token_ids.end(), mask);
  }
  for (const auto& [token, bias] : params.logit_bias) logits_[static_cast<size_t>(token)] += bias;
  if (params.has_penalties()) {
    CHECK(history.counts_ && history.output_count_.size() >= logits_.size(),
          "a history made without these parameters");
    const auto repetition = static_cast<float>(params.repetition_penalty);
    const auto frequency = static_cast<float>(params.frequency_penalty);
    const auto presence = static_cast<float>(params.presence_penalty);
    for (const TokenId token : history.seen_) {
      const auto t = static_cast<size_t>(token);
      const int32_t count = history.output_count_[t];
      if (count == 0 && !history.in_prompt_[t]) continue;  // a draft that was popped again
      float& logit = logits_[t];
      logit = logit > 0.0F ? logit / repetition : logit * repetition;
      if (count > 0) logit -= frequency * static_cast<float>(count) + presence;
    }
  }
  return true;
}

// Temperature, filters and the exponential race over a processed row, whose maximum is finite.
TokenId Sampler::race(std::span<const float> row, float max, const SamplingParams& params,
                      int64_t position) {
  // vLLM's floor: below 0.01 the division overflows what its logits can hold.
  const double inverse_temperature = 1.0 / std::max(params.temperature, 0.01);
  candidates_.clear();
  weight_.clear();
  // Most of a row is far below any chance, which a comparison tells.
  const auto certainly_zero =
      std::nextafter(static_cast<float>(max + kNegligible / inverse_temperature), kMasked);
  for (size_t t = find_at_least(row, 0, certainly_zero); t < row.size();
       t = find_at_least(row, t + 1, certainly_zero)) {
    const double weight = weight_of((double{row[t]} - max) * inverse_temperature);
    if (weight < params.min_p || weight == 0.0) continue;
    candidates_.push_back(static_cast<TokenId>(t));
    weight_.push_back(weight);
  }
  if (params.top_k > 0) keep_top_k(params.top_k);
  if (params.top_p < 1.0) keep_top_p(params.top_p);

  RaceNoise noise(params.seed, position);
  // The likeliest token goes first, so that the bar is high from the start.
  const auto top =
      static_cast<size_t>(std::max_element(weight_.begin(), weight_.end()) - weight_.begin());
  TokenId best = candidates_[top];
  double best_score = noise.score(best, weight_[top], 0.0);
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const double score = noise.score(candidates_[i], weight_[i], best_score);
    if (score > best_score) {
      best_score = score;
      best = candidates_[i];
    }
  }
  return best;
}

// Tokens at least as likely as the k-th stay (ties with it included, as in vLLM).
void Sampler::keep_top_k(int32_t top_k) {
  const auto k = static_cast<size_t>(top_k);
  if (k >= candidates_.size()) return;
  sorted_.clear();
  for (size_t i = 0; i < candidates_.size(); ++i) sorted_.emplace_back(weight_[i], candidates_[i]);
  std::nth_element(sorted_.begin(), sorted_.begin() + static_cast<int64_t>(k) - 1, sorted_.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  const double threshold = sorted_[k - 1].first;
  size_t kept = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (weight_[i] < threshold) continue;
    candidates_[kept] = candidates_[i];
    weight_[kept++] = weight_[i];
  }
  candidates_.resize(kept);
  weight_.resize(kept);
}

// The smallest set of most likely tokens whose probability reaches top_p; at least one. Between
// equal tokens the lower id stays.
void Sampler::keep_top_p(double top_p) {
  sorted_.clear();
  double total = 0.0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    sorted_.emplace_back(weight_[i], candidates_[i]);
    total += weight_[i];
  }
  const auto likelier = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  // The set is small as a rule: sort a head of the list, and a longer one only if it does not do.
  double mass = 0.0;
  size_t kept = 0;
  size_t num_sorted = 0;
  const auto at = [&](size_t i) { return sorted_.begin() + static_cast<int64_t>(i); };
  while (kept < sorted_.size() && (kept == 0 || mass < top_p * total)) {
    if (kept == num_sorted) {
      const size_t head = std::min(sorted_.size(), std::max<size_t>(64, num_sorted * 8));
      if (head < sorted_.size()) std::nth_element(at(kept), at(head - 1), sorted_.end(), likelier);
      std::sort(at(kept), at(head), likelier);
      num_sorted = head;
    }
    mass += sorted_[kept++].first;
  }
  // Back in id order, so that neighbours share a block of noise.
  std::sort(sorted_.begin(), sorted_.begin() + static_cast<int64_t>(kept),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  candidates_.resize(kept);
  weight_.resize(kept);
  for (size_t i = 0; i < kept; ++i) {
    weight_[i] = sorted_[i].first;
    candidates_[i] = sorted_[i].second;
  }
}

TokenId Sampler::sample_draft(std::span<const float> logits, std::span<const TokenId> d2t,
                              const SamplingParams& params, int64_t position) {
  CHECK(!logits.empty() && (d2t.empty() || d2t.size() == logits.size()));
  const auto target_id = [&](TokenId t) { return d2t.empty() ? t : d2t[static_cast<size_t>(t)]; };
  const RowScan raw = scan_row(logits);
  if (!raw.finite) return kNumericFault;
  TokenId best = target_id(first_of(logits, raw.max));
  if (params.greedy()) return best;
  const double inverse_temperature = 1.0 / std::max(params.temperature, 0.01);
  RaceNoise noise(params.seed, position);
  double best_score = noise.score(best, 1.0, 0.0);
  for (size_t t = 0; t < logits.size(); ++t) {
    const double weight = weight_of((double{logits[t]} - raw.max) * inverse_temperature);
    if (weight == 0.0) continue;
    const TokenId id = target_id(static_cast<TokenId>(t));
    const double score = noise.score(id, weight, best_score);
    if (score > best_score) {
      best_score = score;
      best = id;
    }
  }
  return best;
}

bool Sampler::logprobs_of(std::span<const float> logits, TokenId token, int32_t num_top,
                          Logprobs* out) {
  CHECK(static_cast<size_t>(token) < logits.size());
  const RowScan raw = scan_row(logits);
  if (!raw.finite) return false;
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(x - raw.max);
  const double log_total = raw.max + std::log(sum);
  const auto logprob = [&](TokenId t) {
    return static_cast<float>(logits[static_cast<size_t>(t)] - log_total);
  };

  const float own = logits[static_cast<size_t>(token)];
  const auto above = std::count_if(logits.begin(), logits.end(), [&](float x) { return x > own; });
  out->token = {token, logprob(token), static_cast<int32_t>(above) + 1};

  const size_t n =
      num_top < 0 ? logits.size() : std::min(static_cast<size_t>(num_top), logits.size());
  out->top.clear();
  if (n == 0) return true;
  candidates_.resize(logits.size());
  std::iota(candidates_.begin(), candidates_.end(), 0);
  const auto better = [&](TokenId a, TokenId b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(n),
                    candidates_.end(), better);
  out->top.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    out->top.push_back({candidates_[i], logprob(candidates_[i]), static_cast<int32_t>(i) + 1});
  }
  return true;
}

uint64_t choice_seed(uint64_t seed, int32_t index) {
  return index == 0 ? seed : derived_seed(seed, static_cast<uint64_t>(index));
}

uint64_t derived_seed(uint64_t engine_seed, uint64_t request_counter) {
  // Far from every position a request can reach, so the words are used for nothing else.
  constexpr uint64_t kSeedPosition = ~uint64_t{0};
  const PhiloxBlock block = NoiseStream(engine_seed).block(kSeedPosition, request_counter);
  return (uint64_t{block[0]} << 32) | block[1];
}

}  // namespace eyrie::runtime
