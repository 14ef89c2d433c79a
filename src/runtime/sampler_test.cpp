// The sampler against exact distributions and against a plain oracle written from vLLM's documented
// order of processors, one full-vocabulary pass per rule.
#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

namespace eyrie::runtime {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

std::vector<float> random_row(uint32_t seed, size_t size, float spread = 2.0F) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0F, spread);
  std::vector<float> row(size);
  for (float& x : row) x = normal(rng);
  return row;
}

// Probability of every token, rule by rule.
std::vector<double> oracle(const std::vector<float>& logits, const SamplingParams& params,
                           const std::vector<TokenId>& prompt, const std::vector<TokenId>& output) {
  std::vector<double> x(logits.begin(), logits.end());
  const size_t size = x.size();
  if (!params.allowed_token_ids.empty()) {
    for (size_t t = 0; t < size; ++t) {
      const auto& allowed = params.allowed_token_ids;
      if (std::find(allowed.begin(), allowed.end(), static_cast<TokenId>(t)) == allowed.end()) {
        x[t] = kMinusInfinity;
      }
    }
  }
  for (const auto& word : params.bad_words) {
    std::vector<TokenId> head(word.begin(), word.end() - 1);
    if (head.size() <= output.size() &&
        std::vector<TokenId>(output.end() - static_cast<long>(head.size()), output.end()) == head) {
      x[static_cast<size_t>(word.back())] = kMinusInfinity;
    }
  }
  if (static_cast<int>(output.size()) < params.min_tokens) {
    for (const TokenId t : params.eos_token_ids) x[static_cast<size_t>(t)] = kMinusInfinity;
    for (const TokenId t : params.stop_token_ids) x[static_cast<size_t>(t)] = kMinusInfinity;
  }
  for (const auto& [t, bias] : params.logit_bias) x[static_cast<size_t>(t)] += bias;
  for (size_t t = 0; t < size; ++t) {
    const auto id = static_cast<TokenId>(t);
    const auto count = std::count(output.begin(), output.end(), id);
    const bool seen = count > 0 || std::count(prompt.begin(), prompt.end(), id) > 0;
    if (seen) x[t] = x[t] > 0 ? x[t] / params.repetition_penalty : x[t] * params.repetition_penalty;
    x[t] -= params.frequency_penalty * static_cast<double>(count);
    if (count > 0) x[t] -= params.presence_penalty;
  }
  for (double& value : x) value /= params.temperature;
  const double top = *std::max_element(x.begin(), x.end());
  std::vector<double> p(size);
  for (size_t t = 0; t < size; ++t) p[t] = std::exp(x[t] - top);
  for (double& value : p) {
    if (value < params.min_p) value = 0.0;
  }
  std::vector<size_t> order(size);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  if (params.top_k > 0) {
    for (size_t i = static_cast<size_t>(params.top_k); i < size; ++i) p[order[i]] = 0.0;
  }
  double total = std::accumulate(p.begin(), p.end(), 0.0);
  double mass = 0.0;
  for (size_t i = 0; i < size; ++i) {
    const double own = p[order[i]];
    if (i > 0 && mass >= params.top_p * total) p[order[i]] = 0.0;
    mass += own;
  }
  total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= total;
  return p;
}

