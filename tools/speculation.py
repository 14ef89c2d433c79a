#!/usr/bin/env python3
"""What drafts bring at each concurrency: no draft, every fixed length, and lengths that size themselves.

Servers start one after the other, are all up at once and take turns, so that a machine that slows down slows them
all. Beside every run with drafts there is one without, right before or right after it; the table shows medians of
output tokens per second and, in brackets, medians of the ratios of such pairs. The answers must be the same everywhere.

    tools/speculation.py                                   nano in MXFP4, BF16 draft, prompts of nano-mix
    tools/speculation.py --out f.json                      again with --append f.json: more rounds for the same table
    tools/speculation.py --also fp8,ngram                  more columns that size themselves
    tools/speculation.py --mini                            mini, dummy weights, synthetic acceptance 3.62
    tools/speculation.py --side-by-side --lengths 6        both of a pair at once, a core each, swapped every round:
                                                           where a core's speed changes from one second to the next
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
EYRIE = os.environ.get("EYRIE", str(ROOT / "build/release/eyrie"))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="build/models/kimi-k2.5-nano-mxfp4")
    parser.add_argument("--draft", default="models/kimi-k2.5-nano-eagle3")
    parser.add_argument("--fp8-draft", default="build/models/kimi-k2.5-nano-eagle3-fp8")
    parser.add_argument("--mini", action="store_true", help="mini's shapes instead of nano")
    parser.add_argument("--lengths", default="1,2,3,4,5,6", help="fixed draft lengths; the largest is the cap too")
    parser.add_argument("--also", default="", help="fp8, ngram: columns with another proposer, adaptive")
    parser.add_argument("--concurrency", default="1,4,16,64")
    parser.add_argument("--prompts", type=int, default=2, help="per client; at least 24 in all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side-by-side", action="store_true", help="a pair runs at once, each on a core of its own")
    parser.add_argument("--only-adaptive", action="store_true", help="no columns of fixed lengths")
    parser.add_argument("--out", help="a file for all results as JSON, rewritten after every round")
    parser.add_argument("--append", help="--out, and the rounds already in that file count too")
    return parser.parse_args()


class Server:
    def __init__(self, args, name, speculative):
        self.name = name
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        command = [EYRIE, "serve", args.target, "--port", str(self.port), "--host", "127.0.0.1",
                   "--no-enable-prefix-caching", "--max-model-len", "2304", "--num-gpu-blocks-override", "6000"]
        command += ["--load-format", "dummy"] if args.mini else []
        command += ["--cpu-threads", "1"] if args.side_by_side else []
        if speculative:
            command += ["--speculative-config", json.dumps(speculative)]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, cwd=ROOT)

    def wait(self):
        for _ in range(1200):
            if self.process.poll() is not None:
                self.log.seek(0)
                sys.exit(f"the server of {self.name} ended:\n{self.log.read()}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2)
                return
            except OSError:
                time.sleep(0.05)
        sys.exit(f"the server of {self.name} does not come up")

    def move_to(self, core):
        subprocess.run(["taskset", "-a", "-p", "-c", str(core), str(self.process.pid)], check=True, capture_output=True)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


class Client:
    """A run of the benchmark against one server."""

    def __init__(self, args, server, concurrency, core=None):
        self.server = server
        self.folder = tempfile.TemporaryDirectory()
        self.out = pathlib.Path(self.folder.name, "result.json")
        command = ["taskset", "-c", str(core)] if core is not None else []
        command += [EYRIE, "bench", "serve", "--model", args.target, "--port", str(server.port),
                    "--num-prompts", str(max(24 if not args.mini else 8, args.prompts * concurrency)),
                    "--max-concurrency", str(concurrency), "--num-warmups", str(min(concurrency, 8)),
                    "--temperature", "0", "--save-result", "--result-filename", str(self.out)]
        if args.mini:
            command += ["--dataset-name", "random", "--input-len", "32", "--output-len", "48", "--ignore-eos",
                        "--tokenizer", "models/kimi-k2.5-nano"]
        else:
            command += ["--dataset-name", "custom", "--dataset-path", "data/prompts/nano-mix.jsonl",
                        "--skip-chat-template"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)

    def result(self):
        printed, _ = self.process.communicate()
        if self.process.returncode != 0:
            sys.exit(f"bench serve against {self.server.name}: {printed}")
        return json.loads(self.out.read_text())


def measure_pair(args, none, server, concurrency, turn):
    """One after the other, to and fro, so that neither always goes first; or both at once, on each core in turn."""
    pair = (none, server) if turn % 2 == 0 else (server, none)
    if not args.side_by_side:
        return {one: Client(args, one, concurrency).result() for one in pair}
    for core, one in enumerate(pair):
        one.move_to(core)
    clients = [Client(args, one, concurrency, core) for core, one in enumerate(pair)]
    return {client.server: client.result() for client in clients}


def columns(args):
    lengths = [int(k) for k in args.lengths.split(",")]
    base = {"model": args.draft, "method": "eagle3"}
    if args.mini:
        base.update(rejection_sample_method="synthetic")

    def eagle(length, **more):
        config = {**base, "num_speculative_tokens": length, **more}
        if args.mini:
            # Acceptance length 3.62 with the longest draft; a shorter one has the same drafts, fewer of them.
            rates, survival = [], 1.0
            for _ in range(length):
                survival *= args.chance
                rates.append(survival)
            config["synthetic_acceptance_rates"] = rates
        return config

    if args.mini:
        low, high = 0.0, 1.0
        for _ in range(60):
            args.chance = (low + high) / 2
            mean = 1 + sum(args.chance ** j for j in range(1, max(lengths) + 1))
            low, high = (args.chance, high) if mean < 3.62 else (low, args.chance)
    out = {"none": None}
    if not args.only_adaptive:
        out.update({f"K={k}": eagle(k, adaptive=False) for k in lengths})
    out["adaptive"] = eagle(max(lengths))
    if "fp8" in args.also:
        out["adaptive, FP8 draft"] = eagle(max(lengths), model=args.fp8_draft)
    if "ngram" in args.also:
        out["adaptive, n-gram"] = {"method": "ngram", "num_speculative_tokens": max(lengths), "prompt_lookup_min": 2,
                                   "prompt_lookup_max": 4}
    return out


def ratio(results, name, other, concurrency):
    """The median over rounds; the runs without drafts are `none beside NAME`, the others' partners are of one round."""
    partners = results[f"none beside {name}" if other == "none" else other, concurrency]
    return statistics.median(a["output_throughput"] / b["output_throughput"]
                             for a, b in zip(results[name, concurrency], partners))


