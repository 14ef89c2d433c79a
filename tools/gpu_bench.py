#!/usr/bin/env python3
"""What a GPU does with our program, in one go: tables for docs/benchmarks.md, and everything as JSON.

    tools/gpu_bench.py [--eyrie build/cuda/eyrie] [--out build/gpu-bench] [--parts latency,sweep,lengths,peer,micro]

    latency   true-size layers of Kimi-K2.5 in MXFP4 (8 of 61, about 70 GB, made-up weights) without drafts, with six BF16
              and with six FP8 drafts of synthetic acceptance 3.62: the decoding step beside what it reads, the
              fixed cost a layer, the projection to the whole model on eight cards (gpu_projection.py)
    sweep     the published three-column experiment on nano: no draft, BF16, FP8
    lengths   nano with fixed numbers of drafts and with numbers that choose themselves, the BF16 draft
    peer      nano in BF16 through our server and through transformers, the same prompts
    micro     the commands given with --micro, their output as it is

Each part has a time limit and may fail alone; what failed is said. Standard library (peer needs PyTorch, transformers).
"""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

import gpu_projection

ROOT = pathlib.Path(__file__).resolve().parents[1]
NANO = "models/kimi-k2.5-nano"
KIMI = "models/kimi-k2.5"
PROMPTS = "data/prompts/nano-mix.jsonl"
# Tokens a step brings with six drafts of this family (InferenceX, Kimi-K2.5 EAGLE-3, coding, thinking on).
ACCEPTANCE_LENGTH = 3.62
DRAFTS = 6
# Share of the speculative and plain limits that the published MI355X runs reach, by concurrency.
PUBLISHED_PLAIN = {4: 18, 8: 25, 16: 32, 32: 42, 64: 50}
PUBLISHED_SPEEDUP = {4: 2.00, 8: 1.90, 16: 1.87, 32: 1.85, 64: 1.76}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eyrie", default="build/cuda/eyrie")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/gpu-bench")
    parser.add_argument("--parts", default="latency,sweep,lengths,peer,micro")
    parser.add_argument("--bandwidth", type=float, default=4260, help="GB/s of a device-to-device copy (measured)")
    parser.add_argument("--tflops", type=float, default=790, help="bfloat16 matrix rate, TFLOP/s (measured)")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--fewer-layers", type=int, default=2, help="measured too, for what one layer costs; 0: not")
    parser.add_argument("--steps", type=int, default=72, help="decoding steps of a point of latency, about")
    parser.add_argument("--overrides", type=json.loads, default={}, help="of text_config, to try this on a small machine")
    parser.add_argument("--batch-sizes", default="1,4,8,16,32,64")
    parser.add_argument("--context", type=int, default=1536)
    parser.add_argument("--draft-kinds", default="none,bf16,fp8", help="columns of latency")
    parser.add_argument("--concurrency", default="4,8,16,32,64", help="of sweep")
    parser.add_argument("--prompts-per-concurrency", type=int, default=40, help="of sweep and lengths: seconds a point")
    parser.add_argument("--repeats", type=int, default=1, help="of every point of sweep and lengths")
    parser.add_argument("--lengths", default="1,2,3,4,6", help="fixed numbers of drafts")
    parser.add_argument("--lengths-concurrency", default="4,16,64")
    parser.add_argument("--peer-concurrency", default="1,4,8,16,32,64")
    parser.add_argument("--transformers", type=pathlib.Path, help="an earlier transformers_peer.py --json, not run again")
    parser.add_argument("--serve-args", default="", help="more flags for every server and engine")
    parser.add_argument("--micro", action="append", default=[], metavar="COMMAND")
    parser.add_argument("--limit", type=float, default=240, help="seconds a command may take")
    return parser.parse_args()


