// The engine over a tape: what a client is told must not depend on how many tokens a step brings.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>

#include "base/error.h"
#include "engine/tape_runner.h"

namespace eyrie::engine {
namespace {

using std::chrono::milliseconds;

const Tokenizer& bytes() {
  static const Tokenizer tokenizer = make_byte_tokenizer();
  return tokenizer;
}

// One choice's story, put together from its chunks.
struct Told {
  std::string text;
  std::vector<TokenId> tokens;
  std::vector<runtime::Logprobs> logprobs;
  std::vector<runtime::Logprobs> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  std::string stop_string;
  std::optional<TokenId> stop_token;
  int32_t num_cached = 0;
  Failure failure;
  int num_chunks = 0;
};

// Waits for chunks as a front end would.
class Client {
 public:
  Client()
      : stream_(std::make_shared<OutputStream>([this] {
          std::lock_guard lock(mutex_);
          woken_ = true;
          wake_.notify_one();
        })) {}

  std::shared_ptr<OutputStream> stream() { return stream_; }

  // Reads until `num_choices` are finished, or `enough` says so.
  std::map<int, Told>& read(size_t num_choices, const std::function<bool()>& enough = {}) {
    while (num_finished_ < num_choices && !(enough && enough())) {
      {
        std::unique_lock lock(mutex_);
        EXPECT_TRUE(wake_.wait_for(lock, std::chrono::seconds(30), [&] { return woken_; }));
        woken_ = false;
      }
      for (OutputChunk& chunk : stream_->take()) take(std::move(chunk));
    }
    return told_;
  }

