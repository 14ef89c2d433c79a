// 10,000 steps of random arrivals, aborts, stops and preemptions on several configurations, with
// every invariant checked after each step and every sequence's text compared with what the same
// request gives alone, with no drafts, no cache and no limits.
//
// A failure prints its configuration, seed and step; EYRIE_SIM_SEED repeats it, EYRIE_SIM_STEPS
// makes a longer run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <ostream>
#include <random>
#include <set>

#include "fake_model.h"
#include "sched/scheduler.h"
#include "sched/testing.h"

namespace eyrie::sim {
namespace {

using sched::FinishReason;
using sched::NewSequence;
using sched::Scheduler;
using sched::SchedulerConfig;
using sched::SequenceEvent;

struct SimConfig {
  const char* name;
  SchedulerConfig scheduler;
  double draft_accuracy = 0;
  double arrivals_per_step = 0.3;
  int32_t max_prompt = 60;
  int32_t max_generated = 60;
  bool priorities = false;
  bool vary_draft_limit = false;
  bool random_drafts = false;  // of any number for each sequence
  bool is_tight = false;       // blocks run out often
};

void PrintTo(const SimConfig& config, std::ostream* out) { *out << config.name; }

// What a request gives with nothing around it.
struct Expected {
  std::vector<TokenId> tokens;
  FinishReason finish;
};

Expected continue_alone(const NewSequence& request, int32_t max_model_len) {
  Expected expected{.tokens = {}, .finish = FinishReason::kLength};
  const int32_t num_prompt = static_cast<int32_t>(request.prompt.size());
  const int32_t most = std::min(request.max_tokens, max_model_len - num_prompt);
  uint64_t hash = hash_of(request.prompt);
  const auto has = [](const std::vector<TokenId>& set, TokenId token) {
    return std::find(set.begin(), set.end(), token) != set.end();
  };
  while (static_cast<int32_t>(expected.tokens.size()) < most) {
    const TokenId token = next_token(hash);
    hash = mix(hash, static_cast<uint64_t>(token));
    expected.tokens.push_back(token);
    const bool stops = has(request.stop_token_ids, token) ||
                       (!request.ignore_eos && has(request.eos_token_ids, token));
    if (stops && static_cast<int32_t>(expected.tokens.size()) >= request.min_tokens) {
      expected.finish = FinishReason::kStop;
      break;
    }
  }
  return expected;
}

class Simulation {
 public:
  Simulation(const SimConfig& config, uint64_t seed)
      : config_(config),
        random_(seed),
        scheduler_(config.scheduler),
        model_(scheduler_.pool(), config.draft_accuracy,
               config.scheduler.num_speculative_tokens > 0 && config.scheduler.draft_keeps_kv),
        drafts_(seed) {
    if (config.random_drafts) scheduler_.set_draft_policy(&drafts_);
  }

  void run(int64_t num_steps) {
    for (step_ = 0; step_ < num_steps; ++step_) step(/*arrivals=*/true);
    // Bounded by what a sequence needs when it runs alone, one token a step.
    const int64_t last = num_steps + 200'000;
    for (; scheduler_.has_work(); ++step_) {
      ASSERT_LT(step_, last) << "sequences that never finish";
      step(/*arrivals=*/false);
    }
    EXPECT_EQ(scheduler_.pool().num_held(), 0);
    EXPECT_TRUE(live_.empty());
  }

  int64_t current_step() const { return step_; }
  std::string summary() const {
    const auto stats = scheduler_.stats();
    return fmt::format(
        "{} finished, {} dropped, {} refused, {} preemptions, {} of {} prompt tokens cached, "
        "{} of {} drafts accepted, {:.1f} rows a step, kv {:.0f} %",
        num_finished_, num_dropped_, num_refused_, stats.num_preemptions, stats.prefix_cache_hits,
        stats.prefix_cache_queries, num_accepted_, num_drafts_,
        static_cast<double>(num_rows_) / static_cast<double>(step_),
        100 * kv_usage_sum_ / static_cast<double>(step_));
  }
  int64_t num_finished() const { return num_finished_; }
  int64_t num_accepted() const { return num_accepted_; }
  sched::SchedulerStats stats() const { return scheduler_.stats(); }

