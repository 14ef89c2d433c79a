"""`eyrie bench serve` beside benchmark clients nobody here wrote, on one server with the same prompts:
vLLM's own (`vllm-rs bench serve`) and NVIDIA's aiperf. Prints them side by side; a client that is not there is said to be
missing. Needs build/venv-clients (make test-clients), so it is not part of make test.

    tests/clients/bench_compare.py [--prompts 64] [--concurrency 8] [--input-len 128] [--output-len 64] [--rounds 3]
                                   [--tolerance PERCENT]   exit 1 where throughput, TTFT, TPOT or latency differ by
                                                           more from vLLM's client (aiperf takes several cores of
                                                           its own, from the server on a small machine)
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import harness
from harness import ROOT, TARGET, Server

VENV = ROOT / "build/venv-clients"
# What is compared, in our result's words. ITL and the peaks are per chunk in one client and per token in another.
FIGURES = {"duration": "s", "request_throughput": "req/s", "output_throughput": "tok/s", "mean_ttft_ms": "ms",
           "median_ttft_ms": "ms", "p99_ttft_ms": "ms", "mean_tpot_ms": "ms", "median_tpot_ms": "ms",
           "mean_e2el_ms": "ms"}
JUDGED = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms")


def run(command, folder):
    done = subprocess.run([str(c) for c in command], cwd=folder, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def vllm_flags(args, port, prompts, out):
    """Both know these flags of vLLM's."""
    return ["--backend", "vllm", "--base-url", f"http://127.0.0.1:{port}", "--model", "nano", "--tokenizer", TARGET,
            "--dataset-name", "custom", "--dataset-path", prompts, "--custom-output-len", args.output_len,
            "--skip-chat-template", "--num-prompts", args.prompts, "--max-concurrency", args.concurrency,
            "--num-warmups", args.concurrency, "--ignore-eos", "--temperature", 0, "--disable-shuffle", "--save-result",
            "--percentile-metrics", "ttft,tpot,itl,e2el", "--result-dir", out.parent, "--result-filename", out.name]


def run_vllm_like(args, port, prompts, out, command):
    run([*command, "bench", "serve", *vllm_flags(args, port, prompts, out)], out.parent)
    result = json.loads(out.read_text())
    counts = (result["completed"], result["total_input_tokens"], result["total_output_tokens"])
    return {name: result[name] for name in FIGURES}, counts


def run_eyrie(args, port, prompts, out):
    return run_vllm_like(args, port, prompts, out, [harness.EYRIE])


def run_vllm(args, port, prompts, out):
    return run_vllm_like(args, port, prompts, out, [VENV / "vllm-rs"])


# aiperf wants a tokenizer of Hugging Face's form although the server counts the tokens: one of single bytes will do.
BYTE_TOKENIZER = """
import sys, tokenizers, transformers
alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = tokenizers.decoders.ByteLevel()
transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(sys.argv[1])
"""


def run_aiperf(args, port, prompts, out):
    texts = out.with_suffix(".texts.jsonl")
    texts.write_text("".join(json.dumps({"text": json.loads(line)["prompt"]}) + "\n"
                             for line in prompts.read_text().strip().split("\n")))
    extra = {"max_tokens": args.output_len, "min_tokens": args.output_len, "ignore_eos": True, "temperature": 0}
    folder = out.with_suffix("")
    tokenizer = out.parent / "byte-tokenizer"
    if not tokenizer.exists():
        run([VENV / "bin/python", "-c", BYTE_TOKENIZER, tokenizer], out.parent)
    run([VENV / "bin/aiperf", "profile", "--model", "nano", "--url", f"http://127.0.0.1:{port}", "--endpoint-type",
         "completions", "--streaming", "--use-server-token-count", "--tokenizer", tokenizer, "--input-file", texts,
         "--custom-dataset-type", "single_turn", "--dataset-sampling-strategy", "sequential", "--request-count",
         args.prompts, "--concurrency", args.concurrency, "--warmup-request-count", args.concurrency, "--extra-inputs",
         json.dumps(extra), "--output-artifact-dir", folder, "--ui", "none"], out.parent)
    result = json.loads(next(folder.rglob("profile_export_aiperf.json")).read_text())
    value = lambda name, stat="avg": result[name][stat]
    figures = {"duration": value("benchmark_duration"), "request_throughput": value("request_throughput"),
               "output_throughput": value("output_token_throughput"),
               "mean_ttft_ms": value("time_to_first_token"), "median_ttft_ms": value("time_to_first_token", "p50"),
               "p99_ttft_ms": value("time_to_first_token", "p99"),
               "mean_tpot_ms": value("inter_token_latency"), "median_tpot_ms": value("inter_token_latency", "p50"),
               "mean_e2el_ms": value("request_latency")}
    return figures, (round(value("request_count")), None, None)


