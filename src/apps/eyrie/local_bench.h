// The benchmarks that run the engine in their own process take `serve`'s flags and a few more.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/eyrie/flag_parser.h"
#include "apps/eyrie/serve_config.h"

namespace eyrie::apps {

int run_bench_latency(const std::vector<std::string>& args);
int run_bench_throughput(const std::vector<std::string>& args);

// serve's flags behind a benchmark's own; of two with one name the benchmark's counts.
std::vector<FlagSpec> with_engine_flags(std::span<const FlagSpec> own);

// "1,4,8" → 1, 4, 8. Error naming the flag unless all are positive.
std::vector<int32_t> counts_from(std::string_view flag, const std::string& text);

// A number of at least `low`; Error naming the flag.
int64_t count_from(const ParsedFlags& flags, std::string_view name, int64_t absent, int64_t low);

// The flags' sampling: temperature 1 and end-of-sequence tokens ignored unless told.
runtime::SamplingParams bench_sampling(const ParsedFlags& flags);

void say_notes(const ServeConfig& config);
void write_json(const std::string& path, const nlohmann::ordered_json& json);

}  // namespace eyrie::apps
