// Every flag `vllm serve` knows, as one table: those this program acts on have a help line, the
// others a line that says what they mean here.
#pragma once

#include <span>

#include "apps/eyrie/flag_parser.h"

namespace eyrie::apps {

std::span<const FlagSpec> serve_flags();

}  // namespace eyrie::apps
