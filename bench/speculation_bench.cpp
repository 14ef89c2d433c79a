// What drafts bring, without HTTP: no draft, fixed numbers of drafts and numbers that size
// themselves, each with its own runner and scheduler in this process, serve the same prompts and
// take turns of a few hundredths of a second, so that a machine whose speed changes from one second
// to the next slows them all alike. Ratios are to the mean of two columns without drafts; how far
// these two are apart says what a ratio is worth. A process may be fast or slow as a whole: start
// it several times.
//
//   speculation_bench --target DIR --draft DIR [--fp8-draft DIR] [--prompts FILE] [--lengths 1,2,6]
//                     [--concurrency 1,4,16] [--requests 24] [--rounds 2] [--mini LENGTH]
//                     [--only-adaptive 1]
//
// A round is so many requests, at least twice the concurrency; one more comes before, to settle in.
// --mini: made-up weights, prompts of 32 tokens, answers of 48, synthetic acceptance of LENGTH.
#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/runner.h"
#include "runtime/step_calibration.h"
#include "sched/draft_sizer.h"
#include "sched/scheduler.h"
#include "tokenizer/tokenizer.h"

namespace eyrie {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kSlice = 0.04;  // seconds of a turn, at least one step
constexpr int32_t kBlockSize = 16, kMaxModelLen = 2304, kNumBlocks = 6000;

struct Prompt {
  std::vector<TokenId> ids;
  int32_t max_tokens;
};

struct Options {
  std::string target, draft, fp8_draft, prompts = "data/prompts/nano-mix.jsonl";
  std::vector<int32_t> lengths = {1, 2, 3, 4, 5, 6}, concurrencies = {1, 4, 16, 64};
  int32_t requests = 24, rounds = 2;
  bool only_adaptive = false;
  double mini = 0;
};

std::vector<int32_t> numbers(const std::string& text) {
  std::vector<int32_t> out;
  for (const char *at = text.data(), *end = at + text.size(); at < end; ++at) {
    at = std::from_chars(at, end, out.emplace_back()).ptr;
  }
  return out;
}

Options options_from(int argc, char** argv) {
  Options options;
  if (argc % 2 == 0) fail("{} has no value", argv[argc - 1]);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--target") {
      options.target = value;
    } else if (name == "--draft") {
      options.draft = value;
    } else if (name == "--fp8-draft") {
      options.fp8_draft = value;
    } else if (name == "--prompts") {
      options.prompts = value;
    } else if (name == "--lengths") {
      options.lengths = numbers(value);
    } else if (name == "--concurrency") {
      options.concurrencies = numbers(value);
    } else if (name == "--requests") {
      options.requests = numbers(value)[0];
    } else if (name == "--only-adaptive") {
      options.only_adaptive = value == "1";
    } else if (name == "--rounds") {
      options.rounds = numbers(value)[0];
    } else if (name == "--mini") {
      options.mini = std::stod(value);
    } else {
      fail("{} is unknown; the head of bench/speculation_bench.cpp lists what there is", name);
    }
  }
  if (options.target.empty() || options.draft.empty()) fail("--target and --draft are needed");
  return options;
}

// With chance^1 + … + chance^drafts more tokens a step; a shorter draft is the same, cut off.
std::vector<double> synthetic(double length, int32_t longest, int32_t num_drafts) {
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {
    const double chance = (low + high) / 2;
    double mean = 1;
    for (int32_t j = 1; j <= longest; ++j) mean += std::pow(chance, j);
    (mean < length ? low : high) = chance;
  }
  std::vector<double> survival;
  for (int32_t j = 1; j <= num_drafts; ++j) survival.push_back(std::pow(low, j));
  return survival;
}

