// What NVIDIA's management library says of a device while it works: for metrics and measurements.
// The library comes with the driver and is loaded when first asked for; this needs no CUDA and
// compiles into every program. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace eyrie::ops::gpu {

struct DeviceReading {
  double utilization = 0;         // 0…1: time in which a kernel ran, of the last second or so
  double memory_utilization = 0;  // 0…1: time in which memory was read or written
  uint64_t memory_used_bytes = 0;
  uint64_t memory_total_bytes = 0;
  double power_w = 0;
  double temperature_c = 0;
  uint32_t sm_clock_mhz = 0;
};

class Nvml {
 public:
  // The library, or one sentence in reason() that says why there is none.
  static Nvml& instance();

  bool ok() const { return reason_.empty(); }
  const std::string& reason() const { return reason_; }
  // The device of this PCI address ("0000:1b:00.0", GpuDevice's info); what the device does not
  // report stays 0. Nothing when there is no such device.
  std::optional<DeviceReading> read(const std::string& pci_bus_id) const;

 private:
  Nvml();
  struct Functions;
  const Functions* functions_ = nullptr;
  std::string reason_;
};

}  // namespace eyrie::ops::gpu
