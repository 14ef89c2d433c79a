// The flags of the benchmark client as a table, and the options they make. `bench serve` and `bench
// sweep` share them.
#pragma once

#include <span>
#include <vector>

#include "apps/eyrie/flag_parser.h"
#include "bench/serve_options.h"

namespace eyrie::apps {

std::span<const FlagSpec> bench_client_flags();

// Throws Error naming the flag. Lengths given by --input-len and --output-len stand in for the
// dataset's own.
bench::ServeOptions serve_options_from(const ParsedFlags& flags);

// What is asked of the dataset alone.
bench::DatasetOptions dataset_options(const ParsedFlags& flags);

bool is_help_flag(const std::string& arg);

// argv without the program and subcommand names.
std::vector<std::string> arguments_after(int argc, char** argv, int skip);

int run_bench_serve(const std::vector<std::string>& args);
int run_bench_sweep(const std::vector<std::string>& args);

}  // namespace eyrie::apps
