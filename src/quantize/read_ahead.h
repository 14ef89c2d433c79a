// Reads tensors ahead of their use, in order, past the system's page cache: the disk is busy while
// the cores encode, and the bytes land in memory that is used again and again (pages of a mapping
// would be new ones each time, which costs a core more than encoding them). Several reader threads,
// because one read at a time leaves a modern disk idle; at most kWindow bytes wait or are on their
// way. Where the file system cannot read that way, it reads plainly.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tensor/tensor.h"

namespace eyrie::quantize {

class ReadAhead {
 public:
  static constexpr size_t kWindow = size_t{320} << 20;
  static constexpr int kReaders = 4;

  struct Range {
    size_t file = 0;    // index into the paths
    size_t offset = 0;  // in the file
    size_t bytes = 0;
  };

  // Error names the file when one cannot be opened.
  ReadAhead(const std::vector<std::string>& paths, std::vector<Range> in_order_of_use);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // The next range's bytes, valid until the next call. Empty where they are not at hand (a tensor
  // larger than the window, a failed read): the caller has the mapping.
  std::span<const std::byte> next();

 private:
  struct Piece {
    Buffer memory;
    size_t begin = 0;  // in memory
    size_t bytes = 0;  // of the range; 0 when it was not read
    size_t held = 0;   // of the window
    bool is_ready = false;
  };
  void loop();
  // Waits for room and claims the next range: false when there is none, or on the way out.
  bool claim(Range* range, Piece** piece);
  bool read(const Range& range, Piece* piece) const;
  Buffer take_memory(size_t bytes);

  std::vector<Range> ranges_;
  std::vector<int> fds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t num_claimed_ = 0;    // of ranges_
  std::deque<Piece> pieces_;  // claimed and not yet taken, in order; threads hold their addresses
  std::vector<Buffer> idle_;  // memory to use again
  Piece current_;
  size_t held_bytes_ = 0;  // of pieces_
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace eyrie::quantize
