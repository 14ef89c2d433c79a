// Tensor: a non-owning, trivially copyable view (pointer, dtype, shape, strides); row-major, last
// dimension fastest, shapes written [T, H, D] in that order everywhere. Anything that copies is an
// op. Buffer: the move-only owner of memory. No reference counts, no hidden scale, no graph.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/check.h"
#include "tensor/dtype.h"

namespace eyrie {

class Tensor {
 public:
  static constexpr int kMaxRank = 4;

  Tensor() = default;
  // Contiguous view.
  Tensor(void* data, DType dtype, std::initializer_list<int64_t> shape);

  template <typename T>
  static Tensor of(T* data, std::initializer_list<int64_t> shape) {
    return Tensor(const_cast<std::remove_const_t<T>*>(data), DTypeOf<std::remove_const_t<T>>::value,
                  shape);
  }

  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  int64_t dim(int i) const {
    DCHECK(i >= 0 && i < rank_);
    return shape_[static_cast<size_t>(i)];
  }
  int64_t stride(int i) const {
    DCHECK(i >= 0 && i < rank_);
    return stride_[static_cast<size_t>(i)];
  }
  int64_t num_elements() const;
  bool is_contiguous() const;
  bool empty() const { return data_ == nullptr; }
  std::string shape_string() const;  // "[3, 256] F32"

  template <typename T>
  T* data() const {
    CHECK(dtype_ == DTypeOf<std::remove_const_t<T>>::value, "tensor {} accessed as {}",
          shape_string(), dtype_name(DTypeOf<std::remove_const_t<T>>::value));
    return static_cast<T*>(data_);
  }
  void* raw() const { return data_; }
  size_t bytes() const { return static_cast<size_t>(num_elements()) * dtype_bytes(dtype_); }

  // Rows [begin, begin + count) of dimension 0.
  Tensor rows(int64_t begin, int64_t count) const;
  // Elements [begin, begin + count) of the last dimension; strides stay, so the view may be
  // strided.
  Tensor columns(int64_t begin, int64_t count) const;
  // The same elements under another shape; needs a contiguous view.
  Tensor reshape(std::initializer_list<int64_t> shape) const;
  // [T, H*D] → [T, H, D]: works on row-strided views too.
  Tensor split_last(int64_t outer, int64_t inner) const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int rank_ = 0;
  std::array<int64_t, kMaxRank> shape_{};
  std::array<int64_t, kMaxRank> stride_{};
};

// Memory that is not the host's heap: a device's, or the host's that a device copies from. allocate
// throws Error with the size when memory is short; both may be called on any thread.
struct MemorySource {
  std::string_view name;
  std::byte* (*allocate)(size_t bytes);  // aligned to 256 bytes at least
  void (*free)(std::byte* memory);
};

// Owner of 64-byte aligned memory.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);  // uninitialised; throws Error with the size when memory is short
  Buffer(size_t bytes, const MemorySource& source);  // uninitialised; the source outlives it
  static Buffer for_weights(size_t bytes);  // zeroed, side by side in huge pages (tensor/slabs.h)
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  const MemorySource* source_ = nullptr;  // nullptr: the heap
};

// Scratch of one step: bump allocation, everything gone at reset(). Grows (by a chunk) only while
// warming up; num_growths() is what a test pins to prove that a warm step allocates nothing.
class Arena {
 public:
  explicit Arena(size_t initial_bytes = 1 << 20);
  // Cut from this memory and never grown, as after fix().
  explicit Arena(Buffer memory);
  // Of a source's memory. Nothing may still use what reset() merges.
  Arena(size_t initial_bytes, const MemorySource& source);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void reset();  // keeps the memory; merges chunks into one of the total size
  // From here on it does not grow, so what was recorded with its addresses can run again: asking
  // for more than there is is a bug of whoever warmed it up.
  void fix();
  Tensor empty(DType dtype, std::initializer_list<int64_t> shape);
  Tensor f32(std::initializer_list<int64_t> shape) { return empty(DType::kF32, shape); }
  template <typename T>
  T* array(int64_t count) {
    return static_cast<T*>(allocate(static_cast<size_t>(count) * sizeof(T)));
  }
  void* allocate(size_t bytes);  // 64-byte aligned

  size_t high_water_bytes() const { return high_water_; }
  int num_growths() const { return num_growths_; }

 private:
  friend class ArenaScope;
  struct Chunk;
  void add_chunk(size_t bytes);
  Chunk* chunks_ = nullptr;               // newest first
  const MemorySource* source_ = nullptr;  // nullptr: the heap
  bool is_fixed_ = false;
  size_t used_in_step_ = 0;
  size_t high_water_ = 0;
  int num_growths_ = 0;
};

// Gives back, at scope end, what was taken from the arena inside the scope, so that layers share
// scratch. Scopes nest like blocks of code; nothing taken inside may be used after.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena);
  ~ArenaScope();
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Chunk* chunk_;
  size_t chunk_used_;
  size_t used_in_step_;
};

}  // namespace eyrie
