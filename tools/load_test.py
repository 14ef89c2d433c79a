"""Many streams at once against a running server, while its health is watched.

    tools/load_test.py --port 8000 --connections 2000 --seconds 60 --rounds 2

Each connection asks for one stream after the other until the time is up. Beside them one client reads
a byte a second, and a prober asks for /health on a fresh connection every 50 ms. Said at the end, and
the exit status: no error that was not asked for, every stream complete, the 99th percentile of
/health below --health-ms, memory after each round, and the slow client's connection. The KV cache's
pages count as resident once they were used, so give the server one that a round fills
(--num-gpu-blocks-override) when memory is to be compared.
Python's standard library only.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import socket
import sys
import time


class Stream(asyncio.Protocol):
    """One kept connection that streams completions one after the other."""

    END = b"data: [DONE]\n\n\r\n0\r\n\r\n"

    def __init__(self, load):
        self.load = load
        self.transport = None
        self.tail = b""
        self.head = None
        self.waiting = None

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.load.num_bytes += len(data)
        if self.head is None:
            self.tail += data
            at = self.tail.find(b"\r\n\r\n")
            if at < 0:
                return
            self.head, data, self.tail = self.tail[:at], self.tail[at + 4:], b""
        self.load.num_events += data.count(b"data: ")
        if b'"error"' in data:
            self.load.note_error("an error event: " + data.decode("utf-8", "replace")[:300])
        status = self.head.split(b" ", 2)[1]
        self.tail = (self.tail + data)[-(400 if status != b"200" else len(self.END)):]
        if status != b"200":
            self.load.note_error(f"status {status.decode()}: {self.tail.decode('utf-8', 'replace')}")
            self.finish(False)
        elif self.tail.endswith(self.END):
            self.finish(True)

    def connection_lost(self, error):
        if self.waiting and not self.waiting.done():
            self.load.note_error(f"connection lost in the middle of a stream: {error}")
            self.finish(False)

    def finish(self, good):
        if not self.waiting.done():
            self.waiting.set_result(good)

    async def ask(self, request):
        self.head, self.tail = None, b""
        self.waiting = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self.waiting


def probe(host, port, stop, results):
    """Asks for /health every 50 ms. A process of its own: the streams' event loop would be in its times."""
    times, errors = [], []
    while not stop.is_set():
        start = time.monotonic()
        try:
            with socket.create_connection((host, port), timeout=30) as client:
                client.sendall(b"GET /health HTTP/1.1\r\nHost: load\r\nConnection: close\r\n\r\n")
                status = client.recv(4096).split(b" ", 2)[1]
            if status != b"200":
                errors.append(f"/health answered {status.decode()}")
        except (OSError, IndexError) as error:
            errors.append(f"/health failed: {error!r}")
        times.append(time.monotonic() - start)
        stop.wait(0.05)
    results.put((times, errors))


