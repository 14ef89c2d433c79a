#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "base/human.h"
#include "base/math.h"
#include "ops/gpu/compat.h"
#include "ops/gpu/device.h"

namespace eyrie::ops::gpu {
namespace {

constexpr size_t kSlab = size_t{256} << 20;
constexpr size_t kAlignment = 256;
constexpr size_t kPage = size_t{2} << 20;  // the unit in which a device gives memory

thread_local std::string_view purpose_what;
thread_local std::string_view purpose_flags;

std::string bytes_words(size_t bytes) { return human_bytes(static_cast<double>(bytes)); }

std::byte* allocate_on_device(size_t bytes) {
  void* memory = nullptr;
  const GPU(Error_t) code = GPU(Malloc)(&memory, bytes);
  if (code == GPU(Success)) return static_cast<std::byte*>(memory);
  static_cast<void>(GPU(GetLastError)());
  size_t free_bytes = 0, total_bytes = 0;
  if (code != GPU(ErrorMemoryAllocation) ||
      GPU(MemGetInfo)(&free_bytes, &total_bytes) != GPU(Success)) {
    fail_runtime("allocating memory", static_cast<int>(code));
  }
  fail("cannot allocate {} of GPU memory{}{}: {} of {} are free{}{}", bytes_words(bytes),
       purpose_what.empty() ? "" : " for ", purpose_what, bytes_words(free_bytes),
       bytes_words(total_bytes), purpose_flags.empty() ? "" : "; lower ", purpose_flags);
}

struct Slab {
  size_t bytes;
  size_t used = 0;
  int64_t num_blocks = 0;
  int device = 0;
};

// Blocks are never moved and a slab's space is not used again before all of it is free: weights
// live as long as each other.
class Slabs {
 public:
  std::byte* allocate(size_t bytes) {
    bytes = std::max<size_t>(static_cast<size_t>(align_up(static_cast<int64_t>(bytes), kAlignment)),
                             kAlignment);
    int device = 0;
    check_runtime(GPU(GetDevice)(&device), "asking for the current GPU");
    const std::lock_guard lock(mutex_);
    if (bytes > kSlab / 8) return cut(add(bytes, device), bytes);
    auto open = open_.find(device);
    if (open == open_.end() || left(open->second) < bytes) {
      std::byte* const slab = add(kSlab, device);
      open = open_.insert_or_assign(device, slab).first;
    }
    return cut(open->second, bytes);
  }

  void free(std::byte* block) {
    const std::lock_guard lock(mutex_);
    auto slab = std::prev(slabs_.upper_bound(block));
    if (--slab->second.num_blocks > 0) return;
    const auto open = open_.find(slab->second.device);
    if (open != open_.end() && open->second == slab->first) open_.erase(open);
    // At exit the driver may be gone already, and the memory with it.
    static_cast<void>(GPU(Free)(slab->first));
    slabs_.erase(slab);
  }

 private:
  size_t left(std::byte* slab) const { return slabs_.at(slab).bytes - slabs_.at(slab).used; }
  std::byte* add(size_t bytes, int device) {
    bytes = static_cast<size_t>(align_up(static_cast<int64_t>(bytes), kPage));
    std::byte* const memory = allocate_on_device(bytes);
    slabs_.emplace(memory, Slab{.bytes = bytes, .device = device});
    return memory;
  }
  std::byte* cut(std::byte* slab, size_t bytes) {
    Slab& s = slabs_.at(slab);
    std::byte* const block = slab + s.used;
    s.used += bytes;
    ++s.num_blocks;
    return block;
  }

