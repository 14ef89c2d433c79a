"""The server as a service: overload, time-outs, TLS, CORS, ids, departures, the end. End to end."""

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from harness import DRAFT, ROOT, SLOW, Server, needs_models, run, spec

PROMPT = "Question: A farm has 12 hens and each lays 3 eggs. How many eggs are there?\n"
SMALL = ("--max-model-len", "2048", "--num-gpu-blocks-override", "512")
LONG = {"prompt": PROMPT, "max_tokens": 1900, "ignore_eos": True, "temperature": 0}


def wait_for(what, condition, timeout=30):
    deadline = time.monotonic() + timeout * SLOW
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(what)
        time.sleep(0.05)


def open_stream(server, body):
    """A socket whose stream has begun."""
    data = json.dumps({**body, "stream": True}).encode()
    client = socket.create_connection(("127.0.0.1", server.port), timeout=60 * SLOW)
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                   b"Content-Length: %d\r\n\r\n" % len(data) + data)
    received = b""
    while b"data: " not in received:
        received += client.recv(65536)
    return client


@needs_models
class ServiceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(*SMALL, *spec(DRAFT, 3), "--enable-request-id-headers", "--root-path", "/llm",
                            "--allowed-origins", '["http://app"]', "--allow-credentials",
                            "--disable-access-log-for-endpoints", "/health,/metrics",
                            env={**os.environ, "VLLM_LOG_STATS_INTERVAL": "1"})

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_departed_clients_give_their_blocks_back(self):
        server = self.server
        aborted = server.metrics()['vllm:request_success_total{engine="0",model_name="%s",finished_reason="abort"}'
                                   % server.request("GET", "/v1/models")[1]["data"][0]["id"]]
        clients = [open_stream(server, LONG) for _ in range(8)]
        self.assertGreater(server.metric("vllm:kv_cache_usage_perc"), 0)
        for client in clients:
            client.close()
        wait_for("blocks come back", lambda: server.metric("vllm:kv_cache_usage_perc") == 0)
        self.assertEqual(server.metric("vllm:num_requests_running"), 0)
        self.assertEqual(server.metric("vllm:num_requests_waiting"), 0)
        after = [v for k, v in server.metrics().items() if 'finished_reason="abort"' in k]
        self.assertEqual(after, [aborted + 8])

    def test_ids_come_back_and_are_logged(self):
        status, answer, headers = self.server.request(
            "POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 2}, {"X-Request-Id": "my-trace-7"})
        self.assertEqual(status, 200)
        self.assertEqual(headers["X-Request-Id"], "my-trace-7")
        self.assertEqual(answer["id"], "cmpl-my-trace-7")
        wait_for("the access log names it", lambda: "200 OK [my-trace-7]" in self.server.log())
        self.assertNotIn("GET /health", self.server.log())

    def test_a_proxys_prefix(self):
        self.assertEqual(self.server.request("GET", "/llm/v1/models")[0], 200)
        self.assertEqual(self.server.request("GET", "/v1/models")[0], 200)

    def test_only_the_allowed_origin(self):
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        status, _, headers = self.server.request("OPTIONS", "/v1/chat/completions", None,
                                                 {"Origin": "http://app", **asks})
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (200, "http://app"))
        self.assertEqual(headers["Access-Control-Allow-Credentials"], "true")
        self.assertEqual(headers["Access-Control-Allow-Headers"], "authorization")
        status, text, headers = self.server.request("OPTIONS", "/v1/chat/completions", None,
                                                    {"Origin": "http://evil", **asks})
        self.assertEqual((status, text), (400, "Disallowed CORS origin"))
        self.assertNotIn("Access-Control-Allow-Origin", headers)

    def test_the_lines_of_vllm(self):
        self.server.post("/v1/completions", {**LONG, "max_tokens": 300})
        wait_for("the statistics line", lambda: "Avg generation throughput" in self.server.log())
        self.assertRegex(self.server.log(),
                         r"Engine 000: Avg prompt throughput: [\d.]+ tokens/s, Avg generation throughput: [\d.]+ "
                         r"tokens/s, Running: \d+ reqs, Waiting: \d+ reqs, GPU KV cache usage: [\d.]+%, "
                         r"Prefix cache hit rate: [\d.]+%")
        wait_for("the drafts' line", lambda: "SpecDecoding metrics: Mean acceptance length" in self.server.log())
        wait_for("silence when idle", lambda: self.quiet_for(2.5), timeout=60)

    def quiet_for(self, seconds):
        before = self.server.log().count("Avg generation throughput")
        time.sleep(seconds)
        return before == self.server.log().count("Avg generation throughput")

    def test_load_in_short(self):
        command = [sys.executable, ROOT / "tools/load_test.py", "--port", self.server.port, "--connections", "200",
                   "--seconds", "5", "--rounds", "2", "--tokens", "8", "--health-ms", 2000 * SLOW,
                   "--growth-mib", "64"]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300 * SLOW)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


