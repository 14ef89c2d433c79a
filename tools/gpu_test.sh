#!/usr/bin/env bash
# The GPU backend's tests on a machine with a GPU (elsewhere they are skipped and say why).
#
#   tools/gpu_test.sh             build for Hopper, run the tests
#   tools/gpu_test.sh sanitize    and again under compute-sanitizer's memcheck and racecheck
#   tools/gpu_test.sh bench       and the kernels' timings (build/cuda-test/gpu_bench)
# EYRIE_CUDA_ARCHITECTURES=80-real etc. builds for another device. With BIN=folder the programs in it
# are run as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-build/cuda-test}
if [ -z "${BIN:-}" ]; then
  cmake --preset cuda-test ${EYRIE_CUDA_ARCHITECTURES:+-DEYRIE_CUDA_ARCHITECTURES="$EYRIE_CUDA_ARCHITECTURES"} >/dev/null
  cmake --build --preset cuda-test -j "${JOBS:-$(nproc)}"
fi
"$bin/gpu_test" --gtest_brief=1
for what in "$@"; do
  case $what in
    sanitize)
      for tool in memcheck racecheck; do
        echo "== compute-sanitizer $tool"
        compute-sanitizer --tool "$tool" --error-exitcode 1 "$bin/gpu_test" --gtest_brief=1
      done
      ;;
    bench) "$bin/gpu_bench" ;;
    *)
      echo "gpu_test.sh: what is \"$what\"? sanitize and bench are known" >&2
      exit 1
      ;;
  esac
done