// One column: everything of a server but text, threads and HTTP.
class Column {
 public:
  Column(std::string name, const Options& options, const std::string& draft, int32_t num_drafts,
         bool adaptive, const std::vector<TokenId>& eos)
      : name_(std::move(name)), eos_(eos), ignore_eos_(options.mini > 0) {
    runtime::RunnerConfig config;
    config.model = options.target;
    config.draft = draft;
    config.load_dummy = options.mini > 0;
    config.num_speculative_tokens = num_drafts;
    if (options.mini > 0 && num_drafts > 0) {
      config.synthetic_acceptance = synthetic(options.mini, options.lengths.back(), num_drafts);
    }
    runner_ = std::make_unique<runtime::Runner>(config);
    runner_->allocate_kv(kNumBlocks, kBlockSize);
    sched::SchedulerConfig limits;
    limits.max_model_len = kMaxModelLen;
    limits.block_size = kBlockSize;
    limits.num_blocks = kNumBlocks;
    limits.enable_prefix_caching = false;
    limits.num_speculative_tokens = num_drafts;
    scheduler_ = std::make_unique<sched::Scheduler>(limits);
    if (!adaptive) return;
    sched::DraftSizerConfig sizing;
    sizing.num_speculative_tokens = num_drafts;
    sizing.costs = runtime::calibrate_steps(
        *runner_, {.num_speculative_tokens = num_drafts, .max_num_seqs = limits.max_num_seqs});
    sizer_.emplace(sizing);
    scheduler_->set_draft_policy(&*sizer_);
  }

  const std::string& name() const { return name_; }
  double rate() const { return static_cast<double>(num_tokens_) / seconds_; }
  double mean_length() const {
    return num_choices_ == 0 ? 0 : static_cast<double>(num_drafts_) / num_choices_;
  }
  void forget() {
    num_tokens_ = num_drafts_ = num_choices_ = 0;
    seconds_ = 0;
  }

  void begin_round(int32_t num_requests) { num_left_ = num_requests; }
  bool is_done() const { return num_left_ == 0 && !scheduler_->has_work(); }

  void take_turn(const std::vector<Prompt>& prompts, int32_t concurrency) {
    const Clock::time_point start = Clock::now();
    last_step_ = start;
    do {
      while (num_left_ > 0 && scheduler_->num_sequences() < concurrency) add(prompts);
      step();
    } while (!is_done() && std::chrono::duration<double>(Clock::now() - start).count() < kSlice);
    seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  void add(const std::vector<Prompt>& prompts) {
    const Prompt& prompt = prompts[static_cast<size_t>(next_id_) % prompts.size()];
    runtime::SamplingParams params;
    params.temperature = 0;
    params.max_tokens = prompt.max_tokens;
    params.ignore_eos = ignore_eos_;
    params.eos_token_ids = eos_;
    runner_->add_sequence(next_id_, prompt.ids, params);
    sched::NewSequence sequence;
    sequence.seq_id = next_id_++;
    sequence.prompt = prompt.ids;
    sequence.max_tokens = prompt.max_tokens;
    sequence.ignore_eos = ignore_eos_;
    sequence.eos_token_ids = eos_;
    CHECK(scheduler_->add(std::move(sequence)));
    --num_left_;
  }

  void step() {
    const sched::StepPlan& plan = scheduler_->schedule();
    const runtime::StepOutput& output = runner_->execute(plan);
    if (sizer_.has_value()) note(plan, output);
    for (const sched::SequenceEvent& event : scheduler_->update(plan, output.rows)) {
      num_tokens_ += static_cast<int64_t>(event.new_tokens.size());
      if (event.finish != sched::FinishReason::kNone) runner_->remove_sequence(event.seq_id);
    }
  }

  // As the engine does.
  void note(const sched::StepPlan& plan, const runtime::StepOutput& output) {
    sched::StepTimes times = output.times;
    const Clock::time_point now = Clock::now();
    times.other_seconds = std::max(
        0.0, std::chrono::duration<double>(now - last_step_).count() - times.total_seconds());
    last_step_ = now;
    int32_t num_tokens = 0;
    bool only_decoding = true;
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      const sched::StepRow& row = plan.rows[i];
      num_tokens += static_cast<int32_t>(output.rows[i].sampled.size());
      only_decoding &= row.samples && row.num_tokens == 1 + row.num_draft_tokens;
      if (!row.samples) continue;
      ++num_choices_;
      num_drafts_ += row.num_drafts_to_propose;
    }
    sizer_->note_step(times, num_tokens, only_decoding);
  }

  std::string name_;
  std::vector<TokenId> eos_;
  bool ignore_eos_;
  std::unique_ptr<runtime::Runner> runner_;
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::optional<sched::DraftSizer> sizer_;
  sched::SequenceId next_id_ = 0;
  int32_t num_left_ = 0;  // requests of the round that are not begun
  Clock::time_point last_step_;
  int64_t num_tokens_ = 0, num_drafts_ = 0, num_choices_ = 0;
  double seconds_ = 0;
};

