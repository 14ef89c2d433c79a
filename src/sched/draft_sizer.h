// Speculation that sizes itself: gives each sequence the number of drafts, 0 to K, with which the
// batch makes most tokens a second, as far as measured step costs and measured acceptance tell.
//
// A cycle of n sequences with k_i drafts each brings Σ (1 + s_i1 + … + s_ik) tokens, where s_ij is
// the chance that the first j drafts of sequence i are right, and takes
//
//   forward(n + Σk) + head(n + Σk) + other(n)                    the target verifies
//   + follow(tokens taken in) + Σ_j guess(n_j) + Σ_{j>1} chain(n_j)    n_j sequences draft that
//   deep
//
// Drafts are worth their survival, so they are added to the batch in that order, and of all the
// prefixes (and of the equal lengths 1 … K) the best is taken. A sequence that starts to draft
// after a pause, or at the end of its prompt, must take in all it missed: that counts too, spread
// over what it is likely to generate still. No drafts at all is preferred unless drafts promise
// clearly more.
//
// What is not tried is not known, be it drafts, no drafts or another length: now and then some
// seats get, for a few steps, the equal length that could gain most if costs and acceptance were as
// good as they may be, for all that is known of them. Such trials may lose a small share of the
// time. Their first steps count only where they are much cheaper than thought: right after a change
// caches hold other weights. On the bundled model a step without drafts takes 0.5 ms after one with
// drafts, 0.25 after seven of its kind and 0.20 in a long row, so trials of none are long.
//
// Pure: durations come from outside, the same calls give the same answers. Engine thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sched/acceptance.h"
#include "sched/draft_policy.h"
#include "sched/step_costs.h"

namespace eyrie::sched {

struct DraftSizerConfig {
  int32_t num_speculative_tokens = 1;  // K
  StepCosts costs = {};                // from the calibration
  // The draft takes every position in at once, whether it proposes or not: it costs what it costs.
  bool draft_always_follows = false;
  // False where a proposer may have nothing to propose: what a fixed length would have given is not
  // known then.
  bool keeps_account = true;
};

// What decoding took, beside what it would have taken with each fixed number of drafts, by costs
// and acceptance as they were known at the time. Steps with prompt chunks are left out.
struct DraftAccount {
  int64_t num_tokens = 0;
  double seconds = 0;
  std::vector<double> fixed_seconds;  // [K + 1], for the same tokens; empty: not kept
};

class DraftSizer final : public DraftPolicy {
 public:
  explicit DraftSizer(const DraftSizerConfig& config);

  void choose(std::span<DraftSeat> seats) override;
  // Rather not: what a sequence missed, its prompt too, is taken in when it begins to draft, so
  // that its price is always weighed.
  bool follows_always() const override { return draft_always_follows_; }
  void note_verified(DraftRecord& record, int32_t num_drafts, int32_t num_accepted) override {
    acceptance_.note(record, num_drafts, num_accepted);
  }
  void note_finished(int32_t num_generated) override;
  void note_step(const StepTimes& times, int32_t num_tokens, bool only_decoding) override;

  const StepCosts& costs() const { return costs_; }
  const Acceptance& acceptance() const { return acceptance_; }
  const DraftAccount& account() const { return account_; }

 private:
  // As it is known, or as good as it may be.
  enum class Outlook { kExpected, kHoped };
  // A batch in the making.
  struct Cycle {
    double tokens = 0;
    double followed = 0;  // entries the draft takes in, but what was missed before
    int32_t num_drafts = 0;
    double catching_up_seconds = 0;
    double seconds = 0;
    double rate() const { return tokens / seconds; }
  };
  struct Candidate {
    float survival;
    int32_t seat_idx;
    int32_t depth;  // 0-based
  };

  static double cost(const CostCurve& curve, double rows, Outlook outlook);
  void begin_cycle(std::span<const DraftSeat> seats);
  void add_draft(Cycle& cycle, int32_t depth, double survival, double catching_up);
  double seconds_of(const Cycle& cycle, Outlook outlook) const;
  int32_t num_missed(const DraftSeat& seat) const;
  double catching_up(const DraftSeat& seat) const;
  Cycle empty_cycle();
  Cycle plain_cycle();
  Cycle try_equal_lengths(std::span<const DraftSeat> seats, int32_t& best_length);
  Cycle try_prefixes(std::span<const DraftSeat> seats, size_t& best_prefix);
  void try_out(std::span<DraftSeat> seats, const Cycle& chosen);
  bool find_trial(std::span<const DraftSeat> seats);
  void go_on_trying(std::span<DraftSeat> seats, const Cycle& chosen);
  void choose_trial(std::span<DraftSeat> seats, const Cycle& chosen);
  void put_on_trial(std::span<const DraftSeat> seats);
  Cycle trial_cycle(std::span<const DraftSeat> seats, int32_t length, Outlook outlook);
  double trial_loss(std::span<const DraftSeat> seats, int32_t length, const Cycle& chosen);
  bool settled(const StepTimes& times, bool only_decoding);

  const int32_t max_drafts_;
  const bool draft_always_follows_;
  StepCosts costs_;
  Acceptance acceptance_;
  DraftAccount account_;
  double mean_generated_ = 128;  // of finished sequences
  int64_t num_choices_ = 0, num_seat_steps_ = 0;
  double allowance_ = 0;  // seconds that trials may lose
  double best_loss_ = 0;  // of the next step of the trial that is waited for
  int32_t trial_length_ = 0;
  bool verified_drafts_ = false;  // the last step, and so many before it alike
  int32_t num_alike_ = 0;

  // Of the step being planned.
  int32_t num_seats_ = 0;
  std::vector<int32_t> depth_counts_;  // of the cycle in the making
  std::vector<float> survival_;        // [seat][depth]
  std::vector<double> catching_up_;    // [seat]
  std::vector<Candidate> candidates_;
  std::vector<double> equal_rates_;  // tokens a second with k = 0 … K for every seat
  std::vector<char> on_trial_;       // [seat]
};

}  // namespace eyrie::sched
