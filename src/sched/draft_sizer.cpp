#include "sched/draft_sizer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace eyrie::sched {
namespace {

// Drafts must promise this much more than none: the costs are not known better.
constexpr double kClearlyMore = 1.05;
// A sequence that begins to draft is likely to stop again before its end.
constexpr double kStaying = 0.6;
// Trials may lose this share of the time, more while this many tokens were made, and some tokens'
// time ahead of it. One is thought of every eighth step; its steps cost this share of one at least,
// and this share is nothing to choose by.
constexpr double kTrialShare = 0.01;
constexpr double kEarlyShare = 0.02;
constexpr int64_t kEarly = 1000;
constexpr double kCredit = 2;
constexpr int64_t kTrialEvery = 8;
constexpr double kLeastLoss = 0.02;
constexpr double kSmallLoss = 0.3;
constexpr double kSeldom = 1;
// After so many steps the cost of no drafts must have been seen in service.
constexpr int64_t kBeforeNone = 64;
constexpr double kFirst = 1e30;
// Of a trial's steps the first do not count yet.
constexpr int32_t kTrialSteps = 5;
constexpr int32_t kUnsettled = 2;
constexpr int32_t kPlainTrialSteps = 24;  // the weights of a plain step come back slowly
constexpr int32_t kPlainUnsettled = 12;
// Drafts that are nearly never reached are not considered.
constexpr double kLeastSurvival = 0.02;
// Of a wide batch not every prefix is looked at: costs do not change from one row to the next.
constexpr size_t kMostPrefixes = 48;
// How slowly means over finished sequences move.
constexpr double kSequenceRate = 0.05;

}  // namespace

double DraftSizer::cost(const CostCurve& curve, double rows, Outlook outlook) {
  return outlook == Outlook::kHoped ? curve.hopeful_at(rows) : curve.at(rows);
}

DraftSizer::DraftSizer(const DraftSizerConfig& config)
    : max_drafts_(config.num_speculative_tokens),
      draft_always_follows_(config.draft_always_follows),
      costs_(config.costs),
      acceptance_(config.num_speculative_tokens) {
  CHECK_GE(max_drafts_, 1);
  if (config.keeps_account) account_.fixed_seconds.resize(static_cast<size_t>(max_drafts_) + 1);
  depth_counts_.resize(static_cast<size_t>(max_drafts_));
  equal_rates_.resize(static_cast<size_t>(max_drafts_) + 1);
}

// Prompt chunks of the same steps are left out: they cost what they cost, whatever the drafts.
void DraftSizer::begin_cycle(std::span<const DraftSeat> seats) {
  num_seats_ = static_cast<int32_t>(seats.size());
  const auto K = static_cast<size_t>(max_drafts_);
  survival_.resize(seats.size() * K);
  catching_up_.resize(seats.size());
  for (size_t i = 0; i < seats.size(); ++i) {
    double survival = 1;
    for (int32_t depth = 0; depth < seats[i].max_drafts; ++depth) {
      survival *= acceptance_.conditional(*seats[i].record, depth);
      survival_[i * K + static_cast<size_t>(depth)] = static_cast<float>(survival);
    }
    catching_up_[i] = catching_up(seats[i]);
  }
}

double DraftSizer::seconds_of(const Cycle& cycle, Outlook outlook) const {
  const double n = num_seats_ + cycle.num_drafts;
  double seconds = cost(costs_.forward, n, outlook) + cost(costs_.head, n, outlook) +
                   cost(costs_.other, num_seats_, outlook) + cycle.catching_up_seconds;
  if (cycle.followed > 0) seconds += cost(costs_.follow, cycle.followed, outlook);
  for (size_t depth = 0; depth < depth_counts_.size() && depth_counts_[depth] > 0; ++depth) {
    seconds += cost(costs_.guess, depth_counts_[depth], outlook);
    if (depth > 0) seconds += cost(costs_.chain, depth_counts_[depth], outlook);
  }
  return std::max(seconds, 1e-9);
}

