// One sequence as the scheduler keeps it: its known tokens, how many of them have KV, the drafts to
// verify next, and the blocks it holds. Owned by the scheduler, engine thread only.
//
//   tokens        t_0 … t_{c-1} | t_c … t_{N-1} |  d_1 … d_k      N = tokens.size()
//                 KV written    | to compute    |  drafts         c = num_computed_tokens <= N - 1
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kv/block_pool.h"
#include "sched/draft_policy.h"
#include "sched/request.h"

namespace eyrie::sched {

struct Sequence {
  NewSequence request;  // its prompt has moved into tokens
  int64_t arrival = 0;  // counts add() calls
  int32_t num_prompt_tokens = 0;
  std::vector<TokenId> tokens;  // prompt and generated
  std::vector<TokenId> draft_tokens;
  DraftRecord draft_record;
  int32_t num_computed_tokens = 0;
  int32_t num_published_blocks = 0;  // of blocks, in the prefix cache
  kv::BlockList blocks;
  int32_t num_cached_tokens = 0;
  int32_t num_preemptions = 0;
  bool was_admitted = false;  // at least once
  bool is_running = false;
  bool is_in_flight = false;  // has a row in the plan being executed
  bool is_dropped = false;    // abort or finish while in flight: removed by update()

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_generated() const { return num_tokens() - num_prompt_tokens; }
  // Tokens that may still be appended; at least 1 while the sequence lives.
  int32_t num_remaining(int32_t max_model_len) const {
    return std::min(request.max_tokens - num_generated(), max_model_len - num_tokens());
  }
  bool goes_before(const Sequence& other) const {
    if (request.priority != other.request.priority) {
      return request.priority < other.request.priority;
    }
    return arrival < other.arrival;
  }
};

}  // namespace eyrie::sched