// Draws over many positions against the exact distribution. The bound is the chi-square quantile at
// 1e-6 (Wilson–Hilferty): seeds are fixed, so this never fails by chance once it passed.
void expect_distribution(const std::vector<float>& logits, const SamplingParams& params,
                         const std::vector<TokenId>& prompt = {},
                         const std::vector<TokenId>& output = {}) {
  constexpr int kDraws = 60000;
  const std::vector<double> expected = oracle(logits, params, prompt, output);
  TokenHistory history(prompt, params, static_cast<int64_t>(logits.size()));
  for (const TokenId token : output) history.push(token);
  Sampler sampler(static_cast<int64_t>(logits.size()));
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    const TokenId token = sampler.sample(logits, params, history, 100 + i);
    ASSERT_GE(token, 0);
    ++counts[static_cast<size_t>(token)];
  }
  double chi_square = 0.0;
  double rest_expected = 0.0;
  double rest_count = 0.0;
  int cells = 0;
  for (size_t t = 0; t < counts.size(); ++t) {
    if (expected[t] == 0.0) {
      EXPECT_EQ(counts[t], 0) << "token " << t << " is filtered out";
    } else if (expected[t] * kDraws < 10.0) {
      rest_expected += expected[t] * kDraws;  // rare tokens share a cell
      rest_count += counts[t];
    } else {
      ++cells;
      const double e = expected[t] * kDraws;
      chi_square += (counts[t] - e) * (counts[t] - e) / e;
    }
  }
  if (rest_expected >= 5.0) {
    ++cells;
    chi_square += (rest_count - rest_expected) * (rest_count - rest_expected) / rest_expected;
  }
  const double dof = std::max(cells - 1, 1);
  const double h = 2.0 / (9.0 * dof);
  const double bound = dof * std::pow(1.0 - h + 4.753 * std::sqrt(h), 3.0);
  EXPECT_LT(chi_square, bound) << cells << " cells";
}

SamplingParams seeded(double temperature) {
  SamplingParams params;
  params.temperature = temperature;
  params.seed = 7;
  return params;
}

TEST(SamplerTest, DrawsFromTheSoftmax) {
  for (const double temperature : {0.3, 1.0, 2.5}) {
    for (const size_t size : {2, 3, 17, 200}) {
      expect_distribution(random_row(static_cast<uint32_t>(size), size), seeded(temperature));
    }
  }
}

TEST(SamplerTest, FiltersKeepWhatTheOracleKeeps) {
  const auto row = random_row(3, 40);
  for (const int top_k : {0, 1, 2, 7, 39, 40, 1000}) {
    for (const double top_p : {0.05, 0.5, 0.9, 1.0}) {
      for (const double min_p : {0.0, 0.1}) {
        SamplingParams params = seeded(0.8);
        params.top_k = top_k;
        params.top_p = top_p;
        params.min_p = min_p;
        SCOPED_TRACE(testing::Message()
                     << "top_k " << top_k << " top_p " << top_p << " min_p " << min_p);
        expect_distribution(row, params);
      }
    }
  }
}

TEST(SamplerTest, PenaltiesBiasAndMasksFollowTheOracle) {
  const auto row = random_row(5, 24);
  SamplingParams params = seeded(1.1);
  params.repetition_penalty = 1.3;
  params.frequency_penalty = 0.4;
  params.presence_penalty = -0.7;
  params.logit_bias = {{2, 3.0F}, {9, -100.0F}};
  params.bad_words = {{4}, {6, 8}, {6, 7, 11}, {8, 6, 12}};
  params.min_tokens = 9;
  params.eos_token_ids = {0};
  params.stop_token_ids = {1};
  const std::vector<TokenId> prompt = {3, 3, 5, 20};
  const std::vector<TokenId> output = {6, 10, 10, 8, 6};
  expect_distribution(row, params, prompt, output);
  params.min_tokens = 5;  // reached: both ids may come
  expect_distribution(row, params, prompt, output);
  params.allowed_token_ids = {0, 2, 5, 6, 13};
  expect_distribution(row, params, prompt, output);
}

