#!/usr/bin/env bash
# Tests with clients too large for `make test`: lm_eval against plain requests (build/venv-eval, 760 MB),
# and benchmark clients beside `eyrie bench serve` (build/venv-clients, 1.3 GB).
#   tools/clients.sh [eval|bench]    [arguments of tests/clients/bench_compare.py]
set -euo pipefail
cd "$(dirname "$0")/.."

# vLLM's wheel on PyPI is a CUDA build that asks for PyTorch and its CUDA libraries, gigabytes of them;
# but its benchmark client is one program in there that needs nothing else.
vllm=0.33.0

environment() {  # folder, requirements
  cmp -s "$2" "$1/.requirements" 2>/dev/null && return
  echo "clients: making the Python environment $1 with pip from $2"
  python3 -m venv --clear "$1"
  "$1/bin/pip" install -q --disable-pip-version-check -r "$2"
  cp "$2" "$1/.requirements"
}

what=${1:-all}
[ $# -eq 0 ] || shift
export EYRIE=${EYRIE:-$PWD/build/release/eyrie}
[ -x "$EYRIE" ] || make --no-print-directory build

if [ "$what" = eval ] || [ "$what" = all ]; then
  environment build/venv-eval tools/eval/requirements.txt
  build/venv-eval/bin/python -W ignore tests/clients/lm_eval_test.py
fi
if [ "$what" = bench ] || [ "$what" = all ]; then
  environment build/venv-clients tests/clients/requirements.txt
  if ! build/venv-clients/vllm-rs --version 2>/dev/null | grep -q "$vllm"; then
    echo "clients: taking vllm-rs out of the wheel of vllm $vllm (340 MB)"
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    build/venv-clients/bin/pip download -q --disable-pip-version-check --no-deps -d "$folder" "vllm==$vllm"
    python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract("vllm/vllm-rs", sys.argv[2])' \
      "$folder"/vllm-*.whl "$folder"
    install -m 755 "$folder/vllm/vllm-rs" build/venv-clients/vllm-rs
  fi
  python3 tests/clients/bench_compare.py "$@"
fi
