#!/usr/bin/env bash
# Installs lm_eval into build/venv-eval, builds the program where needed, and prints the recovery table.
#   tools/eval/run.sh [arguments of recovery.py]
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=build/venv-eval
if ! cmp -s tools/eval/requirements.txt "$venv/.requirements" 2>/dev/null; then
  echo "eval: making the Python environment $venv with pip from tools/eval/requirements.txt"
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r tools/eval/requirements.txt
  cp tools/eval/requirements.txt "$venv/.requirements"
fi
make --no-print-directory build
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME=$PWD/build/eval/hf
exec "$venv/bin/python" tools/eval/recovery.py "$@"
