"""What every end-to-end test needs: the program, the models, a running server, plain HTTP.
Standard library only."""

import contextlib
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
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EYRIE = os.environ.get("EYRIE", str(ROOT / "build/release/eyrie"))
TARGET = ROOT / "models/kimi-k2.5-nano"
DRAFT = ROOT / "models/kimi-k2.5-nano-eagle3"
# Sanitizer builds are several times slower: they run the same tests with longer patience and less load.
SLOW = float(os.environ.get("EYRIE_SLOW", "1"))


def quantized(name: str) -> pathlib.Path:
    """A quantized variant, made on first use beside the program under test."""
    source, scheme = {
        "kimi-k2.5-nano-mxfp4": (TARGET, "mxfp4"),
        "kimi-k2.5-nano-eagle3-fp8": (DRAFT, "fp8"),
    }[name]
    out = pathlib.Path(EYRIE).parent / "test-models" / name
    if not (out / "config.json").exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([EYRIE, "quantize", source, out, "--scheme", scheme, "--overwrite"],
                       check=True, stdout=subprocess.DEVNULL)
    return out


def spec(model, num_tokens: int = 6, **more) -> list:
    """A fixed number of drafts, so that a test of drafts meets some whatever they cost on this machine."""
    config = {"model": str(model), "method": "eagle3", "num_speculative_tokens": num_tokens, "adaptive": False, **more}
    return ["--speculative-config", json.dumps(config)]


def ngram(num_tokens: int = 6, **more) -> list:
    config = {"method": "ngram", "num_speculative_tokens": num_tokens, **more}
    return ["--speculative-config", json.dumps(config)]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for_port(port: int, timeout=30):
    deadline = time.monotonic() + timeout * SLOW
    while time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"nobody listens on port {port}")


def run(*args, timeout=60, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([EYRIE, *map(str, args)], capture_output=True, text=True,
                          timeout=timeout * SLOW, **kwargs)


class Server:
    """`eyrie serve` on a free port; the log is kept for messages."""

    def __init__(self, *args, model=TARGET, wait=True, **kwargs):
        self.port = free_port()
        self.log_file = tempfile.NamedTemporaryFile("w+", prefix="eyrie-serve-", suffix=".log")
        self.process = subprocess.Popen(
            [EYRIE, "serve", str(model), "--port", str(self.port), "--host", "127.0.0.1", *map(str, args)],
            stdout=self.log_file, stderr=subprocess.STDOUT, **kwargs)
        if wait:
            self.wait_ready()

    def log(self) -> str:
        return pathlib.Path(self.log_file.name).read_text()

    def wait_ready(self, timeout=30):
        deadline = time.monotonic() + timeout * SLOW
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"server ended with {self.process.returncode}:\n{self.log()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.request("GET", "/health", timeout=2)[0] == 200:
                    return
            time.sleep(0.02)
        raise AssertionError(f"server not ready:\n{self.log()}")

    def request(self, method, path, body=None, headers=None, timeout=120):
        """(status, parsed JSON or text, headers)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOW)
        try:
            data = body if isinstance(body, (bytes, str, type(None))) else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
            kind = response.getheader("Content-Type", "")
            return response.status, json.loads(text) if "json" in kind else text, dict(response.getheaders())
        finally:
            connection.close()

    def post(self, path, body, **kwargs):
        status, answer, _ = self.request("POST", path, body, **kwargs)
        if status != 200:
            raise AssertionError(f"{path} answered {status}: {answer}")
        return answer

    def stream(self, path, body, timeout=120):
        """The chunks of a streamed answer, as parsed JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOW)
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise AssertionError(f"{path} answered {response.status}: {response.read()}")
            for line in response:
                line = line.decode().strip()
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    yield json.loads(line[len("data: "):])
        finally:
            connection.close()

    def metrics(self) -> dict:
        """name{labels} → value."""
        values = {}
        for line in self.request("GET", "/metrics")[1].splitlines():
            if line and not line.startswith("#"):
                key, value = line.rsplit(" ", 1)
                values[key] = float(value)
        return values

    def metric(self, name) -> float:
        """Sum over labels."""
        return sum(v for k, v in self.metrics().items() if k.split("{")[0] == name)

    def stop(self, timeout=30) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout * SLOW)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise AssertionError(f"SIGTERM did not end the server:\n{self.log()}")
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        code = self.stop()
        if code != 0:
            sys.stderr.write(self.log())
            raise AssertionError(f"server exit code {code}")


def needs_models(test):
    return unittest.skipUnless((TARGET / "model.safetensors").exists() and (DRAFT / "model.safetensors").exists(),
                               "the bundled models are not in this checkout")(test)
