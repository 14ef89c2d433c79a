#include "sched/step_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

namespace eyrie::sched {

// One line a row, in the words of the header:
//   step 4: 2 rows, 5 tokens, preempted [9]
//     seq 1: 3 tokens at 16 (2 drafts), samples, propose 2, tokens [5, 6, 7], blocks [0, 1]
std::string StepPlan::to_string() const {
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "step {}: {} rows, {} tokens", step, rows.size(), num_tokens);
  if (!preempted.empty()) fmt::format_to(out, ", preempted {}", preempted);
  text += '\n';
  for (const StepRow& row : rows) {
    fmt::format_to(out, "  seq {}: {} tokens at {}", row.seq_id, row.num_tokens,
                   row.first_position);
    if (row.num_draft_tokens > 0) fmt::format_to(out, " ({} drafts)", row.num_draft_tokens);
    if (row.samples) fmt::format_to(out, ", samples");
    if (row.num_drafts_to_propose > 0)
      fmt::format_to(out, ", propose {}", row.num_drafts_to_propose);
    if (row.draft_waits) fmt::format_to(out, ", draft waits");
    fmt::format_to(out, ", tokens {}", row.tokens);
    if (row.next_token >= 0) fmt::format_to(out, " then {}", row.next_token);
    fmt::format_to(out, ", blocks {}\n", row.block_table);
  }
  return text;
}

}  // namespace eyrie::sched
