// From one row of logits to one token: processors in vLLM's order, logprobs, sampling.
//
// Noise is keyed by (seed, position, token id), so the sample at a position is a pure function of
// the row of logits, the parameters and the tokens before it: it does not know drafts, batches,
// chunks or preemptions. Speculation stays exact by the same fact: the target's own sample at each
// position is drawn as if there were no draft, and a draft is accepted when it equals that sample.
// The draft draws with the same noise (sample_draft), which makes the two agree as often as their
// distributions overlap.
//
// Sampling is an exponential race (Gumbel-max in other words): argmax over tokens of p_t / e_t with
// e_t = -log u_t, and u_t one 32-bit word of noise; exact to float32's rounding.
//
// Order: raw logprobs | allowed ids | bad words | min_tokens | logit bias | penalties | thinking
// budget | temperature | min_p | top_k | top_p | sample. Temperature 0 takes the argmax after the
// penalties; a tie goes to the lowest id.
//
// One Sampler per engine (or rank) thread; its scratch is reused, so a call allocates nothing
// beyond the logprobs asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "sched/request.h"
#include "sched/step_plan.h"

namespace eyrie::runtime {

using sched::TokenId;

// After max_tokens tokens of thinking the only token that can follow is `end`. Thinking goes from
// `begin` (the prompt's last one may have begun it) to `end` or `other_end`; ids a model does not
// have are -1.
struct ThinkingBudget {
  int32_t max_tokens = 0;
  TokenId begin = -1;
  TokenId end = -1;
  TokenId other_end = -1;  // a call of a tool ends thinking, too
  bool operator==(const ThinkingBudget&) const = default;
};

// What a request asks of sampling and stopping. The engine fills in every default (seed, eos ids,
// max_tokens) before a sequence starts; ranges were checked by the server.
struct SamplingParams {
  double temperature = 1.0;  // < 1e-5 is greedy
  double top_p = 1.0;        // (0, 1]
  int32_t top_k = 0;         // <= 0 is off
  double min_p = 0.0;        // [0, 1]
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  uint64_t seed = 0;
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::vector<TokenId> allowed_token_ids;       // empty: all
  std::vector<std::vector<TokenId>> bad_words;  // token sequences that must not appear in output
  std::vector<TokenId> stop_token_ids;          // the request's own
  std::vector<TokenId> eos_token_ids;           // the model's, also masked until min_tokens
  int32_t min_tokens = 0;
  int32_t max_tokens = 16;
  bool ignore_eos = false;
  sched::RepetitionLimit repetition;
  std::optional<ThinkingBudget> thinking_budget;
  std::optional<int32_t> logprobs;         // top n besides the sampled token; -1 = whole vocabulary
  std::optional<int32_t> prompt_logprobs;  // the same for every prompt token but the first

  bool greedy() const { return temperature < 1e-5; }
  bool has_penalties() const {
    return presence_penalty != 0.0 || frequency_penalty != 0.0 || repetition_penalty != 1.0;
  }
};

struct TokenLogprob {
  TokenId id = -1;
  float logprob = 0.0F;
  int32_t rank = 0;  // 1 = most likely
  bool operator==(const TokenLogprob&) const = default;
};

struct Logprobs {
  TokenLogprob token;             // the sampled (or given) token
  std::vector<TokenLogprob> top;  // best first
  bool operator==(const Logprobs&) const = default;
};

// The tokens a sequence has so far, as penalties, bad words and min_tokens need them. Draft rows
// push d_1 … d_j, sample row j, and pop again: cost O(1) each, no allocation once reserved.
class TokenHistory {
 public:
  TokenHistory(std::span<const TokenId> prompt, const SamplingParams& params, int64_t vocab_size);

  void push(TokenId token);
  void pop();
  int64_t num_output_tokens() const { return static_cast<int64_t>(output_.size()); }
  std::span<const TokenId> output() const { return output_; }

 private:
  friend class Sampler;
  // Tokens of thinking after `token`, given those before it (-1: not thinking).
  int32_t next_thinking(TokenId token, int32_t before) const;
  bool must_end_thinking() const {
    return thinking_budget_ && num_thinking_.back() >= thinking_budget_->max_tokens;
  }

  std::vector<TokenId> output_;
  std::optional<ThinkingBudget> thinking_budget_;
  std::vector<int32_t>
      num_thinking_;  // with a budget: after the prompt and after each output token
  // Filled only when penalties are asked for; all three are indexed by token id.
  bool counts_ = false;
  std::vector<bool> in_prompt_;
  std::vector<bool> listed_;
  std::vector<int32_t> output_count_;
  std::vector<TokenId> seen_;  // distinct ids that are or were in prompt or output
};

class Sampler {
 public:
  // The row held NaN or infinity: the caller ends that sequence with an error.
  static constexpr TokenId kNumericFault = -1;

  explicit Sampler(int64_t vocab_size);

  // The token for `position` (its index in the sequence: prompt length + output tokens so far).
  // With out, fills logprobs of the raw row (before every processor), params.logprobs of them.
  TokenId sample(std::span<const float> logits, const SamplingParams& params,
                 const TokenHistory& history, int64_t position, Logprobs* out = nullptr);

  // A draft's proposal for `position` from draft logits: temperature and the target's noise, no
  // filters. d2t maps the draft's ids to the target's (empty: the same vocabulary); returns a
  // target id, or kNumericFault. What it returns can never change the output, only its speed.
  TokenId sample_draft(std::span<const float> logits, std::span<const TokenId> d2t,
                       const SamplingParams& params, int64_t position);

  // Logprobs of a given token of a raw row with its num_top (-1: all) best; false = numeric fault.
  bool logprobs_of(std::span<const float> logits, TokenId token, int32_t num_top, Logprobs* out);

 private:
  bool process(std::span<const float> logits, const SamplingParams& params,
               const TokenHistory& history);
  TokenId race(std::span<const float> row, float max, const SamplingParams& params,
               int64_t position);
  void keep_top_k(int32_t top_k);
  void keep_top_p(double top_p);

  std::vector<float> logits_;  // the processed row
  std::vector<TokenId> candidates_;
  std::vector<double> weight_;  // by candidate: exp((logit - max) / temperature)
  std::vector<std::pair<double, TokenId>> sorted_;
};

// The seed of choice `index` of a request whose own seed is `seed`: choice 0 keeps it.
uint64_t choice_seed(uint64_t seed, int32_t index);
// The seed of the counter-th request that brought none.
uint64_t derived_seed(uint64_t engine_seed, uint64_t request_counter);

}  // namespace eyrie::runtime
