// A model for the simulation whose KV cache can be checked. A slot remembers which token was
// written there and a hash of everything before it, so a wrong block, a lost write, a second writer
// or a rejected draft that stayed behind shows as a broken chain. The next token is a pure function
// of that hash: whatever the scheduler does, the text must come out as continue_alone() says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "kv/block_pool.h"
#include "sched/step_plan.h"

namespace eyrie::sim {

using sched::RowResult;
using sched::SequenceId;
using sched::StepPlan;
using sched::StepRow;
using sched::TokenId;

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15 + (a << 6) + (a >> 2))) * 0xFF51AFD7ED558CCD;
  return x ^ (x >> 29);
}

inline constexpr uint64_t kEmptyPrefix = 0x5EED;
inline constexpr TokenId kVocabSize = 40;

inline uint64_t hash_of(std::span<const TokenId> tokens) {
  uint64_t hash = kEmptyPrefix;
  for (const TokenId token : tokens) hash = mix(hash, static_cast<uint64_t>(token));
  return hash;
}

inline TokenId next_token(uint64_t prefix_hash) {
  return static_cast<TokenId>(mix(prefix_hash, 1) % kVocabSize);
}

class FakeModel {
 public:
  // draft_accuracy: how often, per token, the draft says what the target will say.
  FakeModel(const kv::BlockPool& pool, double draft_accuracy, bool draft_keeps_kv)
      : pool_(pool),
        block_size_(pool.block_size()),
        draft_keeps_kv_(draft_keeps_kv),
        accuracy_per_mille_(static_cast<uint64_t>(draft_accuracy * 1000)),
        slots_(static_cast<size_t>(pool.num_blocks()) * static_cast<size_t>(pool.block_size())) {}

  std::vector<RowResult> execute(const StepPlan& plan) {
    writer_.clear();
    std::vector<RowResult> results;
    for (const StepRow& row : plan.rows) claim_slots(row);
    for (const StepRow& row : plan.rows) results.push_back(execute(row));
    return results;
  }

  // Every published block holds the tokens that the pool says, on a true chain from its parent.
  void check_published() const {
    for (kv::BlockId id = 0; id < pool_.num_blocks(); ++id) {
      const auto tokens = pool_.published_tokens(id);
      for (size_t offset = 0; offset < tokens.size(); ++offset) {
        const Slot& slot = slots_[static_cast<size_t>(id * block_size_) + offset];
        CHECK_EQ(slot.token, tokens[offset]);
        if (offset > 0) {
          const Slot& before = slots_[static_cast<size_t>(id * block_size_) + offset - 1];
          CHECK_EQ(slot.prefix_hash, mix(before.prefix_hash, static_cast<uint64_t>(slot.token)));
        }
      }
    }
  }

 private:
  struct Slot {
    TokenId token = -1;
    uint64_t prefix_hash = 0;  // of all tokens up to and including this one
    uint64_t draft_hash =
        0;  // prefix_hash and the token after it: what the draft's entry depends on
  };

  Slot& slot(const StepRow& row, int32_t position) {
    const auto block_idx = static_cast<size_t>(position / block_size_);
    CHECK_LT(block_idx, row.block_table.size());
    return slots_[static_cast<size_t>(row.block_table[block_idx] * block_size_ +
                                      position % block_size_)];
  }

  static int32_t num_slots_written(const StepRow& row, bool draft_keeps_kv) {
    const int32_t num_lookahead = std::max(0, row.num_drafts_to_propose - 1);
    return row.first_position + row.num_tokens + (draft_keeps_kv ? num_lookahead : 0);
  }

  // What a row writes is its own: no other row writes there, nobody else holds it or can find it.
  void claim_slots(const StepRow& row) {
    const int32_t end = num_slots_written(row, draft_keeps_kv_);
    for (int32_t idx = row.first_position / block_size_; idx * block_size_ < end; ++idx) {
      CHECK_LT(static_cast<size_t>(idx), row.block_table.size());
      const kv::BlockId id = row.block_table[static_cast<size_t>(idx)];
      CHECK(writer_.emplace(id, row.seq_id).second, "block {} has two writers", id);
      CHECK_EQ(pool_.num_references(id), 1);
      CHECK(pool_.published_tokens(id).empty(), "writes to published block {}", id);
    }
  }