 private:
  void take(OutputChunk&& chunk) {
    Told& told = told_[chunk.choice_idx];
    EXPECT_EQ(told.finish, FinishReason::kNone) << "nothing may follow the end";
    ++told.num_chunks;
    for (const TextPiece& piece : chunk.pieces) {
      told.text += piece.text;
      told.tokens.push_back(piece.token);
    }
    std::move(chunk.logprobs.begin(), chunk.logprobs.end(), std::back_inserter(told.logprobs));
    if (!chunk.prompt_logprobs.empty()) told.prompt_logprobs = std::move(chunk.prompt_logprobs);
    told.num_cached = std::max(told.num_cached, chunk.num_cached_tokens);
    told.finish = chunk.finish;
    told.stop_string = chunk.stop_string;
    told.stop_token = chunk.stop_token;
    told.failure = chunk.failure;
    if (chunk.finish != FinishReason::kNone) ++num_finished_;
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool woken_ = false;
  size_t num_finished_ = 0;
  std::map<int, Told> told_;
  std::shared_ptr<OutputStream> stream_;
};

EngineConfig small_config(int32_t num_drafts = 0) {
  EngineConfig config;
  config.scheduler = {.max_num_seqs = 8,
                      .max_num_batched_tokens = 64,
                      .max_model_len = 512,
                      .block_size = 16,
                      .num_blocks = 64,
                      .num_speculative_tokens = num_drafts};
  config.log_interval = std::chrono::seconds(0);
  return config;
}

GenerateRequest ask(const std::string& prompt, int32_t max_tokens = 100) {
  GenerateRequest request;
  request.prompt = bytes().encode(prompt, AllowSpecial::kAll);
  request.params.temperature = 0;
  request.params.max_tokens = max_tokens;
  return request;
}

// Whether the runner of the case in hand works while the engine publishes, as a device does.
bool runs_ahead = false;

struct Rig {
  explicit Rig(TapeRunner::Tape tape, int32_t num_drafts = 0, int64_t num_right = 0,
               const EngineConfig* config = nullptr) {
    auto owned =
        std::make_unique<TapeRunner>(std::move(tape), [num_right](int64_t) { return num_right; });
    runner = owned.get();
    runner->ahead = runs_ahead;
    engine = std::make_unique<Engine>(config != nullptr ? *config : small_config(num_drafts),
                                      std::move(owned), bytes());
  }
  Told run(GenerateRequest request) {
    Client client;
    const auto id = engine->submit(std::move(request), client.stream());
    EXPECT_TRUE(id.ok());
    return client.read(1).at(0);
  }
  TapeRunner* runner = nullptr;
  std::unique_ptr<Engine> engine;
};

// Every case plain, with drafts that are right, wrong and half right; the answers must be equal.
void expect_same_with_drafts(const TapeRunner::Tape& tape, const GenerateRequest& request,
                             const std::function<void(const Told&)>& check) {
  for (const auto& [num_drafts, num_right] :
       std::vector<std::pair<int32_t, int64_t>>{{0, 0}, {6, 6}, {6, 0}, {6, 3}, {1, 1}}) {
    SCOPED_TRACE(testing::Message() << num_drafts << " drafts, " << num_right << " right");
    Rig rig(tape, num_drafts, num_right);
    rig.engine->start();
    const Told told = rig.run(request);
    check(told);
    const EngineStats stats = rig.engine->stats();
    EXPECT_EQ(stats.generation_tokens, static_cast<int64_t>(told.tokens.size()));
    if (num_right > 0 && told.tokens.size() > 4) {
      EXPECT_GT(stats.num_accepted_tokens, 0);
    }
  }
}

class EngineTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { runs_ahead = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Runner, EngineTest, testing::Bool(),
                         [](const auto& runner) { return runner.param ? "ahead" : "at_once"; });

TEST_P(EngineTest, EndTokenIsCountedAndHasNoText) {
  expect_same_with_drafts(say(bytes(), "Hello, eagle."), ask("hi"), [](const Told& told) {
    EXPECT_EQ(told.text, "Hello, eagle.");
    EXPECT_EQ(told.finish, FinishReason::kStop);
    EXPECT_EQ(told.tokens.size(), 14U);
    EXPECT_EQ(told.tokens.back(), bytes().id_of("<|im_end|>"));
    EXPECT_FALSE(told.stop_token.has_value());
    EXPECT_EQ(told.stop_string, "");
  });
}

TEST_P(EngineTest, StopStringCutsTextTokensAndLogprobsAtOnePlace) {
  GenerateRequest request = ask("count");
  request.text.stop = {"cd", "zzz"};
  request.params.logprobs = 2;
  expect_same_with_drafts(say(bytes(), "abcdefghij"), request, [](const Told& told) {
    EXPECT_EQ(told.text, "ab");
    EXPECT_EQ(told.finish, FinishReason::kStop);
    EXPECT_EQ(told.stop_string, "cd");
    EXPECT_EQ(told.tokens, (std::vector<TokenId>{'a', 'b', 'c', 'd'}));
    ASSERT_EQ(told.logprobs.size(), 4U);
    EXPECT_EQ(told.logprobs[3].token.id, 'd');
    EXPECT_FLOAT_EQ(told.logprobs[3].token.logprob, TapeRunner::logprob_of('d'));
    EXPECT_EQ(told.logprobs[0].top.size(), 2U);
  });
}

TEST_P(EngineTest, StopInsideTheBudgetIsAStopNotALength) {
  GenerateRequest request = ask("x", 5);
  request.text.stop = {"X"};
  expect_same_with_drafts(say(bytes(), "abXdefgh"), request, [](const Told& told) {
    EXPECT_EQ(told.finish, FinishReason::kStop);
    EXPECT_EQ(told.text, "ab");
    EXPECT_EQ(told.tokens.size(), 3U);
  });
}

TEST_P(EngineTest, IncludedStopStringStays) {
  GenerateRequest request = ask("x");
  request.text.stop = {"cd"};
  request.text.include_stop = true;
  expect_same_with_drafts(say(bytes(), "abcdef"), request,
                          [](const Told& told) { EXPECT_EQ(told.text, "abcd"); });
}

TEST_P(EngineTest, LengthEndsAtExactlyMaxTokensAndReleasesHeldText) {
  GenerateRequest request = ask("x", 4);
  request.text.stop = {"dQ"};
  expect_same_with_drafts(say(bytes(), "abcdefghij"), request, [](const Told& told) {
    EXPECT_EQ(told.text, "abcd");
    EXPECT_EQ(told.tokens.size(), 4U);
    EXPECT_EQ(told.finish, FinishReason::kLength);
  });
}

TEST_P(EngineTest, StopTokenIsNamed) {
  GenerateRequest request = ask("x");
  request.params.stop_token_ids = {'d'};
  expect_same_with_drafts(say(bytes(), "abcdef"), request, [](const Told& told) {
    EXPECT_EQ(told.text, "abc");
    EXPECT_EQ(told.stop_token, 'd');
    EXPECT_EQ(told.finish, FinishReason::kStop);
  });
  request.text.include_stop = true;
  expect_same_with_drafts(say(bytes(), "abcdef"), request,
                          [](const Told& told) { EXPECT_EQ(told.text, "abcd"); });
}

TEST_P(EngineTest, MinTokensHoldsOffEndTokensAndStopStrings) {
  GenerateRequest request = ask("x", 40);
  request.params.min_tokens = 8;
  request.text.stop = {"bc", "~"};
  // The end token at 4 is masked (the tape says ~ instead); "bc" and the first ~ come too early.
  expect_same_with_drafts(say(bytes(), "abcd"), request, [](const Told& told) {
    EXPECT_EQ(told.text, "abcd~~~~");
    EXPECT_EQ(told.tokens.size(), 9U);
    EXPECT_EQ(told.finish, FinishReason::kStop);
  });
}

TEST_P(EngineTest, CharactersSpreadOverTokensComeWhole) {
  GenerateRequest request = ask("x");
  request.text.stop = {"🦅"};
  expect_same_with_drafts(say(bytes(), "aď🦊b🦅c"), request, [](const Told& told) {
    EXPECT_EQ(told.text, "aď🦊b");
    EXPECT_EQ(told.stop_string, "🦅");
    EXPECT_EQ(told.tokens.size(), 12U);
  });
}

TEST_P(EngineTest, PromptLogprobsComeOnceAndWhole) {
  // 200 prompt tokens over a budget of 64 a step: four chunks.
  GenerateRequest request = ask(std::string(100, 'p') + std::string(100, 'q'));
  request.params.prompt_logprobs = 1;
  expect_same_with_drafts(say(bytes(), "ok"), request, [](const Told& told) {
    ASSERT_EQ(told.prompt_logprobs.size(), 199U);
    EXPECT_EQ(told.prompt_logprobs[0].token.id, 'p');
    EXPECT_EQ(told.prompt_logprobs[98].token.id, 'p');
    EXPECT_EQ(told.prompt_logprobs[99].token.id, 'q');
    EXPECT_EQ(told.text, "ok");
  });
}

TEST_P(EngineTest, ChoicesGetTheirOwnSeedsAndAreRepeatable) {
  const auto seed_tape = [](std::span<const TokenId>, const runtime::SamplingParams& params,
                            int64_t idx) {
    return static_cast<TokenId>('a' + (params.seed >> (idx * 4)) % 16);
  };
  const auto texts = [&](uint64_t seed) {
    Rig rig(seed_tape);
    rig.engine->start();
    Client client;
    GenerateRequest request = ask("x", 12);
    request.n = 3;
    request.first_choice_idx = 5;
    request.has_seed = true;
    request.params.seed = seed;
    EXPECT_TRUE(rig.engine->submit(request, client.stream()).ok());
    std::vector<std::string> out;
    for (const auto& [choice_idx, told] : client.read(3)) {
      EXPECT_EQ(choice_idx, 5 + static_cast<int>(out.size()));
      out.push_back(told.text);
    }
    return out;
  };
  const auto first = texts(7);
  EXPECT_EQ(first, texts(7));
  EXPECT_NE(first, texts(8));
  EXPECT_NE(first[0], first[1]);
  EXPECT_NE(first[1], first[2]);
}

TEST_P(EngineTest, GaugesAreRightWhenAnAnswerEnds) {
  Rig rig(say(bytes(), "Hello, eagle."));
  std::vector<int64_t> running;
  const auto stream = std::make_shared<OutputStream>(
      [&] { running.push_back(static_cast<int64_t>(rig.engine->stats().num_running)); });
  rig.engine->start();
  ASSERT_TRUE(rig.engine->submit(ask("hi"), stream).ok());
  rig.engine->drain(milliseconds(10000));
  ASSERT_FALSE(running.empty());
  EXPECT_EQ(running.back(), 0);
}

TEST_P(EngineTest, AbortGivesTheBlocksBackByTheNextStep) {
  Rig rig([](std::span<const TokenId>, const runtime::SamplingParams&, int64_t) {
    return TokenId{'x'};
  });
  rig.runner->before_step = [] { std::this_thread::sleep_for(milliseconds(1)); };
  rig.engine->start();
  Client client;
  const auto id = rig.engine->submit(ask("going away", 400), client.stream());
  ASSERT_TRUE(id.ok());
  auto& told = client.read(1, [&] { return rig.engine->stats().generation_tokens > 3; });
  EXPECT_GT(rig.engine->stats().kv_usage, 0.0);
  rig.engine->abort(id.value());
  client.read(1);
  EXPECT_EQ(told.at(0).finish, FinishReason::kAbort);
  EXPECT_LT(told.at(0).tokens.size(), 400U);
  // Another request's step is the next one: only its own blocks are held then.
  EXPECT_EQ(rig.run(ask("next", 1)).finish, FinishReason::kLength);
  rig.engine->drain(milliseconds(10000));
  EXPECT_EQ(rig.engine->stats().kv_usage, 0.0);
  EXPECT_EQ(rig.engine->stats().finished[2], 1);
  EXPECT_EQ(rig.runner->num_sequences.load(), 0);
  rig.engine->abort(id.value());  // long gone: nothing happens
  rig.engine->abort(424242);
}

TEST_P(EngineTest, RefusesMoreThanItTakes) {
  EngineConfig config = small_config();
  config.max_sequences = 4;
  Rig rig(say(bytes(), "ok"), 0, 0, &config);
  Client client;
  GenerateRequest three = ask("x");
  three.n = 3;
  ASSERT_TRUE(rig.engine->submit(three, client.stream()).ok());
  const auto refused = rig.engine->submit(three, client.stream());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.failure().kind, FailureKind::kOverloaded);
  rig.engine->start();
  client.read(3);
  // Served: there is room again.
  Client again;
  while (rig.engine->num_live_sequences() > 0) std::this_thread::yield();
  ASSERT_TRUE(rig.engine->submit(three, again.stream()).ok());
  EXPECT_EQ(again.read(3).at(2).text, "ok");
}

TEST_P(EngineTest, RefusesWhatCanNeverFit) {
  Rig rig(say(bytes(), "ok"));
  Client client;
  const auto refused = rig.engine->submit(ask(std::string(512, 'x'), 1), client.stream());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.failure().kind, FailureKind::kInvalidArgument);
  EXPECT_NE(refused.failure().message.find("512 prompt tokens"), std::string::npos);
}

TEST_P(EngineTest, ManyMoreRequestsThanSlotsAllEnd) {
  Rig rig(say(bytes(), "a longer answer than a step can hold, for preemption"), 6, 4);
  rig.engine->start();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 100; ++i) {
    clients.push_back(std::make_unique<Client>());
    ASSERT_TRUE(rig.engine
                    ->submit(ask(std::string(static_cast<size_t>(i % 90) + 1, 'p')),
                             clients.back()->stream())
                    .ok());
  }
  for (auto& client : clients) {
    EXPECT_EQ(client->read(1).at(0).text, "a longer answer than a step can hold, for preemption");
  }
  EXPECT_EQ(rig.engine->stats().finished[0], 100);
}

