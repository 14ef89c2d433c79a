#include "runtime/draft_backlog.h"

#include <algorithm>

namespace eyrie::runtime {

DraftBacklog::DraftBacklog(KvStorage& kv, int64_t width, int64_t max_bytes)
    : kv_(kv), width_(width) {
  CHECK_GT(width, 0);
  const int64_t room_bytes = kv.block_size() * width * static_cast<int64_t>(sizeof(bf16));
  const int64_t num_rooms = std::clamp<int64_t>(max_bytes / room_bytes, 1, kv.num_blocks());
  memory_ = Buffer(static_cast<size_t>(num_rooms * room_bytes));
  room_owner_.assign(static_cast<size_t>(num_rooms), -1);
  for (int64_t room = num_rooms; room-- > 0;) free_rooms_.push_back(static_cast<int32_t>(room));
  room_of_.assign(static_cast<size_t>(kv.num_blocks()), -1);
  num_waiting_.assign(static_cast<size_t>(kv.num_blocks()), 0);
  waits_.assign(static_cast<size_t>(kv.num_blocks() * kv.block_size()), false);
}

bf16* DraftBacklog::features_of(int64_t slot) const {
  const int64_t block = slot / kv_.block_size();
  const int64_t room = room_of_[static_cast<size_t>(block)];
  return memory_.as<bf16>() + (room * kv_.block_size() + slot % kv_.block_size()) * width_;
}

void DraftBacklog::put_off(int64_t slot, std::span<const float> features) {
  CHECK_EQ(static_cast<int64_t>(features.size()), width_);
  const int64_t block = slot / kv_.block_size();
  if (room_of_[static_cast<size_t>(block)] < 0) give_room(block);
  const float* from = features.data();
  bf16* kept = features_of(slot);
  for (int64_t i = 0; i < width_; ++i) kept[i] = to_bf16(from[i]);
  if (waits_[static_cast<size_t>(slot)]) return;
  waits_[static_cast<size_t>(slot)] = true;
  ++num_waiting_[static_cast<size_t>(block)];
}

void DraftBacklog::take_in(int64_t slot) {
  if (!waits_[static_cast<size_t>(slot)]) return;
  const int64_t block = slot / kv_.block_size();
  waits_[static_cast<size_t>(slot)] = false;
  if (--num_waiting_[static_cast<size_t>(block)] > 0) return;
  const int32_t room = std::exchange(room_of_[static_cast<size_t>(block)], -1);
  room_owner_[static_cast<size_t>(room)] = -1;
  free_rooms_.push_back(room);
}

void DraftBacklog::read(int64_t slot, std::span<float> features) const {
  CHECK(waits(slot), "slot {}", slot);
  const bf16* kept = features_of(slot);
  std::transform(kept, kept + width_, features.begin(), to_float);
}

// Rooms are taken away in turn, which is nearly the order in which they were given.
void DraftBacklog::give_room(int64_t block) {
  if (free_rooms_.empty()) {
    forget(room_owner_[oldest_]);
    oldest_ = (oldest_ + 1) % room_owner_.size();
  }
  const int32_t room = free_rooms_.back();
  free_rooms_.pop_back();
  room_of_[static_cast<size_t>(block)] = room;
  room_owner_[static_cast<size_t>(room)] = block;
}

void DraftBacklog::forget(int64_t block) {
  for (int64_t slot = block * kv_.block_size(); num_waiting_[static_cast<size_t>(block)] > 0;
       ++slot) {
    if (!waits(slot)) continue;
    kv_.clear_draft_slot(slot);
    ++num_lost_;
    take_in(slot);
  }
}

}  // namespace eyrie::runtime
