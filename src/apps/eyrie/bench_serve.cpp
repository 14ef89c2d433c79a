// eyrie bench serve [flags]: vLLM's benchmark client, flag for flag.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "apps/eyrie/bench_flags.h"
#include "apps/eyrie/commands.h"
#include "base/error.h"
#include "bench/progress_line.h"
#include "bench/report.h"
#include "bench/serve.h"

namespace eyrie::apps {
namespace {

bool wants_help(const std::vector<std::string>& args) {
  return std::any_of(args.begin(), args.end(), [](const std::string& arg) {
    return arg == "--help" || arg == "-h" || arg.starts_with("--help=");
  });
}

int print_bench_help(std::FILE* stream, int code) {
  fmt::print(stream,
             "eyrie bench serve [flags]   load a running OpenAI-compatible server, report latency "
             "and throughput\n"
             "eyrie bench sweep MODEL     start servers, compare configurations across "
             "concurrencies\n\n--help after either lists its flags\n");
  return code;
}

}  // namespace

int run_bench_serve(const std::vector<std::string>& args) {
  if (wants_help(args)) {
    fmt::print("eyrie bench serve [flags]\n\n{}", flags_help(bench_client_flags()));
    return 0;
  }
  const ParsedFlags flags = parse_flags(bench_client_flags(), args);
  if (!flags.positionals().empty()) {
    fail("bench serve takes flags only, not '{}'", flags.positionals().front());
  }
  for (const auto& note : flags.notes()) fmt::print(stderr, "note: {}\n", note);
  const bench::ServeOptions options = serve_options_from(flags);
  fmt::print("bench serve {}\n", flags.given());

  bench::ProgressLine line;
  bench::ServeHooks hooks;
  hooks.say = [&](const std::string& text) {
    line.clear();
    fmt::print("{}\n", text);
    std::fflush(stdout);
  };
  if (!options.disable_progress) {
    hooks.on_progress = [&](const bench::Progress& progress) { line.show(progress); };
  }
  const bench::ServeRun run = bench::run_serve(options, hooks);
  line.clear();
  fmt::print("{}", bench::report_text(options, run));
  if (options.save_result || options.append_result || options.save_detailed) {
    fmt::print("Result: {}\n", bench::save_result(options, run));
  }
  return run.metrics.completed > 0 ? 0 : 1;
}

int run_bench(int argc, char** argv) {
  const auto args = arguments_after(argc, argv, 1);
  if (args.empty()) return print_bench_help(stderr, 2);
  const std::vector<std::string> rest(args.begin() + 1, args.end());
  if (args[0] == "serve") return run_bench_serve(rest);
  if (args[0] == "sweep") return run_bench_sweep(rest);
  if (args[0] == "--help" || args[0] == "-h") return print_bench_help(stdout, 0);
  fmt::print(stderr, "eyrie bench: unknown subcommand '{}'\n", args[0]);
  return print_bench_help(stderr, 2);
}

}  // namespace eyrie::apps
