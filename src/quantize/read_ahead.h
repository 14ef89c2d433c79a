// Asks the system for mapped bytes before they are needed, so that the disk reads while the cores
// encode. A thread of its own walks the pieces in their order of use, at most kWindow bytes ahead
// of what used() has reported. Advice only: bytes that are not there yet are read when touched.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace eyrie::quantize {

class ReadAhead {
 public:
  static constexpr size_t kWindow = size_t{256} << 20;

  explicit ReadAhead(std::vector<std::span<const std::byte>> in_order_of_use);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // That many bytes more, in the order given, have been dealt with. Any thread.
  void used(size_t bytes);

 private:
  void loop();

  std::vector<std::span<const std::byte>> pieces_;
  std::mutex mutex_;
  std::condition_variable moved_;
  size_t used_ = 0;  // bytes
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace eyrie::quantize
