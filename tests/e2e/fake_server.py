#!/usr/bin/env python3
"""A stand-in for an OpenAI-compatible server, for tests of the benchmark client and the sweep.

It streams tokens at a fixed pace, several per chunk when "speculating", keeps vLLM's counters, and
answers like vLLM where the client looks: /v1/models, /health, /metrics, usage, errors. Standard
library only. Called as `fake_server.py serve MODEL [flags]` it passes for the real program; flags
it does not know are ignored.
"""
import argparse
import asyncio
import json
import signal
import sys


class Fake:
    def __init__(self, args):
        self.args = args
        spec = json.loads(args.speculative_config) if args.speculative_config else None
        self.drafts = spec["num_speculative_tokens"] if spec else 0
        # Accepted drafts per step: all but the last, so that per-position rates are 1 … 1 0.
        self.accepted = max(0, self.drafts - 1)
        self.steps = 0
        self.requests = 0
        self.running = 0

    def counters(self):
        lines = ['vllm:prefix_cache_queries_total{engine="0"} %d' % (100 * self.requests),
                 'vllm:prefix_cache_hits_total{engine="0"} %d' % (self.args.hits * self.requests)]
        if self.drafts:
            label = '{engine="0"}'
            lines += [f"vllm:spec_decode_num_drafts_total{label} {self.steps}",
                      f"vllm:spec_decode_num_draft_tokens_total{label} {self.steps * self.drafts}",
                      f"vllm:spec_decode_num_accepted_tokens_total{label} {self.steps * self.accepted}"]
            lines += ['vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="%d"} %d'
                      % (i, self.steps if i < self.accepted else 0) for i in range(self.drafts)]
        return "\n".join(lines) + "\n"

    async def handle(self, reader, writer):
        try:
            while await self.one_request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def one_request(self, reader, writer):
        head = await reader.readline()
        if not head:
            return False
        method, path, _ = head.decode().split()
        length = 0
        while True:
            line = (await reader.readline()).strip()
            if not line:
                break
            name, value = line.decode().split(":", 1)
            if name.lower() == "content-length":
                length = int(value)
        body = await reader.readexactly(length) if length else b""
        path = path.split("?")[0]
        if method == "GET" and path == "/health":
            self.plain(writer, 200, "")
        elif method == "GET" and path == "/metrics":
            self.plain(writer, 200, self.counters())
        elif method == "GET" and path == "/v1/models":
            card = {"id": self.args.model, "object": "model", "owned_by": self.args.owner,
                    "root": self.args.model, "max_model_len": self.args.max_model_len}
            self.plain(writer, 200, json.dumps({"object": "list", "data": [card]}))
        elif method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
            await self.generate(writer, json.loads(body), chat="chat" in path)
        else:
            self.plain(writer, 404, json.dumps({"detail": "Not Found"}))
        await writer.drain()
        return True

    def plain(self, writer, status, text):
        reason = {200: "OK", 400: "Bad Request", 404: "Not Found"}[status]
        data = text.encode()
        writer.write(f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\n"
                     f"Content-Length: {len(data)}\r\n\r\n".encode() + data)

    async def generate(self, writer, request, chat):
        text = request["messages"][0]["content"][0]["text"] if chat else request["prompt"]
        prompt_tokens = len(text.split())
        wanted = request.get("max_completion_tokens" if chat else "max_tokens", 16)
        if prompt_tokens + wanted > self.args.max_model_len:
            error = {"error": {"message": f"This model's maximum context length is "
                               f"{self.args.max_model_len} tokens.", "code": 400}}
            self.plain(writer, 400, json.dumps(error))
            return
        if self.args.stop_after and not request.get("ignore_eos"):
            wanted = min(wanted, self.args.stop_after)
        options = request.get("stream_options") or {}
        continuous = options.get("continuous_usage_stats", False)
        self.requests += 1
        self.running += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\n")

        def usage(done):
            return {"prompt_tokens": prompt_tokens, "completion_tokens": done,
                    "total_tokens": prompt_tokens + done}

        def event(choices, done, with_usage):
            chunk = {"id": "x", "object": "text_completion", "choices": choices}
            if with_usage:
                chunk["usage"] = usage(done)
            send(f"data: {json.dumps(chunk)}\n\n")

        def send(data):
            raw = data.encode()
            writer.write(b"%x\r\n%s\r\n" % (len(raw), raw))

        def choice(piece, end):
            reason = "length" if end else None
            if chat:
                return {"index": 0, "delta": {"content": piece}, "finish_reason": reason}
            return {"index": 0, "text": piece, "finish_reason": reason}

        await asyncio.sleep(self.args.ttft)
        if chat:
            event([{"index": 0, "delta": {"role": "assistant", "content": ""}}], 0, continuous)
        done = 0
        while done < wanted:
            size = 1 if done == 0 else min(1 + self.accepted, wanted - done)
            if done:
                await asyncio.sleep(self.args.step)
                self.steps += 1
            done += size
            event([choice(" x" * size, done == wanted)], done, continuous)
            await writer.drain()
        if options.get("include_usage"):
            event([], done, True)
        send("data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        self.running -= 1


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--speculative-config", default="")
    parser.add_argument("--ttft", type=float, default=0.01)
    parser.add_argument("--step", type=float, default=0.005)
    parser.add_argument("--owner", default="vllm")
    parser.add_argument("--hits", type=int, default=0, help="prefix-cache hits per 100 tokens")
    parser.add_argument("--stop-after", type=int, default=0, help="answers end here by themselves")
    parser.add_argument("--die", default="", help="exit at once with this message on stderr")
    args, _ = parser.parse_known_args()
    if args.die:
        sys.exit(args.die)
    fake = Fake(args)
    server = await asyncio.start_server(fake.handle, args.host, args.port, limit=2**24)
    port = server.sockets[0].getsockname()[1]
    print(f"listening on {port}", flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


asyncio.run(main())
