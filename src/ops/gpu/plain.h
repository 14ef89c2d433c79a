// Ops' arguments as the plain kernels are given them, for ops whose kernels do a part of another's.
#pragma once

#include "ops/gpu/kernels_plain.h"
#include "ops/ops.h"

namespace eyrie::ops::gpu {

Route route_of(const RouteArgs& args);

}  // namespace eyrie::ops::gpu
