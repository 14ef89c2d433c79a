// Made-up tensors for --load-format dummy: shapes from the model, values from the tensor's name, so
// two runs (and two machines) see the same numbers. Matrices look like N(0, 0.02), norms are one,
// biases zero.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace eyrie::checkpoint {

constexpr float kDummyStddev = 0.02f;

// One row of a matrix. Values depend on name and row only.
void dummy_row(std::string_view name, int64_t row, std::span<float> out);

// What a tensor's values are drawn from: the same number on every machine.
uint64_t name_hash(std::string_view name);

// The constant of a vector, by the kind its name tells.
float dummy_constant(std::string_view name);

}  // namespace eyrie::checkpoint
