// A finished run as text (vLLM's layout: rulers of 50, labels of 40, values of 10, two decimals)
// and as the JSON object that scripts read (vLLM's keys; what vLLM has no key for sits under
// "eyrie").
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/serve.h"

namespace eyrie::bench {

// As Python prints a float: "inf", "5.0", "0.25"; scripts and file names carry that spelling.
std::string python_float(double value);

std::string report_text(const ServeOptions& options, const ServeRun& run);

nlohmann::ordered_json result_json(const ServeOptions& options, const ServeRun& run);

// "openai-infqps-concurrency4-model-20261130-131500.json" unless a name was given.
std::string result_file_name(const ServeOptions& options, const ServeRun& run);

// Writes (or appends to) the result file; returns its path.
std::string save_result(const ServeOptions& options, const ServeRun& run);

}  // namespace eyrie::bench
