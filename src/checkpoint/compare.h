// Two checkpoints tensor by tensor, as the numbers they decode to: what a quantization cost.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace eyrie::checkpoint {

struct TensorDifference {
  std::string name;  // of the module for linear weights, of the tensor otherwise
  std::string format_a, format_b;
  int64_t elements = 0;
  double max_error = 0;     // largest |a - b|
  double rms_error = 0;     // sqrt(mean (a - b)²)
  double relative_rms = 0;  // rms_error / rms of a; 0 when both are zero
  double cosine = 1;
};

struct Comparison {
  std::vector<TensorDifference> tensors;  // by name; tensors that are equal are in it too
  std::vector<std::string> only_a, only_b;
  std::vector<std::string> other_shape;  // in both, with shapes that cannot be compared
};

// Reads every weight of both. Float tensors and linear weights only: indices must be equal anyway.
Comparison compare(Checkpoint* a, Checkpoint* b);

}  // namespace eyrie::checkpoint
