// Watches the activations that meet weights: the largest magnitude that each PreparedWeight was
// given, which a static scale of activations is made from. A context that is watched computes the
// same bits as without; an expert's gate and up run twice, because what enters its down projection
// never leaves the experts op. Owned by whoever calibrates; one thread.
#pragma once

#include <unordered_map>

#include "ops/op_table.h"

namespace eyrie::ops {

class ActivationObserver {
 public:
  explicit ActivationObserver(const OpTable& base);
  ActivationObserver(const ActivationObserver&) = delete;
  ActivationObserver& operator=(const ActivationObserver&) = delete;

  // The same context, watched. It must not outlive the observer.
  Ctx watched(Ctx ctx);
  // 0 for a weight that met no row (or zeros only). NaN and infinity stay what they are.
  float largest(const PreparedWeight& weight) const;

  const OpTable& base() const { return base_; }
  void see(const PreparedWeight& weight, const Tensor& rows);

 private:
  const OpTable& base_;
  OpTable table_;
  std::unordered_map<const PreparedWeight*, float> largest_;
};

// max(largest, |x|) over a matrix [T, N] whose rows may be strided; NaN wins.
float largest_magnitude(const Tensor& rows, float largest = 0.0f);

}  // namespace eyrie::ops