def table(args, results, concurrencies):
    speed = {key: statistics.median(one["output_throughput"] for one in runs) for key, runs in results.items()}
    names = [name for name in dict.fromkeys(name for name, _ in results) if not name.startswith("none beside ")]
    for c in concurrencies:
        every = [run for name, at in results if name.startswith("none beside ") and at == c for run in results[name, at]]
        speed["none", c] = statistics.median(run["output_throughput"] for run in every)

    def line(cells):
        print("| " + " | ".join(cells) + " |")

    line(["output tok/s"] + [f"C={c}" for c in concurrencies])
    line([":--"] + ["--:"] * len(concurrencies))
    line(["none"] + [f"{speed['none', c]:.0f}" for c in concurrencies])
    for name in names:
        line([name] + [f"{speed[name, c]:.0f} ({ratio(results, name, 'none', c):.2f}×)" for c in concurrencies])
    lengths = [n for n in names if n.startswith("K=")]
    fixed = {c: max(lengths, key=lambda n: ratio(results, n, "none", c)) for c in concurrencies if lengths}
    for name in (n for n in names if n.startswith("adaptive")):
        if fixed and name != "adaptive, n-gram":
            line([f"{name} / best fixed length"] +
                 [f"{ratio(results, name, fixed[c], c):.2f} ({fixed[c]})" for c in concurrencies])
        cells = []
        for c in concurrencies:
            sizing = [run["eyrie"].get("draft_sizing") for run in results[name, c]]
            sizing = [one for one in sizing if one and one["fixed_length_tok_s"]]
            shares = [one["decode_tok_s"] / max(one["fixed_length_tok_s"]) for one in sizing]
            best = [one["fixed_length_tok_s"].index(max(one["fixed_length_tok_s"])) for one in sizing]
            mean = [sum(k * share for k, share in enumerate(one["lengths"])) for one in sizing]
            cells.append(f"{100 * statistics.median(shares):.0f} % of {statistics.mode(best)} drafts, mean "
                         f"{statistics.median(mean):.2f}" if shares else "-")
        line([f"{name}: share of the optimum by measured costs and acceptance"] + cells)
    if args.mini:
        return
    for c in concurrencies:
        prints = {run["eyrie"]["answers_fingerprint"] for (_, at), runs in results.items() if at == c for run in runs}
        print(f"\nC={c}: " + ("all answers are the same" if len(prints) == 1 else "ANSWERS DIFFER"))


def main():
    args = arguments()
    if args.mini:
        args.target, args.draft = "models/kimi-k2.5-mini", "models/kimi-k2.5-mini-eagle3"
    concurrencies = [int(c) for c in args.concurrency.split(",")]
    out = args.append or args.out
    results = {}
    if args.append and pathlib.Path(args.append).exists():
        for row in json.loads(pathlib.Path(args.append).read_text()):
            results[row["column"], row["concurrency"]] = row["runs"]
    servers = []
    try:
        for name, config in columns(args).items():
            servers.append(Server(args, name, config))
            servers[-1].wait()
        none, *others = servers
        for turn in range(args.rounds):
            for c in concurrencies:
                # To and fro, so that nobody always goes first.
                for server in others if turn % 2 == 0 else reversed(others):
                    for one, result in measure_pair(args, none, server, c, turn).items():
                        column = one.name if one is server else f"none beside {server.name}"
                        results.setdefault((column, c), []).append(result)
            print(f"\nAfter {turn + 1} of {args.rounds} rounds:\n")
            table(args, results, concurrencies)
            sys.stdout.flush()
            if out:
                rows = [{"column": name, "concurrency": c, "runs": runs} for (name, c), runs in results.items()]
                pathlib.Path(out).write_text(json.dumps(rows, indent=1) + "\n")
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
