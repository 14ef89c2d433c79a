#include "ops/gpu/device.h"

#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/human.h"
#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_plain.h"

namespace eyrie::ops::gpu {
namespace {

#if defined(EYRIE_HIP)
constexpr int kOldestMajor = 9;   // gfx9: what the kernels are written for
constexpr int kNeededDriver = 0;  // the runtime says so itself
constexpr std::string_view kVendor = "ROCm";
constexpr auto kThreadCapture = hipStreamCaptureModeThreadLocal;
#else
constexpr int kOldestMajor = 8;       // Ampere: bfloat16 products
constexpr int kNeededDriver = 13000;  // CUDA 13.0
constexpr std::string_view kVendor = "NVIDIA";
constexpr auto kThreadCapture = cudaStreamCaptureModeThreadLocal;
#endif

#ifndef EYRIE_GPU_ARCHITECTURES
#define EYRIE_GPU_ARCHITECTURES "unknown architectures"
#endif

auto as_stream(void* stream) { return static_cast<GPU(Stream_t)>(stream); }
auto as_event(void* event) { return static_cast<GPU(Event_t)>(event); }

std::string words(GPU(Error_t) code) { return GPU(GetErrorString)(code); }

// "12.4" of 12040.
std::string version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

std::string visible_devices() {
  const char* value = std::getenv("CUDA_VISIBLE_DEVICES");
  return value == nullptr ? "" : fmt::format(" (CUDA_VISIBLE_DEVICES is \"{}\")", value);
}

// Why the runtime cannot count devices.
std::string no_devices(GPU(Error_t) code, int driver) {
  if (driver == 0) {
    return fmt::format(
        "no {} driver is installed: a GPU needs driver 580 or newer, --device cpu needs none",
        kVendor);
  }
  if (driver < kNeededDriver) {
    return fmt::format(
        "the {} driver is too old: it knows CUDA {}, and this program needs {} (driver 580 or "
        "newer)",
        kVendor, version(driver), version(kNeededDriver));
  }
  if (code == GPU(ErrorNoDevice)) return fmt::format("no GPU is visible{}", visible_devices());
  return fmt::format("the {} driver does not answer: {}", kVendor, words(code));
}

}  // namespace

FoundDevice find_device(int index) {
  int driver = 0, count = 0;
  if (GPU(DriverGetVersion)(&driver) != GPU(Success)) driver = 0;
  const GPU(Error_t) code = GPU(GetDeviceCount)(&count);
  if (code != GPU(Success)) {
    static_cast<void>(GPU(GetLastError)());
    return {.info = {}, .reason = no_devices(code, driver)};
  }
  if (count == 0) return {.info = {}, .reason = no_devices(GPU(ErrorNoDevice), driver)};
  if (index < 0 || index >= count) {
    return {.info = {},
            .reason = fmt::format("there is no GPU {}: {} {} visible{}", index, count,
                                  count == 1 ? "is" : "are", visible_devices())};
  }
#if defined(EYRIE_HIP)
  hipDeviceProp_t properties;
#else
  cudaDeviceProp properties;
#endif
  check_runtime(GPU(GetDeviceProperties)(&properties, index), "reading the GPU's properties");
  DeviceInfo info{.index = index,
                  .name = properties.name,
                  .major = properties.major,
                  .minor = properties.minor,
                  .num_multiprocessors = properties.multiProcessorCount,
                  .l2_bytes = static_cast<size_t>(properties.l2CacheSize),
                  .total_bytes = properties.totalGlobalMem,
                  .driver_version = driver};
  check_runtime(GPU(RuntimeGetVersion)(&info.runtime_version), "reading the runtime's version");
  char pci_bus_id[32] = {};
  check_runtime(GPU(DeviceGetPCIBusId)(pci_bus_id, sizeof pci_bus_id, index),
                "reading the GPU's address");
  info.pci_bus_id = pci_bus_id;
  if (info.major < kOldestMajor) {
    return {.info = {},
            .reason = fmt::format("{} has compute capability {}.{}, and {}.0 or newer is needed",
                                  info.name, info.major, info.minor, kOldestMajor)};
  }
  check_runtime(GPU(SetDevice)(index), "choosing the GPU");
  if (probe_kernel_image() != 0) {
    static_cast<void>(GPU(GetLastError)());
    return {
        .info = {},
        .reason = fmt::format("{} has compute capability {}.{}, and this program was built for {}",
                              info.name, info.major, info.minor, EYRIE_GPU_ARCHITECTURES)};
  }
  return {.info = std::move(info), .reason = ""};
}

GpuDevice::GpuDevice(int index) {
  FoundDevice found = find_device(index);
  if (!found.info) throw Error(found.reason);
  info_ = *std::move(found.info);
  make_current();
  GPU(Stream_t) stream = nullptr;
  check_runtime(GPU(StreamCreateWithFlags)(&stream, GPU(StreamNonBlocking)), "creating a stream");
  stream_ = stream;
  check_runtime(GPU(StreamCreateWithFlags)(&stream, GPU(StreamNonBlocking)), "creating a stream");
  copy_stream_ = stream;
}

GpuDevice::~GpuDevice() {
  static_cast<void>(GPU(StreamDestroy)(as_stream(stream_)));
  static_cast<void>(GPU(StreamDestroy)(as_stream(copy_stream_)));
}

void GpuDevice::make_current() const {
  check_runtime(GPU(SetDevice)(info_.index), "choosing the GPU");
}

MemoryState GpuDevice::memory() const {
  MemoryState state;
  check_runtime(GPU(MemGetInfo)(&state.free_bytes, &state.total_bytes), "reading the GPU's memory");
  return state;
}

void GpuDevice::synchronize() const {
  gpu::synchronize(stream_);
  gpu::synchronize(copy_stream_);
}

void copy_to_device(void* device, const void* host, size_t bytes, void* stream) {
  check_runtime(GPU(MemcpyAsync)(device, host, bytes, GPU(MemcpyHostToDevice), as_stream(stream)),
                "copying to the GPU");
}

void copy_to_host(void* host, const void* device, size_t bytes, void* stream) {
  check_runtime(GPU(MemcpyAsync)(host, device, bytes, GPU(MemcpyDeviceToHost), as_stream(stream)),
                "copying from the GPU");
}

void copy_on_device(void* to, const void* from, size_t bytes, void* stream) {
  check_runtime(GPU(MemcpyAsync)(to, from, bytes, GPU(MemcpyDeviceToDevice), as_stream(stream)),
                "copying on the GPU");
}

void fill_bytes(void* device, uint8_t value, size_t bytes, void* stream) {
  check_runtime(GPU(MemsetAsync)(device, value, bytes, as_stream(stream)), "filling GPU memory");
}

Event::Event() {
  GPU(Event_t) event = nullptr;
  check_runtime(GPU(EventCreate)(&event), "creating an event");
  event_ = event;
}
Event::~Event() {
  if (event_ != nullptr) static_cast<void>(GPU(EventDestroy)(as_event(event_)));
}
Event::Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}

