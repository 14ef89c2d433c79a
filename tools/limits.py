#!/usr/bin/env python3
"""What share of this machine's limits decoding and prefill reach, end to end through the server.

The limits are measured by ops_bench (`make bench` builds it): streaming read of memory, float32
multiply-adds and 8-bit dot products, all threads. The work is counted from the checkpoint: bytes of weights
a step reads once (of the routed experts those that one token chooses), and multiply-adds a token needs, those
with four-bit weights in integers, the others and attention over the cache in float32. A token takes at least
as long as its bytes, and as its multiply-adds of both kinds, one after the other: the longer is the limit.

  python3 tools/limits.py [MODEL]     default: build/models/kimi-k2.5-nano-mxfp4
"""

import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))
import harness  # noqa: E402

PROMPT, DECODE = 2048, 256  # tokens


def peaks() -> tuple:
    """(bytes/s, float32 multiply-adds/s, 8-bit multiply-adds/s) of this machine."""
    out = subprocess.run([ROOT / "build/bench/ops_bench", "--benchmark_filter=linear/bf16/warm/768x256/T/1/", "--benchmark_min_time=0.01",
                          "--benchmark_format=json"], capture_output=True, text=True, check=True)
    context = json.loads(out.stdout)["context"]
    return float(context["peak read GB/s"]) * 1e9, float(context["peak GFLOP/s"]) * 1e9 / 2, float(context["peak int8 GOP/s"]) * 1e9 / 2


def work(model: pathlib.Path, config: dict) -> tuple:
    """(weight bytes, float32 multiply-adds, 8-bit multiply-adds) of one token alone, attention apart."""
    groups = json.loads(harness.run("inspect", model, "--json").stdout)["groups"]
    total_bytes = macs = int8_macs = 0
    for group in groups:
        name = group["group"]
        if "embed_tokens" in name or group["parameters"] < 100000 and "norm" in name:
            continue  # one row is read; norms and biases are nothing
        share = config["num_experts_per_tok"] / config["n_routed_experts"] if ".experts." in name else 1
        total_bytes += group["bytes"] * share
        if "int8" in group["kernel"]:
            int8_macs += group["parameters"] * share
        else:
            macs += group["parameters"] * share
    return total_bytes, macs, int8_macs


def attention_macs(config: dict, context: float) -> float:
    """Absorbed MLA: scores over latent and rope, then the sum of latents, each head and layer."""
    width = 2 * config["kv_lora_rank"] + config["qk_rope_head_dim"]
    return config["num_hidden_layers"] * config["num_attention_heads"] * width * context


def measure(server, input_len: int, output_len: int, prompts: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "result.json")
        harness.run("bench", "serve", "--model", server.model, "--port", server.port, "--dataset-name", "random",
                    "--random-input-len", input_len, "--random-output-len", output_len, "--num-prompts", prompts,
                    "--max-concurrency", 1, "--num-warmups", 1, "--ignore-eos", "--temperature", 0, "--save-result",
                    "--result-filename", path, timeout=600, check=True)
        return json.loads(path.read_text())


def main() -> int:
    model = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/models/kimi-k2.5-nano-mxfp4"
    config = json.loads((model / "config.json").read_text())
    config = config.get("text_config", config)
    read, fma, dot = peaks()
    weight_bytes, weight_macs, int8_macs = work(model, config)
    with harness.Server("--no-enable-prefix-caching", "--max-num-seqs", 4, model=model) as server:
        server.model = model
        decode = measure(server, 64, DECODE, 3)
        prefill = measure(server, PROMPT, 1, 5)
    print(f"machine: {read / 1e9:.1f} GB/s read, {2 * fma / 1e9:.0f} GFLOP/s float32 multiply-add, {2 * dot / 1e9:.0f} GOP/s 8-bit "
          "dot (measured)")
    print("| work | a token's weights | float32 | 8-bit | limit, tok/s | reached, tok/s | share |")
    print("|:--|--:|--:|--:|--:|--:|--:|")

    def row(name, rate, bytes_read, macs):
        seconds = max(bytes_read / read, macs / fma + int8_macs / dot)
        what = "memory" if bytes_read / read == seconds else "arithmetic"
        shown = f"{bytes_read / 1e6:.1f} MB" if bytes_read else "-"
        print(f"| {name} | {shown} | {2e-6 * macs:.0f} MFLOP | {2e-6 * int8_macs:.0f} MOP | {1 / seconds:.0f} ({what}) | {rate:.1f} | "
              f"{100 * rate * seconds:.0f} % |")

    row("decode, 1 stream", 1000 / decode["median_tpot_ms"], weight_bytes, weight_macs + attention_macs(config, 64 + DECODE / 2))
    row(f"prefill, {PROMPT} tokens", PROMPT / (prefill["median_ttft_ms"] / 1000), 0,
        weight_macs - config["vocab_size"] * config["hidden_size"] + attention_macs(config, PROMPT / 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
