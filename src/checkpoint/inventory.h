// What a checkpoint holds, summed up: one row for every kind of tensor (numbers in names replaced
// by `*`) and encoding. Reads headers only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace eyrie::checkpoint {

struct InventoryRow {
  std::string group;       // "model.layers.*.mlp.experts.*.up_proj.weight"
  std::string format;      // a name of the format table, or the dtypes as the file spells them
  bool is_vector = false;  // of one dimension: a norm's weight, a bias
  int64_t tensors = 0;
  int64_t parameters = 0;  // packed elements count one by one; scales count as none
  size_t bytes = 0;        // with scales
};

// Largest first.
std::vector<InventoryRow> inventory(const Checkpoint& files);

}  // namespace eyrie::checkpoint
