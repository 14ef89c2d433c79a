#include "ops/gpu/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

// The part of nvml.h that is used, by its documented and stable C interface.
namespace eyrie::ops::gpu {
namespace {

using Status = int;  // nvmlReturn_t; 0 is success
using Handle = void*;
struct Utilization {
  unsigned gpu, memory;  // per cent
};
struct Memory {
  unsigned long long total, free, used;
};
constexpr int kTemperatureOfGpu = 0;
constexpr int kClockOfSm = 1;

template <typename Fn>
bool find(void* library, const char* name, Fn& function) {
  function = reinterpret_cast<Fn>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace

struct Nvml::Functions {
  Status (*init)();
  const char* (*error_string)(Status);
  Status (*handle_by_pci)(const char*, Handle*);
  Status (*utilization)(Handle, Utilization*);
  Status (*memory)(Handle, Memory*);
  Status (*power)(Handle, unsigned*);
  Status (*temperature)(Handle, int, unsigned*);
  Status (*clock)(Handle, int, unsigned*);

  bool load(void* library) {
    return find(library, "nvmlInit_v2", init) && find(library, "nvmlErrorString", error_string) &&
           find(library, "nvmlDeviceGetHandleByPciBusId_v2", handle_by_pci) &&
           find(library, "nvmlDeviceGetUtilizationRates", utilization) &&
           find(library, "nvmlDeviceGetMemoryInfo", memory) &&
           find(library, "nvmlDeviceGetPowerUsage", power) &&
           find(library, "nvmlDeviceGetTemperature", temperature) &&
           find(library, "nvmlDeviceGetClockInfo", clock);
  }
};

Nvml& Nvml::instance() {
  static Nvml nvml;
  return nvml;
}

Nvml::Nvml() {
  static Functions functions;
  void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    reason_ = "libnvidia-ml.so.1 is not there: it comes with NVIDIA's driver";
    return;
  }
  if (!functions.load(library)) {
    reason_ = "libnvidia-ml.so.1 is too old: a function is missing in it";
    return;
  }
  if (const Status status = functions.init(); status != 0) {
    reason_ = fmt::format("NVML does not start: {}", functions.error_string(status));
    return;
  }
  functions_ = &functions;
}

std::optional<DeviceReading> Nvml::read(const std::string& pci_bus_id) const {
  Handle device = nullptr;
  if (functions_ == nullptr || functions_->handle_by_pci(pci_bus_id.c_str(), &device) != 0) {
    return std::nullopt;
  }
  DeviceReading reading;
  Utilization utilization{};
  if (functions_->utilization(device, &utilization) == 0) {
    reading.utilization = utilization.gpu / 100.0;
    reading.memory_utilization = utilization.memory / 100.0;
  }
  Memory memory{};
  if (functions_->memory(device, &memory) == 0) {
    reading.memory_used_bytes = memory.used;
    reading.memory_total_bytes = memory.total;
  }
  unsigned value = 0;
  if (functions_->power(device, &value) == 0) reading.power_w = value / 1000.0;
  if (functions_->temperature(device, kTemperatureOfGpu, &value) == 0)
    reading.temperature_c = value;
  if (functions_->clock(device, kClockOfSm, &value) == 0) reading.sm_clock_mhz = value;
  return reading;
}

}  // namespace eyrie::ops::gpu
