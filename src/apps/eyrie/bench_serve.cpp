// eyrie bench serve [flags]: vLLM's benchmark client, flag for flag.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "apps/eyrie/bench_flags.h"
#include "base/error.h"
#include "bench/progress_line.h"
#include "bench/report.h"
#include "bench/serve.h"

namespace eyrie::apps {

int run_bench_serve(const std::vector<std::string>& args) {
  if (std::any_of(args.begin(), args.end(), is_help_flag)) {
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

}  // namespace eyrie::apps