CLIENTS = {"eyrie": run_eyrie, "vllm": run_vllm, "aiperf": run_aiperf}


def random_prompts(args, server, path):
    """Random tokens of the model's own vocabulary as text, cut to input_len tokens as the random dataset does it."""
    rng = random.Random(0)
    with path.open("w") as file:
        for _ in range(args.prompts):
            ids = [rng.randrange(1000) for _ in range(args.input_len)]
            for _ in range(3):  # the text's own tokens may be other and more
                text = server.post("/detokenize", {"model": "nano", "tokens": ids[:args.input_len]})["prompt"]
                ids = server.post("/tokenize", {"model": "nano", "prompt": text})["tokens"]
            file.write(json.dumps({"prompt": text, "output_tokens": args.output_len}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("prompts", 64), ("concurrency", 8), ("input-len", 128), ("output-len", 64), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tolerance", type=float, help="percent")
    args = parser.parse_args()
    present = {"eyrie": harness.EYRIE, "vllm": VENV / "vllm-rs", "aiperf": VENV / "bin/aiperf"}
    clients = [name for name in CLIENTS if pathlib.Path(present[name]).exists()]
    for name in CLIENTS.keys() - set(clients):
        print(f"{name} is missing: {present[name]} (make test-clients)", file=sys.stderr)

    rounds = {name: [] for name in clients}
    counts = {}
    # Without the prefix cache, or the second client would be served what the first has paid for.
    with Server("--served-model-name", "nano", "--no-enable-prefix-caching", "--max-num-seqs", "64") as server, \
            tempfile.TemporaryDirectory(prefix="eyrie-bench-compare-") as folder:
        prompts = pathlib.Path(folder, "prompts.jsonl")
        random_prompts(args, server, prompts)
        for i in range(args.rounds):  # taking turns: a machine that slows down slows all
            for name in clients:
                out = pathlib.Path(folder, f"{name}-{i}.json")
                figures, counts[name] = CLIENTS[name](args, server.port, prompts, out)
                rounds[name].append(figures)

    print(f"{args.prompts} prompts of about {args.input_len} tokens, {args.output_len} out, concurrency "
          f"{args.concurrency}; median of {args.rounds} rounds, spread in brackets")
    print(f"{'':28}" + "".join(f"{name:>22}" for name in clients))
    for i, what in enumerate(("requests", "input tokens", "output tokens")):
        print(f"{what:28}" + "".join(f"{'-' if counts[n][i] is None else counts[n][i]:>22}" for n in clients))
    medians = {}
    for figure, unit in FIGURES.items():
        row = f"{figure + ' ' + unit:28}"
        for name in clients:
            values = [r[figure] for r in rounds[name]]
            medians[name, figure] = middle = statistics.median(values)
            spread = 50 * (max(values) - min(values)) / middle if middle else 0
            row += f"{f'{middle:.2f} [±{spread:.0f} %]':>22}"
        print(row)
    failed = False
    for name in clients[1:]:
        gaps = {f: 100 * (medians["eyrie", f] / medians[name, f] - 1) for f in JUDGED}
        print(f"eyrie against {name}: " + ", ".join(f"{f} {gap:+.1f} %" for f, gap in gaps.items()))
        failed |= name == "vllm" and args.tolerance is not None and any(abs(gap) > args.tolerance for gap in gaps.values())
    known = {counts[name][:3] for name in clients if counts[name][1] is not None}
    if len(known) > 1:
        sys.exit(f"the clients count differently: {counts}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