TEST_P(EngineTest, NumericFaultEndsOnlyItsRequest) {
  const auto tape = [](std::span<const TokenId> prompt, const runtime::SamplingParams&,
                       int64_t idx) {
    if (prompt[0] == 'B' && idx == 3) return runtime::Sampler::kNumericFault;
    return TokenId{'k'};
  };
  Rig rig(tape, 6, 2);
  rig.engine->start();
  Client bad;
  Client good;
  ASSERT_TRUE(rig.engine->submit(ask("Bad", 20), bad.stream()).ok());
  ASSERT_TRUE(rig.engine->submit(ask("Good", 20), good.stream()).ok());
  const Told& told = bad.read(1).at(0);
  EXPECT_EQ(told.finish, FinishReason::kError);
  EXPECT_NE(told.failure.message.find("numeric fault"), std::string::npos);
  EXPECT_LE(told.text.size(), 3U);
  EXPECT_EQ(good.read(1).at(0).text, std::string(20, 'k'));
  EXPECT_TRUE(rig.engine->healthy());
}

TEST_P(EngineTest, DeathOfTheThreadAnswersEverybodyAndIsReported) {
  Rig rig(say(bytes(), "never said"));
  std::mutex mutex;
  std::condition_variable cv;
  std::string epitaph;
  rig.engine->set_death_handler([&](const std::string& what) {
    std::lock_guard lock(mutex);
    epitaph = what;
    cv.notify_one();
  });
  rig.runner->before_step = [] { fail("the device fell off"); };
  Client client;
  GenerateRequest two = ask("x");
  two.n = 2;
  ASSERT_TRUE(rig.engine->submit(two, client.stream()).ok());
  rig.engine->start();
  auto& told = client.read(2);
  EXPECT_EQ(told.at(0).finish, FinishReason::kError);
  EXPECT_EQ(told.at(1).failure.kind, FailureKind::kInternal);
  std::unique_lock lock(mutex);
  ASSERT_TRUE(cv.wait_for(lock, std::chrono::seconds(10), [&] { return !epitaph.empty(); }));
  EXPECT_EQ(epitaph, "the device fell off");
  EXPECT_FALSE(rig.engine->healthy());
  const auto refused = rig.engine->submit(ask("y"), client.stream());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.failure().kind, FailureKind::kUnavailable);
}

