// Memory for blocks that are many, read-mostly and live as long as each other: a model's weights.
// Blocks of any size are cut from slabs of huge pages, one after the other in the order of asking.
// Reading a big model from memory is a fifth faster so, as the processor looks up one address for
// two megabytes and reads ahead past every 4 KiB. Where the system grants no huge pages it is
// ordinary memory. Any thread.
#pragma once

#include <cstddef>

namespace eyrie {

// Zeroed, aligned to 64 bytes; Error with the size when memory is short. A slab is given back with
// the last of its blocks.
std::byte* slab_allocate(size_t bytes);
void slab_free(std::byte* block);

}  // namespace eyrie
