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

ReadAhead::ReadAhead(const std::vector<std::string>& paths, std::vector<Range> in_order_of_use)
    : ranges_(std::move(in_order_of_use)) {
  for (const std::string& path : paths) {
    int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd < 0) fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      const int error = errno;
      for (const int opened : fds_) ::close(opened);
      fail("cannot read {}: {}", path, std::strerror(error));
    }
    fds_.push_back(fd);
  }
  for (int i = 0; i < kReaders; ++i) threads_.emplace_back([this] { loop(); });
}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  for (const int fd : fds_) ::close(fd);
}

std::span<const std::byte> ReadAhead::next() {
  std::unique_lock lock(mutex_);
  if (current_.memory.bytes() > 0) idle_.push_back(std::move(current_.memory));
  changed_.wait(lock, [&] { return !pieces_.empty() && pieces_.front().is_ready; });
  current_ = std::move(pieces_.front());
  pieces_.pop_front();
  held_bytes_ -= current_.held;
  lock.unlock();
  changed_.notify_all();
  if (current_.bytes == 0) return {};
  return {current_.memory.data() + current_.begin, current_.bytes};
}

void ReadAhead::loop() {
  Range range;
  Piece* piece = nullptr;
  while (claim(&range, &piece)) {
    if (piece->held > 0 && read(range, piece)) piece->bytes = range.bytes;
    {
      const std::lock_guard lock(mutex_);
      piece->is_ready = true;
    }
    changed_.notify_all();
  }
}

bool ReadAhead::claim(Range* range, Piece** piece) {
  std::unique_lock lock(mutex_);
  const auto bytes = [&] {  // of the next range, in the window; 0: it is not read
    const size_t size = ranges_[num_claimed_].bytes;
    return size <= kWindow ? size : 0;
  };
  changed_.wait(lock, [&] {
    return stop_ || num_claimed_ == ranges_.size() || held_bytes_ + bytes() <= kWindow;
  });
  if (stop_ || num_claimed_ == ranges_.size()) return false;
  pieces_.emplace_back();
  *piece = &pieces_.back();
  (*piece)->held = bytes();
  if (bytes() > 0) (*piece)->memory = take_memory(bytes() + 3 * kAlignment);
  held_bytes_ += bytes();
  *range = ranges_[num_claimed_++];
  return true;
}

bool ReadAhead::read(const Range& range, Piece* piece) const {
  const auto address = reinterpret_cast<uintptr_t>(piece->memory.data());
  const size_t padding = up(address) - address;
  const size_t first = down(range.offset), last = up(range.offset + range.bytes);
  const size_t needed = range.offset + range.bytes - first;
  size_t done = 0;
  while (done < needed) {  // the file's end cuts the last block short
    const ssize_t count = ::pread(fds_[range.file], piece->memory.data() + padding + done,
                                  last - first - done, static_cast<off_t>(first + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  piece->begin = padding + (range.offset - first);
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