@needs_models
class OverloadTest(unittest.TestCase):
    def test_full_queue_and_time_out(self):
        with Server(*SMALL, "--max-num-seqs", "1", "--max-queued-requests", "1", "--request-timeout", "3") as server:
            runs = open_stream(server, {**LONG, "stream_options": {"include_usage": True}})
            answers = []
            waits = threading.Thread(target=lambda: answers.append(
                server.request("POST", "/v1/completions", LONG)))
            waits.start()
            wait_for("one waits", lambda: server.metric("vllm:num_requests_waiting") == 1, timeout=2)
            status, answer, headers = server.request("POST", "/v1/completions", LONG)
            self.assertEqual((status, headers["Retry-After"]), (429, "1"))
            self.assertEqual(answer["error"]["type"], "RateLimitError")
            self.assertEqual(server.request("GET", "/health")[0], 200)
            waits.join()
            # Whether it got its turn in time is the machine's speed; if not, it was told so.
            self.assertIn(answers[0][0], (200, 504))
            runs.close()


@needs_models
class TlsTest(unittest.TestCase):
    def setUp(self):
        if shutil.which("openssl") is None:
            self.skipTest("no openssl program to make certificates with")
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ("server", "client"):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                            "-nodes", "-days", "1", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
                            "-keyout", f"{name}.key", "-out", f"{name}.pem"],
                           cwd=self.folder, check=True, capture_output=True)

    def flags(self):
        return ("--ssl-certfile", self.folder / "server.pem", "--ssl-keyfile", self.folder / "server.key")

    def context(self, with_certificate=False):
        context = ssl.create_default_context(cafile=str(self.folder / "server.pem"))
        if with_certificate:
            context.load_cert_chain(self.folder / "client.pem", self.folder / "client.key")
        return context

    def get(self, server, context, method="GET", path="/health", body=None):
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=60 * SLOW)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()

    def wait_ready(self, server, context):
        def ready():
            with contextlib.suppress(OSError, http.client.HTTPException):
                return self.get(server, context)[0] == 200
            return False
        wait_for("TLS server ready", ready)

    def test_streams_departures_and_plain_text(self):
        with Server(*SMALL, *self.flags(), wait=False) as server:
            self.wait_ready(server, self.context())
            status, text = self.get(server, self.context(), "POST", "/v1/completions", json.dumps(
                {"prompt": PROMPT, "max_tokens": 20, "stream": True, "temperature": 0}))
            self.assertEqual(status, 200)
            self.assertTrue(text.endswith("data: [DONE]\n\n"))
            # A client that says goodbye properly leaves bytes behind; it has left all the same.
            client = self.context().wrap_socket(socket.create_connection(("127.0.0.1", server.port)),
                                                server_hostname="127.0.0.1")
            body = json.dumps(LONG).encode()
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(body) + body)
            running = lambda: "running{" in self.get(server, self.context(), path="/metrics")[1] and [
                line for line in self.get(server, self.context(), path="/metrics")[1].splitlines()
                if line.startswith("vllm:num_requests_running{")][0].endswith(" 1")
            wait_for("the request runs", running)
            client.settimeout(0.1)
            with contextlib.suppress(OSError):
                client.unwrap()
            client.close()
            wait_for("the request ends with its client", lambda: 'finished_reason="abort"} 1' in
                     self.get(server, self.context(), path="/metrics")[1])
            with socket.create_connection(("127.0.0.1", server.port)) as plain:
                plain.sendall(b"GET /health HTTP/1.1\r\n\r\n")
                self.assertNotIn(b"200", plain.recv(100))
            self.assertEqual(self.get(server, self.context())[0], 200)

    def test_client_certificates(self):
        with Server(*SMALL, *self.flags(), "--ssl-ca-certs", self.folder / "client.pem", "--ssl-cert-reqs", "2",
                    wait=False) as server:
            self.wait_ready(server, self.context(with_certificate=True))
            with self.assertRaises((OSError, http.client.HTTPException)):
                self.get(server, self.context())

    def test_a_file_that_is_none(self):
        done = run("serve", ROOT / "models/kimi-k2.5-nano", "--port", "0", "--ssl-certfile", "/no/such.pem",
                   "--ssl-keyfile", "/no/such.key", *SMALL)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--ssl-certfile /no/such.pem", done.stderr)


@needs_models
class EndTest(unittest.TestCase):
    def test_sigterm_under_load_finishes_what_runs(self):
        server = Server(*SMALL)
        answers = []

        def client():
            answers.append(list(server.stream("/v1/completions", {**LONG, "max_tokens": 60})))

        clients = [threading.Thread(target=client) for _ in range(24)]
        for one in clients:
            one.start()
        wait_for("all are in", lambda: server.metric("vllm:num_requests_running") +
                 server.metric("vllm:request_success_total") >= 24)
        server.process.send_signal(signal.SIGTERM)
        for one in clients:
            one.join()
        self.assertEqual(len(answers), 24)
        for chunks in answers:
            self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
        self.assertEqual(server.process.wait(30 * SLOW), 0, server.log())

    def test_a_second_sigterm_ends_at_once(self):
        server = Server("--shutdown-timeout", "600")
        clients = [open_stream(server, {**LONG, "max_tokens": 3900}) for _ in range(4)]
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)  # a group's copy of the same
        wait_for("it drains", lambda: "no new requests" in server.log())
        time.sleep(1.5)
        if server.process.poll() is None:  # else the machine was quick enough to finish
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(5 * SLOW), 128 + signal.SIGTERM, server.log())
        for client in clients:
            client.close()


if __name__ == "__main__":
    unittest.main()
