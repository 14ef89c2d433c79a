#include "tensor/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/human.h"
#include "base/math.h"
#include "tensor/slabs.h"

namespace eyrie {
namespace {

constexpr size_t kAlignment = 64;  // a cache line, and the widest vector we load

std::byte* aligned_new(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* memory = std::aligned_alloc(
      kAlignment, static_cast<size_t>(align_up(static_cast<int64_t>(bytes), kAlignment)));
  if (memory == nullptr) {
    fail("cannot allocate {}: not enough memory", human_bytes(static_cast<double>(bytes)));
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

Tensor::Tensor(void* data, DType dtype, std::initializer_list<int64_t> shape)
    : data_(data), dtype_(dtype), rank_(static_cast<int>(shape.size())) {
  CHECK_LE(rank_, kMaxRank);
  std::copy(shape.begin(), shape.end(), shape_.begin());
  int64_t step = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    stride_[static_cast<size_t>(i)] = step;
    step *= shape_[static_cast<size_t>(i)];
  }
}

int64_t Tensor::num_elements() const {
  int64_t count = 1;
  for (int i = 0; i < rank_; ++i) count *= dim(i);
  return count;
}

bool Tensor::is_contiguous() const {
  int64_t step = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    if (dim(i) != 1 && stride(i) != step) return false;
    step *= dim(i);
  }
  return true;
}

std::string Tensor::shape_string() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", dim(i));
  return text + fmt::format("] {}", dtype_name(dtype_));
}

Tensor Tensor::rows(int64_t begin, int64_t count) const {
  CHECK(rank_ >= 1 && begin >= 0 && count >= 0 && begin + count <= dim(0), "rows {}+{} of {}",
        begin, count, shape_string());
  Tensor view = *this;
  view.data_ =
      static_cast<std::byte*>(data_) + static_cast<size_t>(begin * stride(0)) * dtype_bytes(dtype_);
  view.shape_[0] = count;
  return view;
}

Tensor Tensor::columns(int64_t begin, int64_t count) const {
  CHECK(rank_ >= 1 && begin >= 0 && count >= 0 && begin + count <= dim(rank_ - 1),
        "columns {}+{} of {}", begin, count, shape_string());
  Tensor view = *this;
  view.data_ = static_cast<std::byte*>(data_) +
               static_cast<size_t>(begin * stride(rank_ - 1)) * dtype_bytes(dtype_);
  view.shape_[static_cast<size_t>(rank_ - 1)] = count;
  return view;
}

Tensor Tensor::reshape(std::initializer_list<int64_t> shape) const {
  CHECK(is_contiguous(), "reshape of a strided view {}", shape_string());
  Tensor view(data_, dtype_, shape);
  CHECK_EQ(view.num_elements(), num_elements());
  return view;
}

Tensor Tensor::split_last(int64_t outer, int64_t inner) const {
  CHECK(rank_ < kMaxRank && dim(rank_ - 1) == outer * inner && stride(rank_ - 1) == 1,
        "split of {} into {} x {}", shape_string(), outer, inner);
  Tensor view = *this;
  const auto last = static_cast<size_t>(rank_ - 1);
  view.rank_ = rank_ + 1;
  view.shape_[last] = outer;
  view.shape_[last + 1] = inner;
  view.stride_[last] = inner;
  view.stride_[last + 1] = 1;
  return view;
}

namespace {
constexpr MemorySource kSlabs{.name = "slabs", .allocate = slab_allocate, .free = slab_free};
}

Buffer::Buffer(size_t bytes) : data_(aligned_new(bytes)), bytes_(bytes) {}
Buffer::Buffer(size_t bytes, const MemorySource& source)
    : data_(bytes == 0 ? nullptr : source.allocate(bytes)), bytes_(bytes), source_(&source) {}
Buffer Buffer::for_weights(size_t bytes) { return Buffer(bytes, kSlabs); }
Buffer::~Buffer() {
  if (source_ == nullptr) {
    std::free(data_);
  } else if (data_ != nullptr) {
    source_->free(data_);
  }
}
Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      source_(std::exchange(other.source_, nullptr)) {}
Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(source_, other.source_);
  return *this;
}

struct Arena::Chunk {
  Chunk* older;
  Buffer memory;
  size_t used;
};

Arena::Arena(size_t initial_bytes) { add_chunk(initial_bytes); }
Arena::Arena(Buffer memory)
    : chunks_(new Chunk{.older = nullptr, .memory = std::move(memory), .used = 0}),
      is_fixed_(true) {}

Arena::Arena(size_t initial_bytes, const MemorySource& source) : source_(&source) {
  add_chunk(initial_bytes);
}

void Arena::fix() {
  reset();
  is_fixed_ = true;
}

Arena::~Arena() {
  while (chunks_ != nullptr) delete std::exchange(chunks_, chunks_->older);
}

void Arena::add_chunk(size_t bytes) {
  Buffer memory = source_ == nullptr ? Buffer(bytes) : Buffer(bytes, *source_);
  chunks_ = new Chunk{.older = chunks_, .memory = std::move(memory), .used = 0};
}

void Arena::reset() {
  if (chunks_->older != nullptr) {
    size_t total = 0;
    while (chunks_ != nullptr) {
      total += chunks_->memory.bytes();
      delete std::exchange(chunks_, chunks_->older);
    }
    add_chunk(total);
  }
  chunks_->used = 0;
  used_in_step_ = 0;
}

void* Arena::allocate(size_t bytes) {
  const auto aligned = static_cast<size_t>(align_up(static_cast<int64_t>(bytes), kAlignment));
  if (chunks_->used + aligned > chunks_->memory.bytes()) {
    CHECK(!is_fixed_, "a step needs {} more than its scratch of {} has",
          human_bytes(static_cast<double>(chunks_->used + aligned - chunks_->memory.bytes())),
          human_bytes(static_cast<double>(chunks_->memory.bytes())));
    add_chunk(std::max(aligned, 2 * chunks_->memory.bytes()));
    ++num_growths_;
  }
  void* memory = chunks_->memory.data() + chunks_->used;
  chunks_->used += aligned;
  used_in_step_ += aligned;
  high_water_ = std::max(high_water_, used_in_step_);
  return memory;
}

ArenaScope::ArenaScope(Arena& arena)
    : arena_(arena),
      chunk_(arena.chunks_),
      chunk_used_(arena.chunks_->used),
      used_in_step_(arena.used_in_step_) {}

ArenaScope::~ArenaScope() {
  // Chunks newer than ours were added inside the scope, so everything in them goes.
  for (Arena::Chunk* chunk = arena_.chunks_; chunk != chunk_; chunk = chunk->older) chunk->used = 0;
  chunk_->used = chunk_used_;
  arena_.used_in_step_ = used_in_step_;
}

Tensor Arena::empty(DType dtype, std::initializer_list<int64_t> shape) {
  int64_t count = 1;
  for (int64_t d : shape) count *= d;
  return Tensor(allocate(static_cast<size_t>(count) * dtype_bytes(dtype)), dtype, shape);
}

}  // namespace eyrie
