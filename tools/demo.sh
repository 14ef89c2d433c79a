#!/usr/bin/env bash
# The published experiment on the bundled model: the MXFP4 target served without a draft, with the
# BF16 EAGLE-3 draft and with the FP8 one, swept over concurrencies, beside the published table.
# Greedy decoding: all three configurations give the same answers, token for token.
set -euo pipefail
cd "$(dirname "$0")/.."
spec() { printf -- "--speculative-config '{\"model\":\"%s\",\"method\":\"eagle3\",\"num_speculative_tokens\":%d}'" "$1" "${DRAFTS:-6}"; }
exec build/release/eyrie bench sweep build/models/kimi-k2.5-nano-mxfp4 \
  --serve-args "--max-model-len 2304 --no-enable-prefix-caching" \
  --config "no draft" \
  --config "BF16 EAGLE-3=$(spec models/kimi-k2.5-nano-eagle3)" \
  --config "FP8 EAGLE-3=$(spec build/models/kimi-k2.5-nano-eagle3-fp8)" \
  --concurrency "${CONCURRENCY:-1,2,4,8}" \
  --dataset-name custom --dataset-path data/prompts/nano-mix.jsonl --skip-chat-template --temperature 0 \
  --reference amd-mi355x-tp4 --out build/demo "$@"
