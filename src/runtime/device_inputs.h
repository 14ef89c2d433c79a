// What a step needs from the host, in one copy: spans cut from a pinned block and from its mirror
// on the device, in the order of asking. The same requests give the same addresses, which is what a
// recorded step relies on. Owned by whoever enqueues the step; engine thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/math.h"
#include "ops/gpu/device.h"
#include "tensor/tensor.h"

namespace eyrie::runtime {

template <typename T>
struct DeviceSlot {
  std::span<T> host;    // write here before upload()
  std::span<T> device;  // give this to ops
};

class DeviceInputs {
 public:
  explicit DeviceInputs(size_t bytes)
      : host_(bytes, ops::gpu::pinned_memory()), device_(bytes, ops::gpu::device_memory()) {}

  // What was uploaded before must have been read by the device.
  void begin() { used_ = 0; }

  template <typename T>
  DeviceSlot<T> take(size_t count) {
    const auto bytes = static_cast<size_t>(align_up(static_cast<int64_t>(count * sizeof(T)), 16));
    CHECK(used_ + bytes <= host_.bytes(), "a step's inputs need {} bytes of {}", used_ + bytes,
          host_.bytes());
    const DeviceSlot<T> slot{{reinterpret_cast<T*>(host_.data() + used_), count},
                             {reinterpret_cast<T*>(device_.data() + used_), count}};
    used_ += bytes;
    return slot;
  }

  // All that was taken since begin().
  void upload(void* stream) const {
    ops::gpu::copy_to_device(device_.data(), host_.data(), used_, stream);
  }

 private:
  Buffer host_;
  Buffer device_;
  size_t used_ = 0;
};

// Row counts that steps are recorded for: powers of two and half-way between. A step of fewer rows
// runs as the next of them, its last rows belonging to nobody.
int32_t recorded_rows(int32_t rows);

// Sequences with their block tables on the device. The tables lie behind everything else that a
// step takes from `inputs`, as their size is not the recording's.
void take_tables(DeviceInputs& inputs, std::span<const ops::SequenceRows> sequences,
                 std::span<const int32_t> table_sizes, std::span<ops::SequenceRows> placed);

}  // namespace eyrie::runtime
