// What the draft model has not taken in yet: while a sequence does not draft, the target's features
// of its positions are kept here (bfloat16) instead of going through the draft, so that a pause
// costs a copy, and a later draft loses nothing. Kept by cache slot, as the KV is: whoever holds a
// block through the prefix cache finds what its first owner left waiting.
//
// A bounded number of blocks can wait; beyond it the longest waiting ones are lost. Their entries
// in the draft's cache become zeros, and drafts that read them may be worse (never the output).
// Owned by the runner, engine thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/kv_storage.h"

namespace eyrie::runtime {

class DraftBacklog {
 public:
  // Room for at least one block and at most max_bytes or every block of the cache.
  DraftBacklog(KvStorage& kv, int64_t width, int64_t max_bytes);

  int64_t slot_of(const int32_t* block_table, int32_t position) const {
    const int32_t block_size = kv_.block_size();
    return int64_t{block_table[position / block_size]} * block_size + position % block_size;
  }
  // The position in this slot waits with these features; its older ones are forgotten.
  void put_off(int64_t slot, std::span<const float> features);
  // The draft writes this slot now.
  void take_in(int64_t slot);
  bool waits(int64_t slot) const { return waits_[static_cast<size_t>(slot)]; }
  int32_t num_waiting_in(int64_t block) const { return num_waiting_[static_cast<size_t>(block)]; }
  void read(int64_t slot, std::span<float> features) const;

  int64_t num_lost() const { return num_lost_; }  // positions, since the start
  int64_t bytes() const { return static_cast<int64_t>(memory_.bytes()); }

 private:
  bf16* features_of(int64_t slot) const;
  void give_room(int64_t block);
  void forget(int64_t block);

  KvStorage& kv_;
  int64_t width_;
  Buffer memory_;                    // [rooms][block_size][width]
  std::vector<int64_t> room_owner_;  // block, or -1
  std::vector<int32_t> free_rooms_;
  size_t oldest_ = 0;                 // where the search for a room to take away goes on
  std::vector<int32_t> room_of_;      // by block, -1: none
  std::vector<int32_t> num_waiting_;  // by block
  std::vector<bool> waits_;           // by slot
  int64_t num_lost_ = 0;
};

}  // namespace eyrie::runtime
