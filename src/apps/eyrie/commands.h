// The program's subcommands, one file each; main.cpp dispatches. argv[0] is the subcommand's name.
// Each returns the process's exit code; Error is caught in main.
#pragma once

namespace eyrie::apps {

int run_serve(int argc, char** argv);
int run_bench(int argc, char** argv);
int run_quantize(int argc, char** argv);
int run_inspect(int argc, char** argv);

}  // namespace eyrie::apps