  std::mutex mutex_;
  std::map<std::byte*, Slab> slabs_;
  std::map<int, std::byte*> open_;  // by device: the slab that blocks are cut from
};

Slabs& slabs() {
  static Slabs* const instance = new Slabs;  // outlives every static Buffer
  return *instance;
}

std::byte* allocate_pinned(size_t bytes) {
  void* memory = nullptr;
#if defined(EYRIE_HIP)
  const hipError_t code = hipHostMalloc(&memory, bytes, hipHostMallocDefault);
#else
  const cudaError_t code = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
#endif
  if (code == GPU(Success)) return static_cast<std::byte*>(memory);
  static_cast<void>(GPU(GetLastError)());
  if (code != GPU(ErrorMemoryAllocation)) {
    fail_runtime("allocating pinned memory", static_cast<int>(code));
  }
  fail("cannot pin {} of host memory: raise the limit of locked memory (ulimit -l) or free some",
       bytes_words(bytes));
}

void free_pinned(std::byte* memory) {
#if defined(EYRIE_HIP)
  static_cast<void>(hipHostFree(memory));
#else
  static_cast<void>(cudaFreeHost(memory));
#endif
}

}  // namespace

const MemorySource& device_memory() {
  static constexpr MemorySource kSource{
      .name = "device",
      .allocate = [](size_t bytes) { return slabs().allocate(bytes); },
      .free = [](std::byte* memory) { slabs().free(memory); }};
  return kSource;
}

const MemorySource& pinned_memory() {
  static constexpr MemorySource kSource{
      .name = "pinned", .allocate = allocate_pinned, .free = free_pinned};
  return kSource;
}

AllocationPurpose::AllocationPurpose(std::string_view what, std::string_view flags)
    : outer_what_(std::exchange(purpose_what, what)),
      outer_flags_(std::exchange(purpose_flags, flags)) {}
AllocationPurpose::~AllocationPurpose() {
  purpose_what = outer_what_;
  purpose_flags = outer_flags_;
}

struct Upload::Chunk {
  Buffer memory;
  Event copied;  // the last copy out of it
};

Upload::Upload(size_t chunk_bytes, int num_chunks)
    : chunk_bytes_(chunk_bytes), num_chunks_(num_chunks), chunks_(new Chunk[num_chunks]) {
  for (int i = 0; i < num_chunks; ++i) chunks_[i].memory = Buffer(chunk_bytes, pinned_memory());
}

Upload::~Upload() {
  for (int i = 0; i < num_chunks_; ++i) {
    try {
      chunks_[i].copied.synchronize();
    } catch (const Error&) {  // a dead device copies no more
    }
  }
}

void Upload::copy(void* device, const void* host, size_t bytes, void* stream, ThreadPool* pool) {
  constexpr size_t kPiece = size_t{1} << 20;  // what one thread moves at a time
  const auto* from = static_cast<const std::byte*>(host);
  auto* to = static_cast<std::byte*>(device);
  while (bytes > 0) {
    Chunk& chunk = chunks_[next_];
    next_ = (next_ + 1) % num_chunks_;
    chunk.copied.synchronize();
    const size_t part = std::min(bytes, chunk_bytes_);
    if (pool == nullptr || part <= kPiece) {
      std::memcpy(chunk.memory.data(), from, part);
    } else {
      pool->run(div_ceil(static_cast<int64_t>(part), static_cast<int64_t>(kPiece)),
                [&](int64_t piece, int) {
                  const size_t begin = static_cast<size_t>(piece) * kPiece;
                  std::memcpy(chunk.memory.data() + begin, from + begin,
                              std::min(kPiece, part - begin));
                });
    }
    copy_to_device(to, chunk.memory.data(), part, stream);
    chunk.copied.record(stream);
    from += part;
    to += part;
    bytes -= part;
  }
}

namespace {
std::mutex shared_upload_mutex;
std::optional<Upload> shared_upload;
}  // namespace

void upload(void* device, const void* host, size_t bytes, void* stream, ThreadPool* pool) {
  const std::lock_guard lock(shared_upload_mutex);
  if (!shared_upload) shared_upload.emplace();
  shared_upload->copy(device, host, bytes, stream, pool);
}

void release_upload() {
  const std::lock_guard lock(shared_upload_mutex);
  shared_upload.reset();
}

}  // namespace eyrie::ops::gpu