TEST_P(EngineTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  Rig rig(say(bytes(), "the last words"));
  rig.runner->before_step = [] { std::this_thread::sleep_for(milliseconds(1)); };
  rig.engine->start();
  Client client;
  ASSERT_TRUE(rig.engine->submit(ask("x"), client.stream()).ok());
  rig.engine->drain(milliseconds(20000));
  EXPECT_EQ(client.read(1).at(0).text, "the last words");
  const auto refused = rig.engine->submit(ask("y"), client.stream());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.failure().kind, FailureKind::kUnavailable);
}

TEST_P(EngineTest, DrainOutOfTimeAborts) {
  Rig rig([](std::span<const TokenId>, const runtime::SamplingParams&, int64_t) {
    return TokenId{'x'};
  });
  rig.runner->before_step = [] { std::this_thread::sleep_for(milliseconds(5)); };
  rig.engine->start();
  Client client;
  ASSERT_TRUE(rig.engine->submit(ask("x", 400), client.stream()).ok());
  rig.engine->drain(milliseconds(20));
  EXPECT_EQ(client.read(1).at(0).finish, FinishReason::kAbort);
}

TEST_P(EngineTest, SecondIdenticalPromptReportsCachedTokens) {
  Rig rig(say(bytes(), "ok"));
  rig.engine->start();
  const std::string prompt(100, 'c');
  EXPECT_EQ(rig.run(ask(prompt)).num_cached, 0);
  EXPECT_EQ(rig.run(ask(prompt)).num_cached, 96);  // six whole blocks of 16
  const EngineStats stats = rig.engine->stats();
  EXPECT_EQ(stats.prompt_tokens, 200);
  EXPECT_EQ(stats.prompt_tokens_cached, 96);
}

}  // namespace
}  // namespace eyrie::engine
