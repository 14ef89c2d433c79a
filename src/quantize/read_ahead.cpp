#include "quantize/read_ahead.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace eyrie::quantize {
namespace {

constexpr size_t kAlignment = 4096;  // of offset, length and memory, for reads past the page cache

size_t down(size_t n) { return n / kAlignment * kAlignment; }
size_t up(size_t n) { return down(n + kAlignment - 1); }

}  // namespace

ReadAhead::ReadAhead(const std::string& path, std::vector<Range> in_order_of_use)
    : ranges_(std::move(in_order_of_use)) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (fd_ < 0) fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) fail("cannot read {}: {}", path, std::strerror(errno));
  thread_ = std::thread([this] { loop(); });
}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  ::close(fd_);
}

std::span<const std::byte> ReadAhead::next() {
  std::unique_lock lock(mutex_);
  if (current_.memory.bytes() > 0) idle_.push_back(std::move(current_.memory));
  changed_.wait(lock, [&] { return !ready_.empty(); });
  current_ = std::move(ready_.front());
  ready_.pop_front();
  waiting_bytes_ -= current_.bytes;
  lock.unlock();
  changed_.notify_all();
  if (current_.bytes == 0) return {};
  return {current_.memory.data() + current_.begin, current_.bytes};
}

void ReadAhead::loop() {
  for (const Range& range : ranges_) {
    Piece piece;
    const bool fits = range.bytes > 0 && range.bytes <= kWindow;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return stop_ || !fits || waiting_bytes_ == 0 || waiting_bytes_ + range.bytes <= kWindow;
    });
    if (stop_) return;
    if (fits) piece.memory = take_memory(range.bytes + 3 * kAlignment);
    lock.unlock();
    if (!fits || !read(range, &piece)) piece.bytes = 0;
    lock.lock();
    waiting_bytes_ += piece.bytes;
    ready_.push_back(std::move(piece));
    lock.unlock();
    changed_.notify_all();
  }
}

bool ReadAhead::read(const Range& range, Piece* piece) const {
  const auto address = reinterpret_cast<uintptr_t>(piece->memory.data());
  const size_t padding = up(address) - address;
  const size_t first = down(range.offset), last = up(range.offset + range.bytes);
  const size_t needed = range.offset + range.bytes - first;
  size_t done = 0;
  while (done < needed) {  // the file's end cuts the last block short
    const ssize_t count = ::pread(fd_, piece->memory.data() + padding + done, last - first - done,
                                  static_cast<off_t>(first + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  piece->begin = padding + (range.offset - first);
  piece->bytes = range.bytes;
  return true;
}

// The smallest idle buffer that is large enough, else a new one.
Buffer ReadAhead::take_memory(size_t bytes) {
  auto best = idle_.end();
  for (auto it = idle_.begin(); it != idle_.end(); ++it) {
    if (it->bytes() >= bytes && (best == idle_.end() || it->bytes() < best->bytes())) best = it;
  }
  if (best == idle_.end()) {
    idle_.clear();
    return Buffer(bytes);
  }
  Buffer memory = std::move(*best);
  idle_.erase(best);
  return memory;
}

}  // namespace eyrie::quantize