  // Attention reads every earlier slot; so do we.
  uint64_t read_prefix(const StepRow& row) {
    uint64_t hash = kEmptyPrefix;
    for (int32_t position = 0; position < row.first_position; ++position) {
      const Slot& read = slot(row, position);
      hash = mix(hash, static_cast<uint64_t>(read.token));
      CHECK(read.prefix_hash == hash, "seq {}: wrong KV at {}", row.seq_id, position);
      if (!draft_keeps_kv_) continue;
      const TokenId next =
          position + 1 < row.first_position ? slot(row, position + 1).token : row.tokens.front();
      CHECK(read.draft_hash == mix(hash, static_cast<uint64_t>(next)),
            "seq {}: wrong draft KV at {}", row.seq_id, position);
    }
    return hash;
  }

  RowResult execute(const StepRow& row) {
    RowResult result{.seq_id = row.seq_id, .sampled = {}, .proposed = {}};
    uint64_t hash = read_prefix(row);
    CHECK_EQ(static_cast<int32_t>(row.tokens.size()), row.num_tokens);
    const int32_t num_known = row.num_tokens - row.num_draft_tokens;
    int32_t num_good = row.num_tokens;  // positions of this row that stay
    for (int32_t idx = 0; idx < row.num_tokens; ++idx) {
      const TokenId token = row.tokens[static_cast<size_t>(idx)];
      if (idx >= num_known) {  // a draft: verify it against what the target says here
        const TokenId expected = next_token(hash);
        result.sampled.push_back(expected);
        if (token != expected) {
          num_good = idx;
          break;
        }
      }
      hash = mix(hash, static_cast<uint64_t>(token));
      slot(row, row.first_position + idx) = {.token = token, .prefix_hash = hash, .draft_hash = 0};
    }
    const bool all_good = num_good == row.num_tokens;
    if (row.samples && all_good) result.sampled.push_back(next_token(hash));
    for (int32_t idx = num_good; idx < row.num_tokens; ++idx) {  // computed from a wrong draft
      slot(row, row.first_position + idx) = {.token = -7, .prefix_hash = 7, .draft_hash = 7};
    }
    if (row.samples) hash = mix(hash, static_cast<uint64_t>(result.sampled.back()));
    write_draft_entries(row, num_good, row.samples ? result.sampled.back() : row.next_token);
    propose(row, row.first_position + num_good + 1, hash, result.proposed);
    return result;
  }

  // The catch-up of a draft model: entry i couples what the target knew at i with token i + 1.
  void write_draft_entries(const StepRow& row, int32_t num_good, TokenId last) {
    for (int32_t idx = 0; idx < num_good; ++idx) {
      const int32_t position = row.first_position + idx;
      const TokenId next = idx + 1 < num_good ? row.tokens[static_cast<size_t>(idx) + 1] : last;
      Slot& entry = slot(row, position);
      entry.draft_hash = mix(entry.prefix_hash, static_cast<uint64_t>(next));
    }
  }

  // Drafts follow the target's own continuation, each spoiled with the chance that it is wrong. The
  // draft's later entries go to positions num_tokens - 1 … num_tokens + p - 3.
  void propose(const StepRow& row, int32_t num_tokens, uint64_t hash,
               std::vector<TokenId>& proposed) {
    for (int32_t idx = 0; idx < row.num_drafts_to_propose; ++idx) {
      TokenId token = next_token(hash);
      if (mix(hash, 2) % 1000 >= accuracy_per_mille_) token = (token + 1) % kVocabSize;
      proposed.push_back(token);
      hash = mix(hash, static_cast<uint64_t>(token));
      if (idx > 0 && draft_keeps_kv_) slot(row, num_tokens - 2 + idx).draft_hash = 9;
    }
  }

  const kv::BlockPool& pool_;
  const int32_t block_size_;
  const bool draft_keeps_kv_;
  const uint64_t accuracy_per_mille_;
  std::vector<Slot> slots_;
  std::map<kv::BlockId, SequenceId> writer_;
};

}  // namespace eyrie::sim