// Entries the draft has to take in before it can follow.
int32_t DraftSizer::num_missed(const DraftSeat& seat) const {
  return draft_always_follows_ ? 0 : seat.record->num_behind + seat.num_known - 1;
}

// Seconds that it takes at once, for each token of those that the sequence is likely to generate
// while it drafts. A row of hundreds may cost several times what one of a few costs.
double DraftSizer::catching_up(const DraftSeat& seat) const {
  const int32_t missed = num_missed(seat);
  if (missed == 0) return 0;
  const double expected = std::min<double>(seat.num_remaining, mean_generated_);
  return costs_.follow.at(missed) / std::max(1.0, kStaying * expected);
}

void DraftSizer::add_draft(Cycle& cycle, int32_t depth, double survival, double catching_up) {
  ++depth_counts_[static_cast<size_t>(depth)];
  ++cycle.num_drafts;
  cycle.tokens += survival;
  const double followed = survival + (depth == 0 && !draft_always_follows_ ? 1 : 0);
  cycle.followed += followed;
  cycle.catching_up_seconds += followed * catching_up;
}

DraftSizer::Cycle DraftSizer::empty_cycle() {
  std::ranges::fill(depth_counts_, 0);
  const double n = num_seats_;
  return {.tokens = n, .followed = draft_always_follows_ ? n : 0};
}

DraftSizer::Cycle DraftSizer::plain_cycle() {
  Cycle cycle = empty_cycle();
  cycle.seconds = seconds_of(cycle, Outlook::kExpected);
  return cycle;
}

DraftSizer::Cycle DraftSizer::try_equal_lengths(std::span<const DraftSeat> seats,
                                                int32_t& best_length) {
  Cycle cycle = plain_cycle();
  Cycle best = cycle;
  best_length = 0;
  equal_rates_[0] = cycle.rate();
  const auto K = static_cast<size_t>(max_drafts_);
  for (int32_t length = 1; length <= max_drafts_; ++length) {
    for (size_t i = 0; i < seats.size(); ++i) {
      if (seats[i].max_drafts < length) continue;
      add_draft(cycle, length - 1,
                static_cast<double>(survival_[i * K + static_cast<size_t>(length) - 1]),
                catching_up_[i]);
    }
    cycle.seconds = seconds_of(cycle, Outlook::kExpected);
    if (cycle.rate() > best.rate()) {
      best = cycle;
      best_length = length;
    }
    // The account is of decoding alone: nothing missed.
    equal_rates_[static_cast<size_t>(length)] =
        cycle.tokens / (cycle.seconds - cycle.catching_up_seconds);
  }
  return best;
}

DraftSizer::Cycle DraftSizer::try_prefixes(std::span<const DraftSeat> seats, size_t& best_prefix) {
  const auto K = static_cast<size_t>(max_drafts_);
  candidates_.clear();
  for (size_t i = 0; i < seats.size(); ++i) {
    for (int32_t depth = 0; depth < seats[i].max_drafts; ++depth) {
      const float survival = survival_[i * K + static_cast<size_t>(depth)];
      if (survival < kLeastSurvival) break;
      candidates_.push_back({survival, static_cast<int32_t>(i), depth});
    }
  }
  // A sequence's own drafts fall strictly in survival, so they stay in order.
  std::ranges::sort(candidates_, [](const Candidate& a, const Candidate& b) {
    return a.survival != b.survival ? a.survival > b.survival : a.seat_idx < b.seat_idx;
  });
  Cycle cycle = plain_cycle();
  Cycle best = cycle;
  best_prefix = 0;
  const size_t stride = std::max<size_t>(1, candidates_.size() / kMostPrefixes);
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const Candidate& candidate = candidates_[i];
    add_draft(cycle, candidate.depth, static_cast<double>(candidate.survival),
              catching_up_[static_cast<size_t>(candidate.seat_idx)]);
    if ((i + 1) % stride != 0 && i + 1 < candidates_.size()) continue;
    cycle.seconds = seconds_of(cycle, Outlook::kExpected);
    if (cycle.rate() > best.rate()) {
      best = cycle;
      best_prefix = i + 1;
    }
  }
  return best;
}

