// eyrie bench serve|sweep|latency|throughput: a dispatcher.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <string_view>

#include "apps/eyrie/bench_flags.h"
#include "apps/eyrie/commands.h"
#include "apps/eyrie/local_bench.h"

namespace eyrie::apps {
namespace {

struct Benchmark {
  std::string_view name;
  int (*run)(const std::vector<std::string>& args);
  std::string_view help;
};

constexpr auto kBenchmarks = std::to_array<Benchmark>({
    {"serve", run_bench_serve,
     "load a running OpenAI-compatible server, report latency and throughput"},
    {"sweep", run_bench_sweep, "start servers, compare configurations across concurrencies"},
    {"latency", run_bench_latency,
     "a fixed batch in this process, and what a decoding step costs and reads"},
    {"throughput", run_bench_throughput, "a dataset at once in this process"},
});

int print_help(std::FILE* stream, int code) {
  for (const Benchmark& benchmark : kBenchmarks) {
    fmt::print(stream, "eyrie bench {:<11} {}\n", benchmark.name, benchmark.help);
  }
  fmt::print(stream, "\n--help after each lists its flags\n");
  return code;
}

}  // namespace

int run_bench(int argc, char** argv) {
  const auto args = arguments_after(argc, argv, 1);
  if (args.empty()) return print_help(stderr, 2);
  const std::vector<std::string> rest(args.begin() + 1, args.end());
  for (const Benchmark& benchmark : kBenchmarks) {
    if (benchmark.name == args[0]) return benchmark.run(rest);
  }
  if (is_help_flag(args[0])) return print_help(stdout, 0);
  fmt::print(stderr, "eyrie bench: unknown subcommand '{}'\n", args[0]);
  return print_help(stderr, 2);
}

}  // namespace eyrie::apps
