// One source file a layout, so that they compile side by side.
#pragma once

#include "ops/gpu/kernels_linear.h"

namespace eyrie::ops::gpu::sm90 {

void launch_bf16(const Multiply& args, const Chained* then, void* stream);
void launch_mxfp4(const Multiply& args, const Chained* then, void* stream);
void launch_nvfp4(const Multiply& args, const Chained* then, void* stream);
void launch_int4(const Multiply& args, const Chained* then, void* stream);
void launch_fp8(const Multiply& args, const Chained* then, void* stream);
void launch_fp8_block(const Multiply& args, const Chained* then, void* stream);

}  // namespace eyrie::ops::gpu::sm90