void Event::record(void* stream) {
  check_runtime(GPU(EventRecord)(as_event(event_), as_stream(stream)), "recording an event");
}

void Event::wait_on(void* stream) const {
  check_runtime(GPU(StreamWaitEvent)(as_stream(stream), as_event(event_), 0),
                "waiting for an event");
}

void Event::synchronize() const {
  check_runtime(GPU(EventSynchronize)(as_event(event_)), "waiting for the GPU");
}

bool Event::is_done() const {
  const GPU(Error_t) code = GPU(EventQuery)(as_event(event_));
  if (code == GPU(ErrorNotReady)) {
    static_cast<void>(GPU(GetLastError)());
    return false;
  }
  check_runtime(code, "asking for an event");
  return true;
}

double Event::ms_since(const Event& earlier) const {
  float ms = 0.0F;
  check_runtime(GPU(EventElapsedTime)(&ms, as_event(earlier.event_), as_event(event_)),
                "reading the GPU's clock");
  return ms;
}

void synchronize(void* stream) {
  check_runtime(GPU(StreamSynchronize)(as_stream(stream)), "waiting for the GPU");
}

Graph Graph::record(void* stream, const std::function<void()>& enqueue) {
  check_runtime(GPU(StreamBeginCapture)(as_stream(stream), kThreadCapture), "recording a step");
  GPU(Graph_t) graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    static_cast<void>(GPU(StreamEndCapture)(as_stream(stream), &graph));
    if (graph != nullptr) static_cast<void>(GPU(GraphDestroy)(graph));
    throw;
  }
  check_runtime(GPU(StreamEndCapture)(as_stream(stream), &graph), "recording a step");
  Graph recorded;
  GPU(GraphExec_t) executable = nullptr;
#if defined(EYRIE_HIP)
  const hipError_t code = hipGraphInstantiate(&executable, graph, nullptr, nullptr, 0);
#else
  const cudaError_t code = cudaGraphInstantiate(&executable, graph, 0);
#endif
  static_cast<void>(GPU(GraphGetNodes)(graph, nullptr, &recorded.num_nodes_));
  static_cast<void>(GPU(GraphDestroy)(graph));
  check_runtime(code, "preparing a recorded step");
  recorded.executable_ = executable;
  return recorded;
}

Graph::~Graph() {
  if (executable_ != nullptr) {
    static_cast<void>(GPU(GraphExecDestroy)(static_cast<GPU(GraphExec_t)>(executable_)));
  }
}
Graph::Graph(Graph&& other) noexcept
    : executable_(std::exchange(other.executable_, nullptr)), num_nodes_(other.num_nodes_) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(executable_, other.executable_);
  std::swap(num_nodes_, other.num_nodes_);
  return *this;
}

void Graph::launch(void* stream) const {
  CHECK(executable_ != nullptr, "launch of a graph that was not recorded");
  check_runtime(GPU(GraphLaunch)(static_cast<GPU(GraphExec_t)>(executable_), as_stream(stream)),
                "launching a recorded step");
}

void check_device() { check_runtime(GPU(DeviceSynchronize)(), "waiting for the GPU"); }

void fail_runtime(const char* what, int code) {
  fail("the GPU failed in {}: {} ({})", what, words(static_cast<GPU(Error_t)>(code)),
       GPU(GetErrorName)(static_cast<GPU(Error_t)>(code)));
}

bool overlaps_launches() {
  static const bool overlaps = [] {
    const char* value = std::getenv("EYRIE_GPU_PDL");
    return value == nullptr || std::string_view(value) != "0";
  }();
  return overlaps;
}

}  // namespace eyrie::ops::gpu
