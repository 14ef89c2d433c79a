#!/usr/bin/env bash
# Unit and end-to-end tests under AddressSanitizer + UBSan and under ThreadSanitizer.
#   tools/sanitize.sh [asan-ubsan|tsan]
set -euo pipefail
cd "$(dirname "$0")/.."
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
# The exactness of the bundled pair is left to `make test`: hundreds of generations, an hour here; the
# same code runs on tiny models in runtime_test and over HTTP in e2e_exact_test.
mkdir -p build
for preset in ${1:-asan-ubsan tsan}; do
  cmake --preset "$preset" >"build/$preset-configure.log" 2>&1 || { cat "build/$preset-configure.log"; exit 1; }
  cmake --build --preset "$preset" -j "${JOBS:-$(nproc)}"
  ctest --test-dir "build/$preset" --output-on-failure -j "${JOBS:-$(nproc)}" --no-tests=error \
    -E nano_exactness_test
done
