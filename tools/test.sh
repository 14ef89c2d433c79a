#!/usr/bin/env bash
# Everything CI runs, from nothing: install, build, format, lint, unit and end-to-end tests. One build, the dev
# preset's: the release build (make build, make demo) compiles the same sources once more and would be a fifth of
# the time.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS
stage() { echo "== $* ($((SECONDS - started)) s)"; }

tools/setup.sh test
mkdir -p build
# The GPU backend is compiled where its compilers are, for one device each; its tests say that there is no GPU.
gpu=(-DEYRIE_CUDA=OFF -DEYRIE_HIP=OFF)
if command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
  gpu[0]=-DEYRIE_CUDA=ON
  gpu+=(-DEYRIE_CUDA_ARCHITECTURES=90a-real)
fi
if command -v hipcc >/dev/null; then gpu[1]=-DEYRIE_HIP=ON; fi
stage "test build (${gpu[*]})"
cmake --preset dev "${gpu[@]}" >build/dev-configure.log 2>&1 || { cat build/dev-configure.log; exit 1; }
cmake --build --preset dev -j "${JOBS:-$(nproc)}"
stage "format"
make --no-print-directory fmt-check
stage "lint"
tools/tidy.sh
stage "tests"
ctest --test-dir build/dev --output-on-failure -j "${JOBS:-$(nproc)}" --no-tests=error
stage "done"
