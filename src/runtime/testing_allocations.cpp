// operator new that counts, for the test that a warm step allocates nothing. In a file of its own:
// the compiler must not see through it.
#include <atomic>
#include <cstdlib>
#include <new>

#include "runtime/testing.h"

namespace {

std::atomic<int64_t> num_allocations{0};

}  // namespace

void* operator new(size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {  // std::stable_sort's buffer
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace eyrie::runtime::testing {

int64_t num_heap_allocations() { return num_allocations.load(std::memory_order_relaxed); }

}  // namespace eyrie::runtime::testing
