#!/usr/bin/env python3
"""The recovery table: every quantized variant of a model against its BF16 original, by lm_eval.

    tools/eval/recovery.py [--limit N] [--variants BF16,MXFP4,…] [--schemes-only]

Each variant is made by `eyrie quantize`, started with `eyrie serve`, and asked over HTTP by lm_eval exactly
as the tutorial does (text prompts, local-completions, 32 at a time, 5-shot). Recovery = variant / BF16 on
the same problems; its interval is a paired bootstrap over problems, so what both models find hard or easy
cancels out. Answers are kept in OUT; a finished row is not run again unless --fresh is given.

Columns:
  weights    activations as they are (--activation-quantization off)
  int8       as served on a CPU by default: those of 4-bit layers rounded to 8 bits
  emulated   activations rounded as the hardware of that format would (emulate)
  FP8 KV     emulated, and --kv-cache-dtype fp8
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
import harness

TASK = "gsm8k_nano"
SCHEMES = {"BF16": None, "FP8": "fp8", "MXFP4": "mxfp4", "NVFP4": "nvfp4", "INT4": "int4-g32"}
MODES = {
    "weights": ["--activation-quantization", "off"],
    "int8": [],
    "emulated": ["--activation-quantization", "emulate"],
    "FP8 KV": ["--activation-quantization", "emulate", "--kv-cache-dtype", "fp8"],
}
# Nothing rounds the activations of BF16 and INT4 (W4A16) models: their second column is their first.
WEIGHT_ONLY = {"BF16", "INT4"}
FOUR_BITS = {"MXFP4", "NVFP4", "INT4"}
PUBLISHED = 99.26  # % of BF16 on GSM8K: AMD's figure for Kimi-K2.5 in MXFP4


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/kimi-k2.5-nano")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/eval")
    parser.add_argument("--variants", default=",".join(SCHEMES), help=f"of {', '.join(SCHEMES)}")
    parser.add_argument("--modes", default=",".join(MODES), help=f"of {', '.join(MODES)}")
    parser.add_argument("--limit", type=int, default=0, help="only the first N problems")
    parser.add_argument("--fresh", action="store_true", help="run rows again whose answers are kept")
    parser.add_argument("--lm-eval", default=str(pathlib.Path(sys.executable).parent / "lm_eval"))
    parser.add_argument("--check", action="store_true",
                        help=f"exit 1 when MXFP4 or NVFP4 emulated is under {PUBLISHED} %% or with FP8 KV under 99.5 %%")
    args = parser.parse_args()
    for given, known, flag in ((args.variants, SCHEMES, "--variants"), (args.modes, MODES, "--modes")):
        for name in given.split(","):
            if name not in known:
                parser.error(f"{flag} {name} is unknown; accepted are {', '.join(known)}")
    return args


def checkpoint(args, variant) -> pathlib.Path:
    scheme = SCHEMES[variant]
    if scheme is None:
        return args.model
    out = args.out / "models" / f"{args.model.name}-{scheme}"
    newest_input = max((args.model / "model.safetensors").stat().st_mtime, pathlib.Path(harness.EYRIE).stat().st_mtime)
    if not (out / "config.json").exists() or (out / "config.json").stat().st_mtime < newest_input:
        out.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([harness.EYRIE, "quantize", args.model, out, "--scheme", scheme, "--overwrite"],
                       check=True, stdout=subprocess.DEVNULL)
    return out


def lm_eval(args, server, out):
    url = f"http://127.0.0.1:{server.port}/v1/completions"
    model_args = f"model=nano,base_url={url},tokenized_requests=False,tokenizer_backend=None,num_concurrent=32"
    command = [args.lm_eval, "--model", "local-completions", "--model_args", model_args,
               "--include_path", str(ROOT / "tools/eval"), "--tasks", TASK, "--num_fewshot", "5", "--batch_size", "1",
               "--output_path", str(out), "--log_samples"]
    if args.limit:
        command += ["--limit", str(args.limit)]
    with open(out / "lm_eval.log", "w") as log:
        done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit(f"lm_eval failed with {done.returncode}; see {out / 'lm_eval.log'}")


def correctness(out) -> dict:
    """Problem number → 1 or 0 by strict match, from the samples lm_eval logged last."""
    files = sorted(out.glob("**/samples_*.jsonl"))
    if not files:
        return {}
    rows = [json.loads(line) for line in files[-1].read_text().splitlines()]
    return {row["doc_id"]: row["exact_match"] for row in rows if row["filter"] == "strict-match"}


def answers(args, variant, mode) -> dict:
    """Runs lm_eval on one cell of the table, or takes its kept answers."""
    limit = f"-first{args.limit}" if args.limit else ""
    out = args.out / (f"{args.model.name}-{variant}-{mode}{limit}".replace(" ", "").lower())
    model = checkpoint(args, variant)
    newest_input = max((model / "config.json").stat().st_mtime,
                       (ROOT / "data/eval/gsm8k-nano-test.jsonl").stat().st_mtime)
    stamp = out / "done"
    if stamp.exists() and stamp.stat().st_mtime > newest_input and not args.fresh:
        return correctness(out)
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with harness.Server("--served-model-name", "nano", *MODES[mode], model=model) as server:
        lm_eval(args, server, out)
    stamp.touch()
    print(f"  {variant}, {mode}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    return correctness(out)


def recovery(cell: dict, base: dict):
    """(recovery, low, high) in percent; the interval is a paired bootstrap over problems."""
    import numpy as np
    ids = sorted(base)
    if sorted(cell) != ids:
        sys.exit(f"{len(cell)} answers where BF16 has {len(ids)}: run with --fresh")
    a, b = np.array([cell[i] for i in ids]), np.array([base[i] for i in ids])
    draws = np.random.default_rng(0).integers(0, len(ids), (10000, len(ids)))
    ratios = a[draws].sum(axis=1) / b[draws].sum(axis=1)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return 100 * a.sum() / b.sum(), 100 * low, 100 * high


def main():
    args = parse_args()
    variants, modes = args.variants.split(","), args.modes.split(",")
    if not pathlib.Path(args.lm_eval).exists():
        sys.exit(f"{args.lm_eval} is missing: run tools/eval/run.sh, which installs it, or give --lm-eval")
    base = answers(args, "BF16", "weights")
    lines, missed = [], []
    for variant in variants:
        for mode in modes:
            if (mode == "emulated" and variant in WEIGHT_ONLY) or (mode == "int8" and variant not in FOUR_BITS):
                continue
            cell = answers(args, variant, mode)
            percent, low, high = recovery(cell, base)
            lines.append((variant, mode, f"{sum(cell.values()):.0f} of {len(cell)}",
                          f"{100 * sum(cell.values()) / len(cell):.2f}", f"{percent:.2f}", f"{low:.2f} – {high:.2f}"))
            limit = {"emulated": PUBLISHED, "FP8 KV": 99.5}.get(mode)
            if variant in ("MXFP4", "NVFP4") and limit and percent < limit:
                missed.append(f"{variant}, {mode}: {percent:.2f} % is under {limit} %")
    head = ("model", "mode", "correct", "%", "recovery %", "95 % interval")
    widths = [max(len(row[i]) for row in [head, *lines]) for i in range(len(head))]
    for row in (head, tuple("-" * w for w in widths), *lines):
        print("| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths)) + " |")
    for line in missed:
        print(f"NOT MET: {line}")
    return 1 if missed and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
