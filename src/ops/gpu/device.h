// The GPU as the rest of the program sees it: which one it is and why there is none, memory,
// streams, events, copies and captured steps. No vendor header: streams and events are opaque
// pointers (cudaStream_t, hipStream_t). A program built without a GPU backend has the same
// functions; find_device() then says so, and nothing else can be reached.
//
// One GpuDevice per rank, opened on the rank's thread. What fails because of the machine throws
// Error with one sentence; so does every call after the device has died.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/threads.h"
#include "tensor/tensor.h"

namespace eyrie::ops::gpu {

struct DeviceInfo {
  int index = 0;
  std::string name;  // "NVIDIA H200"
  int major = 0;     // compute capability: 9.0 is Hopper
  int minor = 0;
  int num_multiprocessors = 0;
  size_t l2_bytes = 0;
  std::string pci_bus_id = {};  // what Nvml::read asks for
  size_t total_bytes = 0;
  int driver_version = 0;  // 13000 = what CUDA 13.0 needs
  int runtime_version = 0;
};

// A device that this program can use, or one sentence that says why there is none.
struct FoundDevice {
  std::optional<DeviceInfo> info;
  std::string reason;
};
FoundDevice find_device(int index = 0);

struct MemoryState {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
};

class GpuDevice {
 public:
  explicit GpuDevice(int index = 0);  // Error with find_device's reason
  ~GpuDevice();
  GpuDevice(const GpuDevice&) = delete;
  GpuDevice& operator=(const GpuDevice&) = delete;

  const DeviceInfo& info() const { return info_; }
  void* stream() const { return stream_; }            // steps
  void* copy_stream() const { return copy_stream_; }  // what overlaps them
  MemoryState memory() const;                         // of the whole device, now
  void synchronize() const;                           // waits for both streams
  void make_current() const;  // for a thread that uses the device and did not open it

 private:
  DeviceInfo info_;
  void* stream_ = nullptr;
  void* copy_stream_ = nullptr;
};

// ---- memory -------------------------------------------------------------------------------------

// The current device's memory. Small blocks (thousands of experts) are cut from slabs of 256 MiB,
// aligned to 256 bytes; a slab goes back with the last of its blocks.
const MemorySource& device_memory();
// Host memory that a device copies from and to while the host does something else.
const MemorySource& pinned_memory();

// While it lives, allocations of this thread that fail say what they were for and which flag helps:
// AllocationPurpose purpose("the KV cache", "--gpu-memory-utilization or --max-model-len");
class AllocationPurpose {
 public:
  AllocationPurpose(std::string_view what, std::string_view flags);  // literals: not copied
  ~AllocationPurpose();
  AllocationPurpose(const AllocationPurpose&) = delete;
  AllocationPurpose& operator=(const AllocationPurpose&) = delete;

 private:
  std::string_view outer_what_, outer_flags_;
};

// ---- copies: enqueued on a stream ---------------------------------------------------------------

// `host` is pinned (or the call waits for the copy) and stays as it is until the copy has run.
void copy_to_device(void* device, const void* host, size_t bytes, void* stream);
void copy_to_host(void* host, const void* device, size_t bytes, void* stream);
void copy_on_device(void* to, const void* from, size_t bytes, void* stream);
void fill_bytes(void* device, uint8_t value, size_t bytes, void* stream);

// Copies of any host memory, of any size, through a ring of pinned buffers: when a call returns,
// the source may change or go; the bytes are on the device when `stream` comes to what follows.
// With a pool its threads fill the buffers. One thread at a time.
class Upload {
 public:
  explicit Upload(size_t chunk_bytes = size_t{16} << 20, int num_chunks = 4);
  ~Upload();
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  void copy(void* device, const void* host, size_t bytes, void* stream, ThreadPool* pool = nullptr);

 private:
  struct Chunk;
  size_t chunk_bytes_;
  int num_chunks_;
  int next_ = 0;
  std::unique_ptr<Chunk[]> chunks_;
};

// The same through one Upload of the process, made when first used: for weights. Any thread.
void upload(void* device, const void* host, size_t bytes, void* stream, ThreadPool* pool = nullptr);
// Gives its pinned memory back: after loading.
void release_upload();

// ---- order and time -----------------------------------------------------------------------------

class Event {
 public:
  Event();
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(void* stream);
  void wait_on(void* stream) const;  // what is enqueued on stream from now on waits for the event
  void synchronize() const;          // the host waits
  bool is_done() const;
  double ms_since(const Event& earlier) const;  // both are done

 private:
  void* event_ = nullptr;
};

void synchronize(void* stream);

// A recorded step: what `enqueue` puts on the stream, as one launch. It replays with the addresses
// and launch shapes of its recording and whatever is in memory then. While recording nothing may
// wait, read back or allocate device memory on this thread.
class Graph {
 public:
  Graph() = default;
  static Graph record(void* stream, const std::function<void()>& enqueue);
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  bool empty() const { return executable_ == nullptr; }
  void launch(void* stream) const;
  size_t num_nodes() const { return num_nodes_; }

 private:
  void* executable_ = nullptr;
  size_t num_nodes_ = 0;
};

// Throws if something that ran on the device failed (an illegal address, a dead device).
void check_device();

}  // namespace eyrie::ops::gpu
