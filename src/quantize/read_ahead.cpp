#include "quantize/read_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace eyrie::quantize {
namespace {

constexpr size_t kPiece = size_t{8} << 20;  // bytes asked for at once

void ask_for(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size();
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

}  // namespace

ReadAhead::ReadAhead(std::vector<std::span<const std::byte>> in_order_of_use)
    : pieces_(std::move(in_order_of_use)), thread_([this] { loop(); }) {}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  moved_.notify_one();
  thread_.join();
}

void ReadAhead::used(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    used_ += bytes;
  }
  moved_.notify_one();
}

void ReadAhead::loop() {
  size_t asked = 0;  // bytes
  for (const std::span<const std::byte> tensor : pieces_) {
    for (size_t begin = 0; begin < tensor.size(); begin += kPiece) {
      const auto piece = tensor.subspan(begin, std::min(kPiece, tensor.size() - begin));
      std::unique_lock lock(mutex_);
      moved_.wait(lock, [&] { return stop_ || asked < used_ + kWindow; });
      if (stop_) return;
      const bool is_late = asked < used_;  // whoever needed it has read it himself
      lock.unlock();
      if (!is_late) ask_for(piece);
      asked += piece.size();
    }
  }
}

}  // namespace eyrie::quantize