class Bench:
    def __init__(self, args):
        self.args = args
        self.eyrie = str(ROOT / args.eyrie) if not os.path.isabs(args.eyrie) else args.eyrie
        self.more = shlex.split(args.serve_args)
        self.text = []     # Markdown
        self.result = {"command": " ".join(map(shlex.quote, sys.argv)), "machine": machine(), "parts": {}}
        args.out.mkdir(parents=True, exist_ok=True)

    def run(self, name, command):
        """True when it ended well; its output is in OUT/name.txt."""
        print(f"[{time.strftime('%H:%M:%S')}] {name}: {' '.join(map(shlex.quote, command))}", flush=True)
        start, log = time.monotonic(), self.args.out / f"{name}.txt"
        with open(log, "wb") as out:
            try:
                code = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
                                      timeout=self.args.limit, check=False).returncode
            except subprocess.TimeoutExpired:
                code = "none: it took too long"
            except OSError as error:
                code = str(error)
        seconds = time.monotonic() - start
        self.result["parts"][name] = {"command": command, "exit": code, "seconds": round(seconds, 1)}
        print(f"  {seconds:.1f} s, exit {code}", flush=True)
        if code != 0:
            tail = log.read_text(errors="replace").strip().splitlines()[-3:] if log.exists() else []
            self.text.append(f"{name} failed (exit {code}): {' / '.join(tail)}\n")
            print("  " + "\n  ".join(tail), flush=True)
        return code == 0

    def table(self, title, header, rows):
        lines = [title, "", "| " + " | ".join(header) + " |", "|" + "--:|" * len(header)]
        lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
        self.text.append("\n".join(lines) + "\n")
        print("\n" + self.text[-1], flush=True)

    def write(self):
        (self.args.out / "gpu_bench.json").write_text(json.dumps(self.result, indent=1) + "\n")
        (self.args.out / "gpu_bench.md").write_text("\n".join(self.text))
        print(f"{self.args.out / 'gpu_bench.md'}, gpu_bench.json")


def machine():
    fields = "name,driver_version,memory.total,power.limit"
    try:
        out = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], capture_output=True,
                             text=True, timeout=30, check=False)
        return out.stdout.strip().splitlines()[0] if out.stdout.strip() else "no GPU"
    except OSError:
        return "no GPU"


def speculation(kind):
    model = f"{KIMI}-eagle3" + ("-fp8" if kind == "fp8" else "")
    return {"model": model, "method": "eagle3", "num_speculative_tokens": DRAFTS, "adaptive": False,
            "rejection_sample_method": "synthetic", "synthetic_acceptance_length": ACCEPTANCE_LENGTH}


