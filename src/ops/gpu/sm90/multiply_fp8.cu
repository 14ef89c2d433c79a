#include "ops/gpu/sm90/launch_layouts.h"
#include "ops/gpu/sm90/multiply.cuh"

namespace eyrie::ops::gpu::sm90 {

void launch_fp8(const Multiply& args, const Chained* then, void* stream) {
  launch_layout<Layout::kFp8>(args, then, stream);
}

}  // namespace eyrie::ops::gpu::sm90
