// How often drafts are right, by position: the chance that draft j is accepted given that those
// before it were. Every sequence has its own record (text differs: sums are easy, talk is not),
// which starts from what holds for everybody; both forget slowly.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/draft_policy.h"

namespace eyrie::sched {

class Acceptance {
 public:
  explicit Acceptance(int32_t num_positions);

  double conditional(const DraftRecord& record, int32_t position) const;
  // What it may be at best: nearly all drafts are right, where this sequence has hardly tried.
  double hopeful(const DraftRecord& record, int32_t position) const;
  double of_everybody(int32_t position) const { return means_[static_cast<size_t>(position)]; }
  // A step went by: what holds for everybody is a little less certain.
  void forget_a_little();
  void note(DraftRecord& record, int32_t num_drafts, int32_t num_accepted);

 private:
  void refresh_means();

  std::vector<double> tried_, accepted_;
  std::vector<double> means_;
};

}  // namespace eyrie::sched