void DraftSizer::choose(std::span<DraftSeat> seats) {
  if (seats.empty()) return;
  acceptance_.forget_a_little();
  begin_cycle(seats);
  const Cycle plain = plain_cycle();
  int32_t length = 0;
  Cycle best = try_equal_lengths(seats, length);
  size_t prefix = 0;
  const Cycle by_survival = try_prefixes(seats, prefix);
  const bool equal = best.rate() > by_survival.rate();
  if (!equal) best = by_survival;
  for (DraftSeat& seat : seats) seat.num_drafts = 0;
  if (best.rate() < kClearlyMore * plain.rate()) {
    best = plain;
  } else if (equal) {
    for (DraftSeat& seat : seats) seat.num_drafts = std::min(length, seat.max_drafts);
  } else {
    for (size_t i = 0; i < prefix; ++i) {
      ++seats[static_cast<size_t>(candidates_[i].seat_idx)].num_drafts;
    }
  }
  try_out(seats, best);
}

void DraftSizer::try_out(std::span<DraftSeat> seats, const Cycle& chosen) {
  const double credit = kCredit * chosen.seconds / num_seats_;
  const double share = num_seat_steps_ < kEarly ? kEarlyShare : kTrialShare;
  // Saved for one trial, not for a storm of them.
  allowance_ = num_choices_ == 0
                   ? credit
                   : std::min(allowance_ + share * chosen.seconds, std::max(best_loss_, credit));
  num_seat_steps_ += num_seats_;
  if (find_trial(seats)) {
    go_on_trying(seats, chosen);
  } else if (num_choices_ % kTrialEvery == 0) {
    choose_trial(seats, chosen);
  }
  ++num_choices_;
}

// Seats whose trial goes on.
bool DraftSizer::find_trial(std::span<const DraftSeat> seats) {
  on_trial_.resize(seats.size());
  for (size_t i = 0; i < seats.size(); ++i) on_trial_[i] = seats[i].record->num_trial_steps > 0;
  return std::ranges::count(on_trial_, 1) > 0;
}

// Pays for the next step of a trial, by costs as they are known by then.
void DraftSizer::go_on_trying(std::span<DraftSeat> seats, const Cycle& chosen) {
  allowance_ -= trial_loss(seats, trial_length_, chosen);
  for (size_t i = 0; i < seats.size(); ++i) {
    if (!on_trial_[i]) continue;
    --seats[i].record->num_trial_steps;
    seats[i].num_drafts = std::min(trial_length_, seats[i].max_drafts);
  }
}

// Of all lengths the one with the best hope for what its first step is expected to lose, if it has
// any; it is waited for until the allowance pays.
void DraftSizer::choose_trial(std::span<DraftSeat> seats, const Cycle& chosen) {
  put_on_trial(seats);
  double best_value = 0;
  best_loss_ = 0;
  for (int32_t length = 0; length <= max_drafts_; ++length) {
    bool differs = false;
    for (size_t i = 0; i < seats.size(); ++i) {
      differs |= on_trial_[i] && std::min(length, seats[i].max_drafts) != seats[i].num_drafts;
    }
    if (!differs) continue;
    const double gain = trial_cycle(seats, length, Outlook::kHoped).rate() / chosen.rate() - 1;
    // What no drafts cost is asked again and again, whatever is thought of it, for never to be
    // slower than that is the promise; a whole trial is saved for.
    const bool must = length == 0 && num_choices_ > kBeforeNone &&
                      costs_.forward.times_seen(num_seats_) < kSeldom;
    if (gain <= 0 && !must) continue;
    const double loss = (must ? kPlainTrialSteps : 1) * trial_loss(seats, length, chosen);
    const double value = must ? kFirst : gain / (loss + kSmallLoss * chosen.seconds);
    if (value <= best_value) continue;
    best_value = value;
    best_loss_ = loss;
    trial_length_ = length;
  }
  if (best_value <= 0 || best_loss_ > allowance_) return;
  for (size_t i = 0; i < seats.size(); ++i) {
    if (!on_trial_[i]) continue;
    seats[i].record->num_trial_steps = trial_length_ == 0 ? kPlainTrialSteps : kTrialSteps;
  }
  go_on_trying(seats, chosen);
}

