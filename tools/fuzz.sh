#!/usr/bin/env bash
# Fuzzes with libFuzzer under asan+ubsan: each target for some seconds, one after the other.
#   tools/fuzz.sh [SECONDS] [TARGET]    60 seconds of every target of tests/fuzz
# What is new is kept in build/fuzz/corpus/TARGET, findings in build/fuzz/findings. To run one again:
#   build/fuzz/fuzz_TARGET build/fuzz/findings/TARGET-crash-…
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
build=${EYRIE_FUZZ_BUILD:-build/fuzz}  # a folder with the targets, built elsewhere perhaps

if [ -z "${EYRIE_FUZZ_BUILD:-}" ]; then
  mkdir -p "$build"
  cmake --preset fuzz >"$build/configure.log" 2>&1 || { cat "$build/configure.log"; exit 1; }
  cmake --build --preset fuzz -j "${JOBS:-$(nproc)}"
fi
mkdir -p "$build/findings"
export UBSAN_OPTIONS=print_stacktrace=1
found=0
for seeds in tests/fuzz/corpus/*; do
  target=$(basename "$seeds")
  [ -z "${2:-}" ] || [ "$target" = "$2" ] || continue
  mkdir -p "$build/corpus/$target"
  dictionary=tests/fuzz/$target.dict
  arguments=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1
             -artifact_prefix="$build/findings/$target-")
  [ ! -f "$dictionary" ] || arguments+=(-dict="$dictionary")
  echo "fuzz: $target for $seconds s"
  if ! "$build/fuzz_$target" "${arguments[@]}" "$build/corpus/$target" "$seeds" >"$build/$target.log" 2>&1; then
    found=1
    echo "fuzz: $target has a finding; its log is $build/$target.log"
  fi
  grep -E 'SUMMARY|CHECK|Test unit written|stat::(number_of_executed_units|new_units_added|peak_rss_mb)' \
    "$build/$target.log" || tail -5 "$build/$target.log"
done
exit $found
