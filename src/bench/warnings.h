// Where a benchmark's own settings make its numbers say something else than the reader thinks.
// Every line names the fact, its size and what to do. Pure functions of what is known.
#pragma once

#include <string>
#include <vector>

#include "bench/serve.h"
#include "bench/server_info.h"

namespace eyrie::bench {

std::vector<std::string> warnings_before(const ServeOptions& options, const Dataset& dataset,
                                         const ServerInfo& server);

std::vector<std::string> warnings_after(const ServeOptions& options, const Dataset& dataset,
                                        const ServerInfo& server, const ServeRun& run,
                                        double preemptions);

}  // namespace eyrie::bench
