#!/usr/bin/env bash
# The quantized variants of the bundled models, made by our own quantizer into build/models/.
set -euo pipefail
cd "$(dirname "$0")/.."
eyrie=${EYRIE:-build/release/eyrie}
mkdir -p build/models

# make NAME SOURCE SCHEME: again only when the source or the program is newer.
make_model() {
  local out=build/models/$1 source=models/$2 scheme=$3
  if [ -f "$out/config.json" ] && [ "$out/config.json" -nt "$source/model.safetensors" ] && [ "$out/config.json" -nt "$eyrie" ]; then
    return
  fi
  "$eyrie" quantize "$source" "$out" --scheme "$scheme" --overwrite
}

make_model kimi-k2.5-nano-mxfp4 kimi-k2.5-nano mxfp4
make_model kimi-k2.5-nano-eagle3-fp8 kimi-k2.5-nano-eagle3 fp8