def latency_points(bench, name, layers, batch_sizes, kind="none"):
    """Batches of `bench latency` on so many true-size layers; [] when it failed."""
    args = bench.args
    out = args.out / f"{name}.json"
    # As many steps with drafts as without; the middle of the answers lies at the wanted context.
    output_len = args.steps if kind == "none" else int(args.steps * ACCEPTANCE_LENGTH)
    command = [bench.eyrie, "bench", "latency", KIMI, "--load-format", "dummy", "--hf-overrides",
               json.dumps({"text_config": {"num_hidden_layers": layers, **args.overrides}}), "--batch-size", batch_sizes,
               "--input-len", str(args.context - output_len // 2), "--output-len", str(output_len),
               "--num-iters-warmup", "1", "--num-iters", "1", "--enable-prefix-caching",
               "--bandwidth", str(args.bandwidth), "--peak-tflops", str(args.tflops), "--output-json", str(out)]
    if kind != "none":
        command += ["--speculative-config", json.dumps(speculation(kind))]
    if not bench.run(name, command + bench.more):
        return []
    bench.result[name] = json.loads(out.read_text())["eyrie"]["batches"]
    return [p for p in bench.result[name] if "step_ms" in p]


def run_latency(bench):
    """The decoding step of true-size layers; one load a kind of draft."""
    args = bench.args
    fixed = None  # seconds a layer, of plain steps
    for kind in args.draft_kinds.split(","):
        points = latency_points(bench, f"latency-{kind}", args.layers, args.batch_sizes, kind)
        if not points:
            continue
        rows = []
        for p in points:
            read = sum(p["read_bytes"].values())
            row = [p["batch_size"], f"{p['expected_experts']:.0f}", f"{read / 1e9:.2f}", f"{p['step_ms']['p50']:.3f}",
                   f"{p['limit_ms']:.3f}", f"{100 * p['share_of_limit']:.0f} %"]
            if kind != "none":
                draft_limit = sum(v for k, v in p["read_bytes"].items() if k.startswith("draft")) / args.bandwidth / 1e6
                row += [f"{p['target_ms']:.2f} ({p['limit_ms'] - draft_limit:.2f})",
                        f"{p['draft_ms']:.2f} ({draft_limit:.2f})"]
            row += [f"{p['outside_ms']:.3f}", f"{p['tokens_per_sequence_step']:.2f}",
                    f"{p['output_tokens_per_second']:.0f}"]
            published = PUBLISHED_PLAIN.get(p["batch_size"])
            rows.append(row + ([f"{published} %" if published else "-"] if kind == "none" else []))
        header = ["C", "experts", "GB read", "step ms", "limit ms", "of limit",
                  *([] if kind == "none" else ["target (limit)", "draft (limit)"]), "outside", "tok/step", "tok/s",
                  *(["published runs, of theirs"] if kind == "none" else [])]
        title = "without drafts" if kind == "none" else f"{DRAFTS} drafts, {kind.upper()} draft model"
        bench.table(f"{args.layers} of 61 layers, {title}, context {args.context}", header, rows)
        read = [sum(p["read_bytes"].values()) for p in points]
        if kind == "none" and max(read) > 1.5 * min(read):  # else a line through them says nothing
            fixed = layer_costs(bench, points)
        if fixed is not None:
            project(bench, kind, points, fixed)


def layer_costs(bench, points):
    """Seconds that a layer costs whatever the batch; a table of single layers where --fewer-layers is given."""
    args, bandwidth = bench.args, 1e9 * bench.args.bandwidth
    few = latency_points(bench, "latency-few", args.fewer_layers, args.batch_sizes) if args.fewer_layers > 0 else []
    rows = gpu_projection.layer_rows(points, few, args.layers - args.fewer_layers, bandwidth)
    if len(rows) > 1:
        fixed, efficiency = gpu_projection.fit([(read, seconds) for _, read, seconds in rows])
        bench.table(
            f"One layer with experts ({args.layers} layers less {args.fewer_layers}): {1e6 * fixed:.0f} us and "
            f"{100 * efficiency:.0f} % of the bandwidth",
            ["C", "us", "limit us", "of limit"],
            [[c, f"{1e6 * t:.1f}", f"{1e6 * read:.1f}", f"{100 * read / t:.0f} %"] for c, read, t in rows])
    else:
        step, efficiency = gpu_projection.fit(
            [(gpu_projection.read_seconds(p, bandwidth), gpu_projection.step_seconds(p)) for p in points])
        fixed = step / args.layers
    bench.result["layer"] = {"fixed_us": 1e6 * fixed, "efficiency": efficiency, "rows": rows}
    return fixed


def project(bench, kind, points, fixed):
    rows = gpu_projection.project(points, bench.args.layers, 1e9 * bench.args.bandwidth, fixed)
    bench.result[f"projection-{kind}"] = rows
    bench.table(
        f"Projection to 61 layers on 8 cards ({kind}): {1e6 * fixed:.0f} us a layer, all-reduce assumed",
        ["C", "of bandwidth", "GB a rank", "fixed ms", "all-reduce ms", "reading ms", "step ms", "tok/s", "tok/s/GPU",
         "tok/s/user"],
        [[r["batch_size"], f"{100 * r['efficiency']:.0f} %", f"{r['rank_gb']:.1f}", f"{r['fixed_ms']:.2f}",
          f"{r['all_reduce_ms']:.2f}", f"{r['read_ms']:.2f}", f"{r['step_ms']:.2f}", f"{r['tok_s']:.0f}",
          f"{r['tok_s_gpu']:.0f}", f"{r['tok_s_user']:.0f}"] for r in rows])


def sweep(bench, name, model, configs, client, serve_args):
    """Points of `bench sweep`; [] when it failed."""
    out = bench.args.out / name
    command = [bench.eyrie, "bench", "sweep", model, "--serve-args", shlex.join(shlex.split(serve_args) + bench.more)]
    for config in configs:
        command += ["--config", config]
    command += ["--dataset-name", "custom", "--dataset-path", PROMPTS, "--skip-chat-template", "--temperature", "0",
                "--out", str(out), "--fresh", *client]
    if not bench.run(name, command):
        return []
    return json.loads((out / "sweep.json").read_text())["points"]


def quantized(bench, source, scheme):
    """The bundled model in another format, made when it is missing."""
    folder = ROOT / f"build/models/{pathlib.Path(source).name}-{scheme}"
    if not folder.exists():
        bench.run(f"quantize-{scheme}", [bench.eyrie, "quantize", source, str(folder), "--scheme", scheme])
    return str(folder)


def config_with(name, draft, drafts=DRAFTS, **more):
    spec = {"model": draft, "method": "eagle3", "num_speculative_tokens": drafts, **more}
    return f"{name}=--speculative-config {shlex.quote(json.dumps(spec))}"


def sweep_nano(bench, name, configs, concurrency):
    return sweep(bench, name, quantized(bench, NANO, "mxfp4"), configs,
                 ["--concurrency", concurrency, "--prompts-per-concurrency", str(bench.args.prompts_per_concurrency),
                  "--repeats", str(bench.args.repeats)], "--max-model-len 2304 --no-enable-prefix-caching")


def run_lengths(bench):
    draft = NANO + "-eagle3"
    names = [f"{k} drafts" for k in bench.args.lengths.split(",")]
    configs = ["no draft"] + [config_with(name, draft, int(k), adaptive=False)
                              for name, k in zip(names, bench.args.lengths.split(","))]
    points = sweep_nano(bench, "lengths", configs + [config_with("adaptive", draft)], bench.args.lengths_concurrency)
    bench.result["lengths"] = [{k: v for k, v in p.items() if k != "runs"} for p in points]
    rate = {(p["config"], p["concurrency"]): p["output_throughput"] for p in points}
    if not points:
        return
    counts = sorted({count for _, count in rate})
    rows = [["no draft, out tok/s", *(f"{rate['no draft', c]:.0f}" for c in counts)]]
    rows += [[name, *(f"{rate[name, c] / rate['no draft', c]:.2f}×" for c in counts)] for name in names + ["adaptive"]]
    rows.append(["adaptive of the best", *(
        f"{rate['adaptive', c] / max(rate[n, c] for n in names + ['no draft']):.2f}×" for c in counts)])
    bench.table("Draft lengths on nano, BF16 draft", ["drafts", *(f"C = {c}" for c in counts)], rows)


def run_sweep(bench):
    configs = ["no draft", config_with("BF16 EAGLE-3", NANO + "-eagle3"),
               config_with("FP8 EAGLE-3", quantized(bench, NANO + "-eagle3", "fp8"))]
    points = sweep_nano(bench, "sweep", configs, bench.args.concurrency)
    bench.result["sweep"] = [{k: v for k, v in p.items() if k != "runs"} for p in points]
    rows = [[p["config"], p["concurrency"], f"{p['total_token_throughput']:.0f}", f"{p['output_throughput']:.0f}",
             f"{p['speedup']:.2f}×" if p["speedup"] else "-",
             f"{PUBLISHED_SPEEDUP[p['concurrency']]:.2f}×" if "FP8" in p["config"] and
             p["concurrency"] in PUBLISHED_SPEEDUP else "-",
             f"{p['acceptance_length']:.2f}" if p["acceptance_length"] else "-"] for p in points]
    if rows:
        bench.table("Nano, nano-mix", ["configuration", "C", "tok/s", "out tok/s", "speedup", "published", "accept"], rows)


def run_peer(bench):
    """Decoding alone on both sides: time to the first token is left out of either."""
    out = bench.args.transformers or bench.args.out / "peer.json"
    peer = {}
    command = [sys.executable, "tools/peers/transformers_peer.py", "--concurrency", bench.args.peer_concurrency, "--json",
               str(out)]
    if bench.args.transformers or bench.run("peer-transformers", command):
        peer = {p["concurrency"]: p for p in json.loads(out.read_text())["points"]}
    points = sweep(bench, "peer-eyrie", NANO, ["BF16"],
                   ["--concurrency", bench.args.peer_concurrency, "--prompts-per-concurrency", "1", "--disable-shuffle",
                    "--custom-output-len", "128", "--ignore-eos", "--repeats", "3"],
                   "--max-model-len 2304 --no-enable-prefix-caching")
    ours = {}
    for point in points:
        steps = sorted(run["mean_tpot_ms"] for run in point["runs"])
        ours[point["concurrency"]] = 1e3 * point["concurrency"] / steps[len(steps) // 2]
    bench.result["peer"] = {"transformers": peer, "eyrie_decode_tok_s": ours}
    rows = [[c, f"{ours[c]:.0f}" if c in ours else "-", f"{peer[c]['decode_tok_s']:.0f}" if c in peer else "-",
             f"{ours[c] / peer[c]['decode_tok_s']:.1f}×" if c in ours and c in peer else "-"]
            for c in sorted({*ours, *peer})]
    if rows:
        bench.table("Nano in BF16, decoding, tok/s", ["C", "Eyrie (server)", "transformers", "ratio"], rows)


def run_micro(bench):
    for i, command in enumerate(bench.args.micro):
        if bench.run(f"micro-{i}", shlex.split(command)):
            output = (bench.args.out / f"micro-{i}.txt").read_text(errors="replace")
            bench.text.append(f"`{command}`\n\n```\n{output}```\n")


def main():
    args = arguments()
    bench = Bench(args)
    parts = {"latency": run_latency, "sweep": run_sweep, "lengths": run_lengths, "peer": run_peer, "micro": run_micro}
    for part in args.parts.split(","):
        if part not in parts:
            sys.exit(f"--parts names {part}; there are {', '.join(parts)}")
        try:
            parts[part](bench)
        except (KeyError, ValueError, OSError) as error:
            bench.text.append(f"{part} failed: {error!r}\n")
            print(f"{part} failed: {error!r}", flush=True)
        bench.write()


if __name__ == "__main__":
    main()