TEST(SamplerTest, AThinkingBudgetForcesTheEndOfThinking) {
  constexpr TokenId kBegin = 1, kEnd = 2, kCall = 3, kWord = 7;
  const std::vector<float> row = {0.0F, 0.0F, -9.0F, 0.0F, 0.0F, 0.0F, 0.0F, 5.0F};
  SamplingParams params = seeded(0.0);
  params.thinking_budget = {.max_tokens = 2, .begin = kBegin, .end = kEnd, .other_end = kCall};
  params.allowed_token_ids = {kWord};  // the budget is stronger
  Sampler sampler(8);
  // What each next token is after prompt and output.
  const auto next = [&](std::vector<TokenId> prompt, const std::vector<TokenId>& output) {
    TokenHistory history(prompt, params, 8);
    for (const TokenId token : output) history.push(token);
    return sampler.sample(row, params, history, 0);
  };
  EXPECT_EQ(next({5, kBegin}, {6}), kWord);
  EXPECT_EQ(next({5, kBegin}, {6, 6}), kEnd);
  EXPECT_EQ(next({5, kBegin}, {6, 6, kEnd}), kWord);
  EXPECT_EQ(next({5, kBegin, 6, 6, 6}, {6}), kWord);  // the prompt's thinking is not counted
  EXPECT_EQ(next({5, kBegin, kEnd}, {6, 6, 6}), kWord);
  EXPECT_EQ(next({5, kBegin}, {6, kCall, 6, 6, 6}), kWord);
  EXPECT_EQ(next({5}, {6, kBegin, 6, 6}), kEnd);  // begun by the model itself
  params.thinking_budget->max_tokens = 0;
  EXPECT_EQ(next({5, kBegin}, {}), kEnd);
  EXPECT_EQ(next({5}, {6}), kWord);

  params.thinking_budget->max_tokens = 2;
  TokenHistory history(std::vector<TokenId>{kBegin}, params, 8);  // drafts are tried and taken back
  for (const TokenId token : {6, kEnd, 6}) history.push(token);
  for (int i = 0; i < 2; ++i) history.pop();
  EXPECT_EQ(sampler.sample(row, params, history, 0), kWord);
  history.push(6);
  EXPECT_EQ(sampler.sample(row, params, history, 0), kEnd);
}

TEST(SamplerTest, GreedyTakesTheFirstOfEqualLogits) {
  const std::vector<float> row = {1.0F, 4.0F, 4.0F, -2.0F};
  SamplingParams params = seeded(0.0);
  const TokenHistory history({}, params, 4);
  Sampler sampler(4);
  EXPECT_EQ(sampler.sample(row, params, history, 0), 1);
  params.logit_bias = {{2, 0.5F}};
  EXPECT_EQ(sampler.sample(row, params, history, 0), 2);
}

TEST(SamplerTest, SampleDependsOnSeedAndPositionOnly) {
  const auto row = random_row(11, 64, 0.5F);
  const SamplingParams params = seeded(1.0);
  const TokenHistory history({}, params, 64);
  Sampler a(64);
  Sampler b(64);
  std::vector<TokenId> forward;
  std::vector<TokenId> backward;
  for (int i = 0; i < 50; ++i) forward.push_back(a.sample(row, params, history, i));
  for (int i = 49; i >= 0; --i) backward.push_back(b.sample(row, params, history, i));
  std::reverse(backward.begin(), backward.end());
  EXPECT_EQ(forward, backward);
  SamplingParams other = params;
  other.seed = 8;
  std::vector<TokenId> reseeded;
  for (int i = 0; i < 50; ++i) reseeded.push_back(a.sample(row, other, history, i));
  EXPECT_NE(forward, reseeded);
}

// Removing tokens that did not win must not change who wins: the noise belongs to the token, not to
// its place among the candidates.
TEST(SamplerTest, NoiseBelongsToTheToken) {
  const auto row = random_row(12, 100, 0.5F);
  const SamplingParams params = seeded(1.0);
  const TokenHistory history({}, params, 100);
  Sampler sampler(100);
  for (int i = 0; i < 200; ++i) {
    const TokenId winner = sampler.sample(row, params, history, i);
    SamplingParams fewer = params;
    for (TokenId t = 0; t < 100; ++t) {
      if (t == winner || t % 3 == 0) fewer.allowed_token_ids.push_back(t);
    }
    EXPECT_EQ(sampler.sample(row, fewer, history, i), winner);
  }
}