 private:
  struct Live {
    Expected expected;
    std::vector<TokenId> prompt;
    std::vector<TokenId> generated;
  };

  int32_t between(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random_); }

  void step(bool arrivals) {
    if (arrivals) {
      while (chance(config_.arrivals_per_step / (1 + config_.arrivals_per_step))) arrive();
      if (chance(0.002)) {  // everybody at once
        for (int i = 0; i < 20; ++i) arrive();
      }
    }
    if (chance(0.02)) drop_somebody();
    if (config_.vary_draft_limit && chance(0.05)) {
      scheduler_.set_draft_limit(between(0, config_.scheduler.num_speculative_tokens));
    }
    const StepPlan& plan = scheduler_.schedule();
    check_plan(plan);
    const auto results = model_.execute(plan);
    if (chance(0.01)) drop_somebody();  // a client that leaves during the step
    for (const SequenceEvent& event : scheduler_.update(plan, results)) receive(event);
    scheduler_.check_integrity();
    model_.check_published();
    kv_usage_sum_ += scheduler_.stats().kv_usage;
  }

  // Prompts are beginnings of a few documents, of conversations that went on before, or new.
  std::vector<TokenId> make_prompt() {
    const int32_t most = std::min(config_.max_prompt, config_.scheduler.max_model_len - 1);
    std::vector<TokenId> prompt;
    if (!history_.empty() && chance(0.3)) {
      prompt = history_[static_cast<size_t>(between(0, static_cast<int32_t>(history_.size()) - 1))];
    } else if (chance(0.7)) {
      const int32_t document = between(0, 3);
      for (int32_t i = between(1, most); i > 0; --i) {
        prompt.push_back((document * 7 + static_cast<int32_t>(prompt.size())) % kVocabSize);
      }
    }
    if (prompt.empty() || chance(0.6)) {
      for (int32_t i = between(1, 12); i > 0; --i) prompt.push_back(between(0, kVocabSize - 1));
    }
    if (static_cast<int32_t>(prompt.size()) > most) prompt.resize(static_cast<size_t>(most));
    return prompt;
  }

  void arrive() {
    NewSequence request;
    request.seq_id = next_id_++;
    request.prompt = make_prompt();
    request.max_tokens = between(1, config_.max_generated);
    request.min_tokens = chance(0.2) ? between(1, 20) : 0;
    request.ignore_eos = chance(0.5);
    request.eos_token_ids = {0};
    if (chance(0.3)) request.stop_token_ids = {between(1, kVocabSize - 1)};
    if (config_.priorities) request.priority = between(0, 2);
    if (chance(0.1)) request.cache_salt = chance(0.5) ? "a" : "b";
    request.skip_prefix_cache = chance(0.05);
    Live live{.expected = continue_alone(request, config_.scheduler.max_model_len),
              .prompt = request.prompt,
              .generated = {}};
    const SequenceId id = request.seq_id;
    if (scheduler_.add(std::move(request))) {
      live_.emplace(id, std::move(live));
    } else {
      ++num_refused_;
    }
  }

  void drop_somebody() {
    if (live_.empty()) return;
    auto it = live_.begin();
    std::advance(it, between(0, static_cast<int32_t>(live_.size()) - 1));
    ASSERT_TRUE(chance(0.5) ? scheduler_.abort(it->first) : scheduler_.finish(it->first));
    live_.erase(it);
    ++num_dropped_;
  }

