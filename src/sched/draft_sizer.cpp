#include "sched/draft_sizer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace eyrie::sched {
namespace {

// Drafts must promise this much more than none: the costs are not known better.
constexpr double kClearlyMore = 1.02;
// Of the time goes to exploring, at most; and a depth is known after so many trials.
constexpr double kExploreShare = 0.01;
constexpr float kKnownTrials = 4;
// If drafts were this good and still did not pay, there is nothing to find out.
constexpr double kBestHope = 0.97;
// Drafts that are nearly never reached are not considered.
constexpr double kLeastSurvival = 0.02;
// How slowly means over finished sequences move.
constexpr double kSequenceRate = 0.05;

}  // namespace

DraftSizer::DraftSizer(const DraftSizerConfig& config)
    : max_drafts_(config.num_speculative_tokens),
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
  for (size_t i = 0; i < seats.size(); ++i) {
    double survival = 1;
    for (int32_t depth = 0; depth < seats[i].max_drafts; ++depth) {
      survival *= acceptance_.conditional(*seats[i].record, depth);
      survival_[i * K + static_cast<size_t>(depth)] = static_cast<float>(survival);
    }
  }
}

double DraftSizer::seconds_of(const Cycle& cycle) const {
  const double n = num_seats_ + cycle.num_drafts;
  double seconds =
      costs_.forward.at(n) + costs_.head.at(n) + costs_.other.at(num_seats_) + cycle.pass_seconds;
  if (cycle.followed > 0) seconds += costs_.follow.at(cycle.followed);
  return std::max(seconds, 1e-9);
}

// Entries the draft has to take in first, for each token that the sequence will still generate.
double DraftSizer::missed_entries(const DraftSeat& seat) const {
  const double missed = seat.record->num_behind + seat.num_known - 1;
  return missed / std::max(1.0, std::min<double>(seat.num_remaining, mean_generated_));
}

void DraftSizer::add_draft(Cycle& cycle, int32_t depth, double survival, double missed) {
  const auto pass_seconds = [&](int32_t rows) {
    if (rows == 0) return 0.0;
    return costs_.guess.at(rows) + (depth > 0 ? costs_.chain.at(rows) : 0.0);
  };
  int32_t& rows = depth_counts_[static_cast<size_t>(depth)];
  cycle.pass_seconds += pass_seconds(rows + 1) - pass_seconds(rows);
  ++rows;
  ++cycle.num_drafts;
  cycle.tokens += survival;
  cycle.followed += ((depth == 0 ? 1 : 0) + survival) * (1 + missed);
}

DraftSizer::Cycle DraftSizer::plain_cycle() {
  std::ranges::fill(depth_counts_, 0);
  Cycle cycle{.tokens = static_cast<double>(num_seats_)};
  cycle.seconds = seconds_of(cycle);
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
      add_draft(cycle, length - 1, survival_[i * K + static_cast<size_t>(length) - 1],
                missed_entries(seats[i]));
    }
    cycle.seconds = seconds_of(cycle);
    if (cycle.rate() > best.rate()) {
      best = cycle;
      best_length = length;
    }
    // The account is of decoding alone: nothing missed.
    Cycle steady = cycle;
    steady.followed = cycle.num_drafts > 0 ? cycle.tokens : 0;
    equal_rates_[static_cast<size_t>(length)] = cycle.tokens / seconds_of(steady);
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
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const Candidate& candidate = candidates_[i];
    add_draft(cycle, candidate.depth, static_cast<double>(candidate.survival),
              missed_entries(seats[static_cast<size_t>(candidate.seat_idx)]));
    cycle.seconds = seconds_of(cycle);
    if (cycle.rate() > best.rate()) {
      best = cycle;
      best_prefix = i + 1;
    }
  }
  return best;
}