std::vector<Prompt> prompts_of(const Options& options, const Tokenizer* tokenizer) {
  std::vector<Prompt> prompts;
  if (tokenizer == nullptr) {
    for (int32_t i = 0; i < 256; ++i) {
      Prompt& prompt = prompts.emplace_back(Prompt{.ids = {}, .max_tokens = 48});
      for (int32_t j = 0; j < 32; ++j) prompt.ids.push_back((i * 7919 + j * 104729 + 11) % 32000);
    }
    return prompts;
  }
  std::ifstream file(options.prompts);
  if (!file) fail("{} cannot be read", options.prompts);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    prompts.push_back({tokenizer->encode(json.at("prompt").get<std::string>(), AllowSpecial::kAll),
                       json.value("output_tokens", 96)});
  }
  return prompts;
}

void measure(std::vector<std::unique_ptr<Column>>& columns, const std::vector<Prompt>& prompts,
             const Options& options, int32_t concurrency) {
  for (int32_t round = 0; round <= options.rounds; ++round) {
    if (round <= 1) {
      for (auto& column : columns) column->forget();
    }
    for (auto& column : columns) {
      column->begin_round(std::max(options.requests, 2 * concurrency));
    }
    for (bool all_done = false; !all_done;) {
      all_done = true;
      for (auto& column : columns) {
        if (column->is_done()) continue;
        column->take_turn(prompts, concurrency);
        all_done = false;
      }
    }
  }
}

int run(int argc, char** argv) {
  const Options options = options_from(argc, argv);
  std::optional<Tokenizer> tokenizer;
  if (options.mini == 0) tokenizer = Tokenizer::load(options.target);
  const std::vector<TokenId> eos =
      tokenizer.has_value() ? tokenizer->eos_ids() : std::vector<TokenId>{};
  const auto prompts = prompts_of(options, tokenizer.has_value() ? &*tokenizer : nullptr);
  const int32_t most = options.lengths.back();
  std::vector<std::unique_ptr<Column>> columns;
  const auto add = [&](const std::string& name, const std::string& draft, int32_t drafts,
                       bool adaptive) {
    columns.push_back(std::make_unique<Column>(name, options, draft, drafts, adaptive, eos));
  };
  add("none", "", 0, false);
  for (const int32_t k : options.only_adaptive ? std::vector<int32_t>{} : options.lengths)
    add(fmt::format("K={}", k), options.draft, k, false);
  add("adaptive", options.draft, most, true);
  if (!options.fp8_draft.empty()) add("adaptive, FP8 draft", options.fp8_draft, most, true);
  add("none, again", "", 0, false);

  std::map<std::pair<size_t, int32_t>, std::string> cells;
  for (const int32_t concurrency : options.concurrencies) {
    measure(columns, prompts, options, concurrency);
    const double none = (columns.front()->rate() + columns.back()->rate()) / 2;
    double best = 0;
    for (const auto& column : columns) {
      if (column->name().starts_with("adaptive")) break;  // fixed ones come before them
      best = std::max(best, column->rate());
    }
    for (size_t i = 0; i < columns.size(); ++i) {
      const Column& column = *columns[i];
      std::string cell =
          i == 0 ? fmt::format("{:.0f}", none) : fmt::format("{:.3f}×", column.rate() / none);
      if (column.name().starts_with("adaptive")) {
        cell += fmt::format(" ({:.2f} of best, {:.2f} drafts)", column.rate() / best,
                            column.mean_length());
      }
      cells[{i, concurrency}] = cell;
      fmt::print(stderr, "C={} {}: {}\n", concurrency, column.name(), cell);
    }
  }
  fmt::print("| drafts |");
  for (const int32_t concurrency : options.concurrencies) fmt::print(" C={} |", concurrency);
  fmt::print("\n|:--|{}\n",
             fmt::join(std::vector<std::string>(options.concurrencies.size(), "--:|"), ""));
  for (size_t i = 0; i < columns.size(); ++i) {
    fmt::print("| {}{} |", columns[i]->name(), i == 0 ? ", out tok/s" : "");
    for (const int32_t concurrency : options.concurrencies) {
      fmt::print(" {} |", cells.at({i, concurrency}));
    }
    fmt::print("\n");
  }
  return 0;
}

}  // namespace
}  // namespace eyrie

int main(int argc, char** argv) {
  try {
    return eyrie::run(argc, argv);
  } catch (const eyrie::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