  void check_plan(const StepPlan& plan) {
    const SchedulerConfig& limits = config_.scheduler;
    EXPECT_EQ(plan.empty(), !scheduler_.has_work()) << "an engine with work must not stand still";
    EXPECT_LE(plan.num_tokens, limits.max_num_batched_tokens);
    EXPECT_LE(static_cast<int32_t>(plan.rows.size()), limits.max_num_seqs);
    int32_t num_tokens = 0;
    std::set<SequenceId> seen(plan.preempted.begin(), plan.preempted.end());
    for (const StepRow& row : plan.rows) {
      EXPECT_TRUE(seen.insert(row.seq_id).second)
          << "twice, or preempted and running: " << row.seq_id;
      EXPECT_GE(row.num_tokens - row.num_draft_tokens, 1);
      EXPECT_LE(row.first_position + row.num_tokens, limits.max_model_len);
      EXPECT_LE(row.num_draft_tokens, limits.num_speculative_tokens);
      EXPECT_LE(row.num_drafts_to_propose, limits.num_speculative_tokens);
      EXPECT_EQ(row.samples, row.next_token < 0);
      EXPECT_TRUE(row.samples || row.num_draft_tokens + row.num_drafts_to_propose == 0);
      if (limits.long_prefill_token_threshold > 0) {
        EXPECT_LE(row.num_tokens - row.num_draft_tokens, limits.long_prefill_token_threshold);
      }
      num_tokens += row.num_tokens;
    }
    EXPECT_EQ(num_tokens, plan.num_tokens);
    num_rows_ += static_cast<int64_t>(plan.rows.size());
  }

  void receive(const SequenceEvent& event) {
    num_drafts_ += event.num_draft_tokens;
    num_accepted_ += event.num_accepted_tokens;
    const auto it = live_.find(event.seq_id);
    ASSERT_NE(it, live_.end()) << "an event for a sequence that was dropped";
    Live& live = it->second;
    EXPECT_EQ(event.is_first, live.generated.empty());
    live.generated.insert(live.generated.end(), event.new_tokens.begin(), event.new_tokens.end());
    EXPECT_EQ(event.num_generated_tokens, static_cast<int32_t>(live.generated.size()));
    const auto& expected = live.expected.tokens;
    ASSERT_LE(live.generated.size(), expected.size());
    ASSERT_TRUE(std::equal(live.generated.begin(), live.generated.end(), expected.begin()));
    if (event.finish == FinishReason::kNone) {
      ASSERT_LT(live.generated.size(), expected.size()) << "did not stop where it should";
      return;
    }
    ASSERT_EQ(live.generated.size(), expected.size());
    ASSERT_EQ(event.finish, live.expected.finish);
    ++num_finished_;
    std::vector<TokenId> conversation = std::move(live.prompt);
    conversation.insert(conversation.end(), expected.begin(), expected.end());
    if (history_.size() < 16) {
      history_.push_back(std::move(conversation));
    } else {
      history_[static_cast<size_t>(between(0, 15))] = std::move(conversation);
    }
    live_.erase(it);
  }

