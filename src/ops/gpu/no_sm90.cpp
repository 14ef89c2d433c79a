// What a build without Hopper's kernels has instead of them.
#include "base/check.h"
#include "ops/gpu/kernels_linear.h"

namespace eyrie::ops::gpu {

bool can_multiply_sm90(const Multiply&) { return false; }
void launch_multiply_sm90(const Multiply&, void*) { CHECK(false, "no kernels of Hopper's here"); }
void launch_chain_sm90(const Multiply&, const Chained&, void*) {
  CHECK(false, "no kernels of Hopper's here");
}

}  // namespace eyrie::ops::gpu
