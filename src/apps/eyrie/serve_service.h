// The part of `serve`'s flags and environment that says how the server treats its clients: limits,
// queue, timeouts, TLS, CORS, logging.
#pragma once

#include "apps/eyrie/flag_parser.h"
#include "apps/eyrie/serve_config.h"

namespace eyrie::apps {

void take_service(const ParsedFlags& flags, ServeConfig& config);

}  // namespace eyrie::apps