class Load:
    def __init__(self, args):
        self.args = args
        self.errors = {}
        self.num_bytes = self.num_events = self.num_done = 0
        self.health = []
        self.slow_bytes = 0
        self.slow_lost = False

    def note_error(self, what):
        self.errors[what] = self.errors.get(what, 0) + 1

    def request(self, i, max_tokens):
        body = json.dumps({"prompt": f"Question {i}: a farm has {i % 97 + 3} hens.", "stream": True,
                           "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0})
        return (f"POST /v1/completions HTTP/1.1\r\nHost: load\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}").encode()

    async def client(self, i, until):
        loop = asyncio.get_running_loop()
        try:
            _, stream = await loop.create_connection(lambda: Stream(self), self.args.host, self.args.port)
        except OSError as error:
            self.note_error(f"cannot connect: {error}")
            return
        while time.monotonic() < until:
            if not await stream.ask(self.request(i, self.args.tokens)):
                break
            self.num_done += 1
            i += self.args.connections
        stream.transport.close()

    async def get(self, path):
        reader, writer = await asyncio.open_connection(self.args.host, self.args.port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: load\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
            return int(answer.split(b" ", 2)[1]), answer.decode()
        finally:
            writer.close()

    async def read_slowly(self, stop):
        """A byte a second of a long stream, through the smallest buffer there is."""
        reader, writer = await asyncio.open_connection(self.args.host, self.args.port, limit=1)
        writer.transport.get_extra_info("socket").setsockopt(1, 8, 2048)  # SOL_SOCKET, SO_RCVBUF
        writer.write(self.request(1, 1000))
        while not stop.is_set():
            try:
                byte = await asyncio.wait_for(reader.read(1), 60)
            except (OSError, asyncio.TimeoutError):
                byte = b""
            if not byte:
                self.slow_lost = not stop.is_set()
                break
            self.slow_bytes += 1
            await asyncio.sleep(1)
        writer.close()

    async def memory(self):
        """Resident MiB of the server, by its own word."""
        _, text = await self.get("/metrics")
        for line in text.splitlines():
            if line.startswith("process_resident_memory_bytes "):
                return float(line.split()[1]) / 2**20
        return 0.0

    async def idle(self):
        for _ in range(600):
            _, text = await self.get("/metrics")
            values = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                      if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{",
                                          "vllm:kv_cache_usage_perc{"))]
            if len(values) == 3 and not any(values):
                return True
            await asyncio.sleep(0.1)
        self.note_error("the server still holds requests or blocks when all clients have gone")
        return False

    async def round(self):
        stop, stop_probe, results = asyncio.Event(), multiprocessing.Event(), multiprocessing.Queue()
        prober = multiprocessing.Process(target=probe, args=(self.args.host, self.args.port, stop_probe, results))
        prober.start()
        slow = asyncio.create_task(self.read_slowly(stop))
        start = time.monotonic()
        until = start + self.args.seconds
        await asyncio.gather(*(self.client(i, until) for i in range(self.args.connections)))
        stop.set()
        stop_probe.set()
        self.health, errors = results.get()
        for error in errors:
            self.note_error(error)
        prober.join()
        await slow
        took = time.monotonic() - start
        await self.idle()
        return took


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


async def main(args):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, args.connections + 200), hard))
    failed = False
    memory = [await Load(args).memory()]
    for number in range(args.rounds):
        load = Load(args)
        took = await load.round()
        memory.append(await load.memory())
        p99 = percentile(load.health, 0.99) * 1e3
        print(f"round {number + 1}: {args.connections} connections, {took:.1f} s, {load.num_done} streams, "
              f"{load.num_events / took:.0f} events/s, {load.num_bytes / took / 1e6:.2f} MB/s")
        print(f"  /health  {len(load.health)} asked, p50 {percentile(load.health, 0.5) * 1e3:.1f} ms, "
              f"p99 {p99:.1f} ms, max {max(load.health, default=0) * 1e3:.1f} ms")
        print(f"  slow     {load.slow_bytes} bytes read, {'lost' if load.slow_lost else 'kept to the end'}")
        print(f"  memory   {memory[-2]:.0f} MiB before, {memory[-1]:.0f} MiB after")
        for what, count in sorted(load.errors.items(), key=lambda item: -item[1])[:10]:
            print(f"  ERROR    {count} x {what}")
        failed |= bool(load.errors) or p99 > args.health_ms or load.num_done == 0
    if args.rounds > 1:
        growth = memory[-1] - memory[1]
        flat = growth <= args.growth_mib
        print(f"memory after the first round {memory[1]:.0f} MiB, after the last {memory[-1]:.0f} MiB: "
              f"{'flat' if flat else 'it grows'}")
        failed |= not flat
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32, help="of each stream")
    parser.add_argument("--health-ms", type=float, default=100, help="bound on /health's 99th percentile")
    parser.add_argument("--growth-mib", type=float, default=16, help="bound on growth after the first round")
    sys.exit(asyncio.run(main(parser.parse_args())))
