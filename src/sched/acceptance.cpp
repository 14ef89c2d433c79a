#include "sched/acceptance.h"

#include <algorithm>

#include "base/check.h"

namespace eyrie::sched {
namespace {

// Before anything was tried: what published drafts reach at their first position, less a little.
constexpr double kFirstGuess = 0.75;
// A position nobody tried is as good as the one before it, less this.
constexpr double kDeeper = 0.97;
// How many trials the expectation counts as: for everybody, and for one sequence.
constexpr double kPriorOfAll = 8;
constexpr double kPriorOfOne = 6;
// Of everybody's trials about the last 500 count, of a sequence's the last 30.
constexpr double kFadeOfAll = 0.998;
constexpr float kFadeOfOne = 0.97F;
// Where next to nothing is drafted, old failures are forgotten in some 1000 steps: trying again
// takes a few drafts, never trying again could take all that speculation is good for.
constexpr double kFadeAStep = 0.999;
// Nothing is certain, or a full record would never be questioned.
constexpr double kMost = 0.995;
// The best to hope for, and after how many trials of a sequence hope ends.
constexpr double kBestHope = 0.97;
constexpr float kKnownTrials = 4;

}  // namespace

Acceptance::Acceptance(int32_t num_positions)
    : tried_(static_cast<size_t>(num_positions)),
      accepted_(static_cast<size_t>(num_positions)),
      means_(static_cast<size_t>(num_positions)) {
  refresh_means();
}

void Acceptance::refresh_means() {
  double expected = kFirstGuess;
  for (size_t j = 0; j < means_.size(); ++j) {
    means_[j] = (kPriorOfAll * expected + accepted_[j]) / (kPriorOfAll + tried_[j]);
    expected = means_[j] * kDeeper;
  }
}

void Acceptance::forget_a_little() {
  for (size_t j = 0; j < tried_.size(); ++j) {
    tried_[j] *= kFadeAStep;
    accepted_[j] *= kFadeAStep;
  }
  refresh_means();
}

double Acceptance::conditional(const DraftRecord& record, int32_t position) const {
  const auto j = static_cast<size_t>(position);
  double chance = means_[j];
  if (j < record.tried.size()) {
    chance = (kPriorOfOne * chance + static_cast<double>(record.accepted[j])) /
             (kPriorOfOne + static_cast<double>(record.tried[j]));
  }
  return std::min(chance, kMost);
}

double Acceptance::hopeful(const DraftRecord& record, int32_t position) const {
  const auto j = static_cast<size_t>(position);
  const bool known = j < record.tried.size() && record.tried[j] >= kKnownTrials;
  const double expected = conditional(record, position);
  return known ? expected : std::max(expected, kBestHope);
}

void Acceptance::note(DraftRecord& record, int32_t num_drafts, int32_t num_accepted) {
  CHECK(num_accepted <= num_drafts && num_drafts <= static_cast<int32_t>(tried_.size()));
  record.tried.resize(tried_.size());
  record.accepted.resize(tried_.size());
  // The first wrong draft was tried; those behind it were not.
  const auto num_tried = static_cast<size_t>(std::min(num_accepted + 1, num_drafts));
  for (size_t j = 0; j < num_tried; ++j) {
    const bool right = j < static_cast<size_t>(num_accepted);
    tried_[j] = tried_[j] * kFadeOfAll + 1;
    accepted_[j] = accepted_[j] * kFadeOfAll + (right ? 1 : 0);
    record.tried[j] = record.tried[j] * kFadeOfOne + 1;
    record.accepted[j] = record.accepted[j] * kFadeOfOne + (right ? 1 : 0);
  }
  refresh_means();
}

}  // namespace eyrie::sched