TEST(SamplerTest, DraftWithTheTargetsLogitsAgreesAlways) {
  const auto row = random_row(13, 300, 1.0F);
  std::vector<TokenId> d2t;  // the draft knows every third token
  std::vector<float> draft_row;
  SamplingParams params = seeded(0.9);
  for (TokenId t = 0; t < 300; t += 3) {
    d2t.push_back(t);
    draft_row.push_back(row[static_cast<size_t>(t)]);
  }
  SamplingParams restricted = params;
  restricted.allowed_token_ids = d2t;
  const TokenHistory history({}, params, 300);
  Sampler sampler(300);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(sampler.sample_draft(row, {}, params, i), sampler.sample(row, params, history, i));
    EXPECT_EQ(sampler.sample_draft(draft_row, d2t, params, i),
              sampler.sample(row, restricted, history, i));
  }
}

TEST(SamplerTest, LogprobsAreOfTheRawRow) {
  const std::vector<float> row = {0.0F, std::log(2.0F), std::log(4.0F), std::log(1.0F)};
  SamplingParams params = seeded(0.0);
  params.logit_bias = {{0, 50.0F}};
  params.logprobs = 2;
  const TokenHistory history({}, params, 4);
  Sampler sampler(4);
  Logprobs out;
  EXPECT_EQ(sampler.sample(row, params, history, 0, &out), 0);
  EXPECT_EQ(out.token.id, 0);
  EXPECT_NEAR(out.token.logprob, std::log(1.0 / 8.0), 1e-6);
  EXPECT_EQ(out.token.rank, 3);
  ASSERT_EQ(out.top.size(), 2U);
  EXPECT_EQ(out.top[0].id, 2);
  EXPECT_NEAR(out.top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(out.top[1].id, 1);
  EXPECT_EQ(out.top[1].rank, 2);
  ASSERT_TRUE(sampler.logprobs_of(row, 3, -1, &out));
  EXPECT_EQ(out.top.size(), 4U);
  EXPECT_EQ(out.top[2].id, 0);  // equal logits: the lower id first
}

TEST(SamplerTest, NanIsAFaultNotTokenZero) {
  Sampler sampler(4);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    const std::vector<float> row = {0.0F, 1.0F, bad, 2.0F};
    for (const double temperature : {0.0, 1.0}) {
      const SamplingParams params = seeded(temperature);
      const TokenHistory history({}, params, 4);
      EXPECT_EQ(sampler.sample(row, params, history, 0), Sampler::kNumericFault);
    }
    Logprobs out;
    EXPECT_FALSE(sampler.logprobs_of(row, 0, 1, &out));
  }
}

TEST(TokenHistoryTest, PoppedDraftsLeaveNoTrace) {
  SamplingParams params = seeded(0.0);
  params.presence_penalty = 2.0;
  params.repetition_penalty = 1.5;
  const std::vector<TokenId> prompt = {1};
  TokenHistory history(prompt, params, 4);
  const std::vector<float> row = {3.0F, 2.9F, 1.0F, 2.5F};
  Sampler sampler(4);
  EXPECT_EQ(sampler.sample(row, params, history, 1), 0);
  history.push(0);
  history.push(0);
  EXPECT_EQ(sampler.sample(row, params, history, 3), 3);
  history.pop();
  EXPECT_EQ(sampler.sample(row, params, history, 2), 3);
  history.pop();
  EXPECT_EQ(history.num_output_tokens(), 0);
  EXPECT_EQ(sampler.sample(row, params, history, 1), 0);
}

TEST(SeedTest, ChoicesAndRequestsGetDifferentSeeds) {
  EXPECT_EQ(choice_seed(42, 0), 42U);
  std::map<uint64_t, int> seen;
  for (int i = 0; i < 100; ++i) {
    ++seen[choice_seed(42, i)];
    ++seen[derived_seed(0, static_cast<uint64_t>(i))];
  }
  EXPECT_EQ(seen.size(), 200U);
  EXPECT_EQ(derived_seed(5, 9), derived_seed(5, 9));
}

}  // namespace
}  // namespace eyrie::runtime
