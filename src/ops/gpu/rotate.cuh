// The rotation of rope: an angle of float64, a pair of values.
#pragma once

#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_attention.h"

namespace eyrie::ops::gpu {

struct Turn {
  float cosine, sine;
};

// The angle is float64, and so is its reduction to (-π, π]: what float32 then adds is 2e-7.
__device__ __forceinline__ Turn turn_of(const Rotation& r, int64_t t, int pair) {
  constexpr double kPerPi = 0.31830988618379067154;
  const double half_turns = static_cast<double>(r.positions[t]) * r.inv_freq[pair] * kPerPi;
  Turn turn;
  sincospif(static_cast<float>(half_turns - 2.0 * rint(0.5 * half_turns)), &turn.sine,
            &turn.cosine);
  turn.cosine *= r.magnitude;
  turn.sine *= r.magnitude;
  return turn;
}

template <typename T>
__device__ __forceinline__ void rotate(T* x, const Rotation& r, int pair, Turn turn) {
  T* first = x + (r.is_interleaved ? 2 * pair : pair);
  T* second = r.is_interleaved ? first + 1 : first + r.half;
  const float u = to_float(*first), v = to_float(*second);
  *first = from_float<T>(u * turn.cosine - v * turn.sine);
  *second = from_float<T>(v * turn.cosine + u * turn.sine);
}

}  // namespace eyrie::ops::gpu