// The seats that draft, and of the others the one whose draft has least to take in.
void DraftSizer::put_on_trial(std::span<const DraftSeat> seats) {
  on_trial_.assign(seats.size(), 0);
  size_t nearest = seats.size();
  for (size_t i = 0; i < seats.size(); ++i) {
    if (seats[i].num_drafts > 0) {
      on_trial_[i] = 1;
    } else if (seats[i].max_drafts > 0 &&
               (nearest == seats.size() || num_missed(seats[i]) < num_missed(seats[nearest]))) {
      nearest = i;
    }
  }
  if (nearest < seats.size()) on_trial_[nearest] = 1;
}

// With `length` drafts for the seats on trial.
DraftSizer::Cycle DraftSizer::trial_cycle(std::span<const DraftSeat> seats, int32_t length,
                                          Outlook outlook) {
  const auto K = static_cast<size_t>(max_drafts_);
  Cycle cycle = empty_cycle();
  for (size_t i = 0; i < seats.size(); ++i) {
    const DraftSeat& seat = seats[i];
    const int32_t num_drafts = on_trial_[i] ? std::min(length, seat.max_drafts) : seat.num_drafts;
    const bool hopes = outlook == Outlook::kHoped && on_trial_[i];
    double survival = 1;
    for (int32_t depth = 0; depth < num_drafts; ++depth) {
      survival = hopes ? survival * acceptance_.hopeful(*seat.record, depth)
                       : static_cast<double>(survival_[i * K + static_cast<size_t>(depth)]);
      add_draft(cycle, depth, survival, hopes ? catching_up_[i] : 0);
    }
  }
  cycle.seconds = seconds_of(cycle, outlook);
  return cycle;
}

// Seconds that a step of the trial is expected to lose; what its seats missed counts at once.
double DraftSizer::trial_loss(std::span<const DraftSeat> seats, int32_t length,
                              const Cycle& chosen) {
  const Cycle expected = trial_cycle(seats, length, Outlook::kExpected);
  double loss = expected.seconds - expected.tokens / chosen.rate();
  int32_t missed = 0;
  for (size_t i = 0; i < seats.size(); ++i) {
    if (on_trial_[i] && length > 0 && seats[i].num_drafts == 0) missed += num_missed(seats[i]);
  }
  if (missed > 0) {
    loss += costs_.follow.at(expected.followed + missed) - costs_.follow.at(expected.followed);
  }
  return std::max(loss, kLeastLoss * chosen.seconds);
}

void DraftSizer::note_finished(int32_t num_generated) {
  mean_generated_ += kSequenceRate * (num_generated - mean_generated_);
}

// Whether the steps before this one were of its kind, with drafts to verify or without; prompts
// come in between where they come.
bool DraftSizer::settled(const StepTimes& times, bool only_decoding) {
  const bool verifies = times.num_logits > times.num_sequences;
  if (verifies != verified_drafts_ && (verifies || only_decoding)) {
    verified_drafts_ = verifies;
    num_alike_ = 0;
  }
  return num_alike_++ >= (verified_drafts_ ? kUnsettled : kPlainUnsettled);
}

void DraftSizer::note_step(const StepTimes& times, int32_t num_tokens, bool only_decoding) {
  const bool is_settled = settled(times, only_decoding);
  if (times.is_typical) costs_.observe(times, only_decoding, is_settled);
  if (!only_decoding || num_tokens == 0 || account_.fixed_seconds.empty()) return;
  account_.num_tokens += num_tokens;
  account_.seconds += times.total_seconds();
  for (size_t k = 0; k < account_.fixed_seconds.size(); ++k) {
    if (equal_rates_[k] > 0) account_.fixed_seconds[k] += num_tokens / equal_rates_[k];
  }
}

}  // namespace eyrie::sched
