#include "tensor/slabs.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>

#include "base/check.h"
#include "base/error.h"
#include "base/human.h"
#include "base/math.h"

namespace eyrie {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr size_t kSlab = 32 << 20;
constexpr size_t kLine = 64;

size_t round_up(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// Pages that nobody has touched cost nothing, so a slab's unused end is free.
std::byte* map_huge_pages(size_t bytes) {
  void* mapped = ::mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    fail("cannot allocate {}: not enough memory", human_bytes(static_cast<double>(bytes)));
  }
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = round_up(begin, kHugePage);
  if (aligned > begin) ::munmap(mapped, aligned - begin);
  const uintptr_t end = aligned + bytes;
  if (begin + kHugePage > aligned) {
    ::munmap(reinterpret_cast<void*>(end), begin + kHugePage - aligned);
  }
  ::madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
  return reinterpret_cast<std::byte*>(aligned);
}

struct Slab {
  size_t bytes;
  size_t used = 0;
  int64_t num_blocks = 0;
};

struct Slabs {
  std::mutex mutex;
  std::map<std::byte*, Slab> all;
  std::byte* open = nullptr;  // the one that blocks are cut from
};

Slabs& slabs() {
  static Slabs* const instance = new Slabs;  // outlives every static Buffer
  return *instance;
}

}  // namespace

std::byte* slab_allocate(size_t bytes) {
  bytes = std::max(round_up(bytes, kLine), kLine);
  Slabs& s = slabs();
  const std::lock_guard lock(s.mutex);
  const bool alone = bytes > kSlab / 4;  // what does not fit would leave much unused
  std::byte* slab = alone ? nullptr : s.open;
  if (slab == nullptr || s.all.at(slab).used + bytes > s.all.at(slab).bytes) {
    const size_t slab_bytes = alone ? round_up(bytes, kHugePage) : kSlab;
    slab = map_huge_pages(slab_bytes);
    s.all[slab] = {.bytes = slab_bytes};
    if (!alone) s.open = slab;
  }
  Slab& chosen = s.all.at(slab);
  std::byte* const block = slab + chosen.used;
  chosen.used += bytes;
  ++chosen.num_blocks;
  return block;
}

void slab_free(std::byte* block) {
  Slabs& s = slabs();
  const std::lock_guard lock(s.mutex);
  auto found = s.all.upper_bound(block);
  CHECK(found != s.all.begin(), "a block of no slab");
  found = std::prev(found);
  CHECK(block < found->first + found->second.used, "a block of no slab");
  if (--found->second.num_blocks > 0) return;
  if (s.open == found->first) s.open = nullptr;
  ::munmap(found->first, found->second.bytes);
  s.all.erase(found);
}

}  // namespace eyrie
