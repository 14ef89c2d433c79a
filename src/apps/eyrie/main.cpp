// eyrie SUBCOMMAND …: a thin dispatcher. Exit codes: 0 done, 1 failed, 2 wrong command line.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <exception>
#include <string_view>

#include "apps/eyrie/commands.h"
#include "base/error.h"
#include "base/version.h"

namespace {

struct Command {
  std::string_view name;
  int (*run)(int argc, char** argv);
  std::string_view help;
};

constexpr std::array kCommands = {
    Command{"serve", eyrie::apps::run_serve, "OpenAI-compatible server: eyrie serve MODEL [flags]"},
    Command{"bench", eyrie::apps::run_bench,
            "benchmarks: eyrie bench serve|sweep|latency|throughput [flags]"},
    Command{"quantize", eyrie::apps::run_quantize,
            "checkpoint to checkpoint: eyrie quantize IN OUT --scheme S"},
    Command{"inspect", eyrie::apps::run_inspect, "what is in a checkpoint: eyrie inspect MODEL"},
};

int usage(std::FILE* stream, int code) {
  fmt::print(stream, "eyrie {}: quantize, serve, benchmark and compare Kimi-K2.5-class models\n\n",
             eyrie::kVersion);
  for (const Command& command : kCommands) {
    fmt::print(stream, "  eyrie {:<9} {}\n", command.name, command.help);
  }
  fmt::print(stream, "\neyrie SUBCOMMAND --help lists its flags\n");
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return usage(stderr, 2);
  const std::string_view name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") return usage(stdout, 0);
  if (name == "--version" || name == "-v") {
    fmt::print("{}\n", eyrie::kVersion);
    return 0;
  }
  for (const Command& command : kCommands) {
    if (command.name != name) continue;
    try {
      return command.run(argc - 1, argv + 1);
    } catch (const std::exception& error) {
      fmt::print(stderr, "eyrie {}: {}\n", name, error.what());
      return 1;
    }
  }
  fmt::print(stderr, "eyrie: unknown subcommand '{}'; there are serve, bench, quantize, inspect\n",
             name);
  return 2;
}
