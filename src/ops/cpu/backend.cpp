#include "ops/op_table.h"

namespace eyrie::ops {

const OpTable& cpu_ops() { return reference_ops(); }
std::string_view cpu_isa() { return "scalar"; }

}  // namespace eyrie::ops