  const SimConfig config_;
  std::mt19937_64 random_;
  Scheduler scheduler_;
  FakeModel model_;
  sched::testing::RandomDrafts drafts_;
  std::map<SequenceId, Live> live_;
  std::vector<std::vector<TokenId>> history_;
  SequenceId next_id_ = 1;
  int64_t step_ = 0, num_finished_ = 0, num_dropped_ = 0, num_refused_ = 0;
  int64_t num_drafts_ = 0, num_accepted_ = 0, num_rows_ = 0;
  double kv_usage_sum_ = 0;
};

const SimConfig kConfigs[] = {
    {.name = "plain",
     .scheduler = {.max_num_seqs = 8,
                   .max_num_batched_tokens = 32,
                   .max_model_len = 128,
                   .block_size = 8,
                   .num_blocks = 200,
                   .enable_prefix_caching = false,
                   .max_waiting = 30}},
    {.name = "cache",
     .scheduler = {.max_num_seqs = 8,
                   .max_num_batched_tokens = 32,
                   .max_model_len = 128,
                   .block_size = 4,
                   .num_blocks = 150,
                   .max_waiting = 30}},
    {.name = "drafts_tight_blocks",
     .scheduler = {.max_num_seqs = 8,
                   .max_num_batched_tokens = 64,
                   .max_model_len = 128,
                   .block_size = 4,
                   .num_blocks = 64,
                   .num_speculative_tokens = 6,
                   .max_waiting = 30},
     .draft_accuracy = 0.8,
     .arrivals_per_step = 0.5,
     .is_tight = true},
    {.name = "drafts_no_reserve_threshold",
     .scheduler = {.max_num_seqs = 12,
                   .max_num_batched_tokens = 40,
                   .max_model_len = 100,
                   .block_size = 8,
                   .num_blocks = 40,
                   .num_speculative_tokens = 3,
                   .max_waiting = 20,
                   .reserve_full_prompt = false,
                   .long_prefill_token_threshold = 16},
     .draft_accuracy = 0.6,
     .arrivals_per_step = 0.5,
     .is_tight = true},
    {.name = "lookup_drafts_priorities",
     .scheduler = {.max_num_seqs = 6,
                   .max_num_batched_tokens = 24,
                   .max_model_len = 90,
                   .block_size = 4,
                   .num_blocks = 50,
                   .num_speculative_tokens = 5,
                   .draft_keeps_kv = false,
                   .max_waiting = 25,
                   .reserve_full_prompt = false},
     .draft_accuracy = 0.9,
     .arrivals_per_step = 0.5,
     .priorities = true,
     .is_tight = true},
    {.name = "tiny_budget_varying_drafts",
     .scheduler = {.max_num_seqs = 5,
                   .max_num_batched_tokens = 7,
                   .max_model_len = 64,
                   .block_size = 1,
                   .num_blocks = 100,
                   .num_speculative_tokens = 4,
                   .max_waiting = 10},
     .draft_accuracy = 0.95,
     .arrivals_per_step = 0.2,
     .max_prompt = 40,
     .max_generated = 30,
     .vary_draft_limit = true,
     .random_drafts = true,
     .is_tight = true},
    {.name = "one_sequence_fills_the_pool",
     .scheduler = {.max_num_seqs = 4,
                   .max_num_batched_tokens = 16,
                   .max_model_len = 65,
                   .block_size = 16,
                   .num_blocks = 4,
                   .num_speculative_tokens = 6,
                   .max_waiting = 10,
                   .reserve_full_prompt = false},
     .draft_accuracy = 1.0,
     .arrivals_per_step = 0.2,
     .is_tight = true},
};

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoll(value, nullptr, 10);
}

class SchedulerSimTest : public ::testing::TestWithParam<SimConfig> {};

TEST_P(SchedulerSimTest, EveryInvariantHoldsAndTextDoesNotDependOnScheduling) {
  const SimConfig& config = GetParam();
  const int64_t first_seed = from_environment("EYRIE_SIM_SEED", 1);
  const int64_t num_seeds = std::getenv("EYRIE_SIM_SEED") != nullptr ? 1 : 3;
  const int64_t num_steps = from_environment("EYRIE_SIM_STEPS", 10'000);
  for (int64_t seed = first_seed; seed < first_seed + num_seeds; ++seed) {
    Simulation simulation(config, static_cast<uint64_t>(seed));
    simulation.run(num_steps);
    fmt::print("{} seed {}: {}\n", config.name, seed, simulation.summary());
    ASSERT_FALSE(HasFailure()) << config.name << ", EYRIE_SIM_SEED=" << seed << ", at step "
                               << simulation.current_step();
    // The run met what it is meant to test.
    EXPECT_GT(simulation.num_finished(), num_steps / 20);
    const sched::SchedulerStats stats = simulation.stats();
    EXPECT_EQ(stats.num_preemptions > num_steps / 100, config.is_tight);
    EXPECT_EQ(stats.prefix_cache_hits > num_steps / 10, config.scheduler.enable_prefix_caching);
    EXPECT_EQ(simulation.num_accepted() > num_steps / 10,
              config.scheduler.num_speculative_tokens > 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Configs, SchedulerSimTest, ::testing::ValuesIn(kConfigs),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace eyrie::sim