void DraftSizer::choose(std::span<DraftSeat> seats, int32_t /*num_other_tokens*/) {
  if (seats.empty()) return;
  acceptance_.forget_a_little();
  begin_cycle(seats);
  const double plain_rate = plain_cycle().rate();
  int32_t length = 0;
  Cycle best = try_equal_lengths(seats, length);
  size_t prefix = 0;
  const Cycle by_survival = try_prefixes(seats, prefix);
  const bool equal = best.rate() > by_survival.rate();
  if (!equal) best = by_survival;
  for (DraftSeat& seat : seats) seat.num_drafts = 0;
  if (best.rate() < kClearlyMore * plain_rate) {
    best = plain_cycle();
  } else if (equal) {
    for (DraftSeat& seat : seats) seat.num_drafts = std::min(length, seat.max_drafts);
  } else {
    for (size_t i = 0; i < prefix; ++i) {
      ++seats[static_cast<size_t>(candidates_[i].seat_idx)].num_drafts;
    }
  }
  explore(seats, best);
}

// One more draft for the sequence where it is cheapest to learn something, when the allowance pays
// for what it is expected to lose.
void DraftSizer::explore(std::span<DraftSeat> seats, const Cycle& chosen) {
  allowance_ += kExploreShare * chosen.seconds;
  std::ranges::fill(depth_counts_, 0);
  const auto missed_by = [](const DraftSeat& seat) {
    return seat.num_drafts > 0 ? 0 : seat.record->num_behind + seat.num_known - 1;
  };
  size_t target = seats.size();
  for (size_t i = 0; i < seats.size(); ++i) {
    const DraftSeat& seat = seats[i];
    for (int32_t depth = 0; depth < seat.num_drafts; ++depth) {
      ++depth_counts_[static_cast<size_t>(depth)];
    }
    const auto next = static_cast<size_t>(seat.num_drafts);
    if (seat.num_drafts >= seat.max_drafts) continue;
    if (next < seat.record->tried.size() && seat.record->tried[next] >= kKnownTrials) continue;
    if (target == seats.size() || missed_by(seat) < missed_by(seats[target])) target = i;
  }
  if (target == seats.size()) return;

  DraftSeat& seat = seats[target];
  const auto K = static_cast<size_t>(max_drafts_);
  const int32_t depth = seat.num_drafts;
  const auto survival_at = [&](int32_t d) {
    return d < 0 ? 1.0 : static_cast<double>(survival_[target * K + static_cast<size_t>(d)]);
  };

  // The loss of one draft, all that was missed counted at once.
  Cycle tried = chosen;
  tried.followed += missed_by(seat);
  add_draft(tried, depth, survival_at(depth), 0);
  const double loss = seconds_of(tried) - chosen.seconds - survival_at(depth) / chosen.rate();

  // What it could bring at best, to any depth.
  Cycle hoped = chosen;
  bool possible = false;
  double survival = survival_at(depth - 1);
  --depth_counts_[static_cast<size_t>(depth)];
  for (int32_t d = depth; d < seat.max_drafts && !possible; ++d) {
    survival *= kBestHope;
    add_draft(hoped, d, survival, depth == 0 ? missed_entries(seat) : 0);
    possible = hoped.tokens / seconds_of(hoped) > chosen.rate();
  }
  if (!possible) return;
  if (allowance_ >= loss) {
    allowance_ -= std::max(loss, 0.0);
    ++seat.num_drafts;
  }
  // Saved for one trial, not for a storm of them.
  allowance_ = std::min(allowance_, std::max(loss, 0.0));
}

void DraftSizer::note_finished(int32_t num_generated) {
  mean_generated_ += kSequenceRate * (num_generated - mean_generated_);
}

void DraftSizer::note_step(const StepTimes& times, int32_t num_tokens, bool only_decoding) {
  costs_.observe(times);
  if (!only_decoding || num_tokens == 0 || account_.fixed_seconds.empty()) return;
  account_.num_tokens += num_tokens;
  account_.seconds += times.total_seconds();
  for (size_t k = 0; k < account_.fixed_seconds.size(); ++k) {
    if (equal_rates_[k] > 0) account_.fixed_seconds[k] += num_tokens / equal_rates_[k];
  }
}

}  // namespace eyrie::sched
