#!/usr/bin/env python3
"""Whether a GPU answers as it should: the same prompts alone, in a batch, with drafts, recorded and op by op, and by
the CPU backend; how many answers are the same, greedy and with a seed.

    tools/gpu_exact.py                     the bundled pair in BF16 and MXFP4
    tools/gpu_exact.py --prompts 20 --quick

Exit status 1 when a deterministic server's answers are not all the same, or fewer than 99 % of the others are.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
EYRIE = os.environ.get("EYRIE", str(ROOT / "build/cuda/eyrie"))
DRAFT = "models/kimi-k2.5-nano-eagle3"


class Server:
    def __init__(self, model, flags):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        self.log = tempfile.TemporaryFile("w+")
        command = [EYRIE, "serve", model, "--port", str(self.port), "--host", "127.0.0.1", "--max-model-len", "2048",
                   "--no-enable-prefix-caching", "--gpu-memory-utilization", "0.2", *flags]
        self.started = time.monotonic()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, cwd=ROOT)
        self.wait()

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def wait(self):
        while self.process.poll() is None and time.monotonic() - self.started < 90:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    self.seconds = time.monotonic() - self.started
                    return
            except OSError:
                time.sleep(0.02)
        self.process.kill()
        raise RuntimeError("the server does not come up:\n" + self.text()[-3000:])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def answer(self, prompt, sampling):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = {"prompt": prompt, "max_tokens": 96, **sampling}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = json.loads(connection.getresponse().read())
        if "choices" not in reply:
            return f"ERROR {reply}"
        return reply["choices"][0]["text"]

    def answers(self, prompts, sampling, concurrency):
        with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(lambda prompt: self.answer(prompt, sampling), prompts))


def spec(length, adaptive=False, draft=DRAFT):
    return ["--speculative-config", json.dumps({"model": draft, "method": "eagle3", "num_speculative_tokens": length,
                                                "adaptive": adaptive})]


CASES = [  # name, flags, concurrency, whether it must be the same to the letter
    ("gpu alone", [], 1, False),
    ("gpu batch 32", [], 32, False),
    ("gpu eager", ["--enforce-eager"], 32, False),
    ("gpu draft K=6", spec(6), 32, False),
    ("gpu draft K=3", spec(3), 32, False),
    ("gpu draft adaptive", spec(6, True), 32, False),
    ("det alone", ["--deterministic"], 1, True),
    ("det batch 32", ["--deterministic"], 32, True),
    ("det draft K=3", ["--deterministic", *spec(3)], 32, True),
    ("det draft K=6 alone", ["--deterministic", *spec(6)], 1, True),
]
SAMPLINGS = {"greedy": {"temperature": 0}, "seeded": {"temperature": 0.8, "seed": 7},
             "penalties": {"temperature": 0, "frequency_penalty": 0.3, "top_p": 0.9}}


def same(one, other):
    return sum(a == b for a, b in zip(one, other))


def run_model(model, args, prompts):
    failed = False
    cpu = Server(model, ["--device", "cpu", "--activation-quantization", "off"])
    want = {name: cpu.answers(prompts, sampling, 16) for name, sampling in SAMPLINGS.items()}
    cpu.stop()
    first = {}
    print(f"\n{model}: answers of {len(prompts)} that are the same as the CPU's | as the first of their kind on the GPU")
    for name, flags, concurrency, exact in CASES[:4] if args.quick else CASES:
        try:
            server = Server(model, ["--device", "cuda", *flags])
        except RuntimeError as error:
            print(f"{name:22} {error}")
            failed = True
            continue
        cells = []
        for sampling_name, sampling in SAMPLINGS.items():
            got = server.answers(prompts, sampling, concurrency)
            kind = first.setdefault((exact, sampling_name), got)
            as_first = same(got, kind)
            errors = sum(text.startswith("ERROR") for text in got)
            failed |= errors > 0 or as_first < len(prompts) * (1 if exact else 0.99)
            cells.append(f"{sampling_name} {same(got, want[sampling_name]):3} | {as_first:3}"
                         + (f" ({errors} ERRORS: {next(t for t in got if t.startswith('ERROR'))[:200]})" if errors else ""))
        print(f"{name:22} up in {server.seconds:4.1f} s   " + "   ".join(cells), flush=True)
        if server.process.poll() is not None:
            print(server.text()[-2000:])
            failed = True
        server.stop()
    print("sample:", repr(want["greedy"][0][:60]), "...", repr(first[False, "greedy"][0][:60]) if first else "")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="models/kimi-k2.5-nano,build/models/kimi-k2.5-nano-mxfp4")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="the first four cases only")
    args = parser.parse_args()
    lines = (ROOT / "data/prompts/nano-mix.jsonl").read_text().splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines][:args.prompts]
    failed = False
    for model in args.models.split(","):
        failed |= run_model(model, args, prompts)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
