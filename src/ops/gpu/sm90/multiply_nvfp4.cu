#include "ops/gpu/sm90/launch_layouts.h"
#include "ops/gpu/sm90/multiply.cuh"

namespace eyrie::ops::gpu::sm90 {

void launch_nvfp4(const Multiply& args, void* stream) {
  launch_layout<Layout::kNvfp4>(args, stream);
}

}  // namespace eyrie::ops::gpu::sm90
