// Moving rows of float32 about: the same on every backend whose memory is the host's.
#pragma once

#include "ops/ops.h"

namespace eyrie::ops {

void host_gather_rows(const Ctx& ctx, const GatherRowsArgs& args);
void host_copy_rows(const Ctx& ctx, const CopyRowsArgs& args);
void host_scale_rows(const Ctx& ctx, const ScaleRowsArgs& args);

}  // namespace eyrie::ops
