#!/usr/bin/env bash
# Everything CI runs, from nothing: install, build, models, unit and end-to-end tests, format, lint.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS
stage() { echo "== $* ($((SECONDS - started)) s)"; }

tools/setup.sh test
stage "release build"
make --no-print-directory build
stage "quantized models"
make --no-print-directory models
stage "test build"
cmake --preset dev >build/dev-configure.log 2>&1 || { cat build/dev-configure.log; exit 1; }
cmake --build --preset dev -j "${JOBS:-$(nproc)}"
stage "format"
make --no-print-directory fmt-check
stage "lint"
tools/tidy.sh
stage "tests"
ctest --test-dir build/dev --output-on-failure -j "${JOBS:-$(nproc)}" --no-tests=error
stage "done"
