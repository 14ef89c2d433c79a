// Reads a file's tensors ahead of their use, in order, past the system's page cache: the disk is
// busy while the cores encode, and the bytes land in memory that is used again and again (pages of
// a mapping would be new ones each time, which costs a core more than encoding them). One reader
// thread; at most kWindow bytes wait. Where the file system cannot read that way, it reads plainly.
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
  static constexpr size_t kWindow = size_t{384} << 20;

  struct Range {
    size_t offset = 0;  // in the file
    size_t bytes = 0;
  };

  // Error names the file when it cannot be opened.
  ReadAhead(const std::string& path, std::vector<Range> in_order_of_use);
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
    size_t bytes = 0;
  };
  void loop();
  bool read(const Range& range, Piece* piece) const;
  Buffer take_memory(size_t bytes);

  std::vector<Range> ranges_;
  int fd_ = -1;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> ready_;
  std::vector<Buffer> idle_;  // memory to use again
  Piece current_;
  size_t waiting_bytes_ = 0;  // of ready_
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace eyrie::quantize
