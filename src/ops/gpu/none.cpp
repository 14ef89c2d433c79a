// What a program without a GPU backend has instead of it: the sentence that says so.
#if defined(__clang__)  // what device.h declares has members that only the backend reads
#pragma clang diagnostic ignored "-Wunused-private-field"
#endif

#include <utility>

#include "base/error.h"
#include "ops/gpu/backend.h"
#include "ops/gpu/device.h"

namespace eyrie::ops {
namespace gpu {
namespace {

constexpr std::string_view kReason =
    "this program was built without a GPU backend (cmake --preset cuda builds one)";

[[noreturn]] void none() { throw Error(std::string(kReason)); }

std::byte* allocate_none(size_t) { none(); }
void free_none(std::byte*) {}
constexpr MemorySource kNoMemory{.name = "none", .allocate = allocate_none, .free = free_none};

}  // namespace

FoundDevice find_device(int) { return {.info = {}, .reason = std::string(kReason)}; }

GpuDevice::GpuDevice(int) { none(); }
GpuDevice::~GpuDevice() = default;
MemoryState GpuDevice::memory() const { none(); }
void GpuDevice::synchronize() const { none(); }
void GpuDevice::make_current() const { none(); }

const MemorySource& device_memory() { return kNoMemory; }
const MemorySource& pinned_memory() { return kNoMemory; }
AllocationPurpose::AllocationPurpose(std::string_view what, std::string_view flags)
    : outer_what_(what), outer_flags_(flags) {}
AllocationPurpose::~AllocationPurpose() = default;

void copy_to_device(void*, const void*, size_t, void*) { none(); }
void copy_to_host(void*, const void*, size_t, void*) { none(); }
void copy_on_device(void*, const void*, size_t, void*) { none(); }
void fill_bytes(void*, uint8_t, size_t, void*) { none(); }

struct Upload::Chunk {};
Upload::Upload(size_t chunk_bytes, int num_chunks)
    : chunk_bytes_(chunk_bytes), num_chunks_(num_chunks) {
  none();
}
Upload::~Upload() = default;
void Upload::copy(void*, const void*, size_t, void*, ThreadPool*) { none(); }
void upload(void*, const void*, size_t, void*, ThreadPool*) { none(); }
void release_upload() {}

Event::Event() { none(); }
Event::~Event() = default;
Event::Event(Event&& other) noexcept : event_(other.event_) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}
void Event::record(void*) { none(); }
void Event::wait_on(void*) const { none(); }
void Event::synchronize() const { none(); }
bool Event::is_done() const { none(); }
double Event::ms_since(const Event&) const { none(); }
void synchronize(void*) { none(); }

Graph Graph::record(void*, const std::function<void()>&) { none(); }
Graph::~Graph() = default;
Graph::Graph(Graph&& other) noexcept
    : executable_(other.executable_), num_nodes_(other.num_nodes_) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(executable_, other.executable_);
  std::swap(num_nodes_, other.num_nodes_);
  return *this;
}
void Graph::launch(void*) const { none(); }
void check_device() { none(); }

}  // namespace gpu

const OpTable& gpu_ops() { gpu::none(); }

}  // namespace eyrie::ops
