#!/usr/bin/env bash
# clang-tidy (.clang-tidy, every finding an error) over our sources, with the dev preset's commands.
# A file whose content and headers did not change since it passed is not read again.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/dev}
[ -f "$build/compile_commands.json" ] || cmake --preset dev >/dev/null
stamps=$build/tidy
mkdir -p "$stamps"
headers=$(git ls-files -s '*.h' .clang-tidy | sha256sum | cut -c1-16)

check() {
  local stamp=$stamps/$(echo "$1" "$headers" "$(sha256sum <"$1")" | sha256sum | cut -c1-24)
  [ -f "$stamp" ] && return 0
  clang-tidy --quiet -p "$build" "$1" 2>&1 | grep -v 'warnings generated\|^Suppressed\|^Use -header-filter' || true
  if [ "${PIPESTATUS[0]}" -ne 0 ]; then return 1; fi
  touch "$stamp"
}
export -f check
export build stamps headers
# clang 14 cannot read libstdc++'s <coroutine>, which Asio's awaitable needs: the two files with coroutines are left out.
# So are files that this build does not compile (the GPU backend's, or what takes its place).
git ls-files 'src/*.cpp' | while read -r file; do
  if grep -qF "/$file\"" "$build/compile_commands.json"; then echo "$file"; fi
done | grep -v -e '_test.cpp$' -e '^src/server/\(connection\|server\).cpp$' | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'check {}'
