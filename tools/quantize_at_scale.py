#!/usr/bin/env python3
"""`eyrie quantize` on a checkpoint of 20 GB with Kimi-K2.5's true tensor shapes: its memory, its speed against
the machine's limits, and that a killed run resumes to the same bytes. Needs some 40 GB of disk and
`cmake --preset bench && cmake --build --preset bench --target formats_bench` for the encode limit.

    tools/quantize_at_scale.py FOLDER [--gigabytes 20] [--scheme mxfp4] [--keep]

Standard library only. The made-up weights are BF16 normal numbers from a pool of 8 MiB read at shifting offsets:
no block of 32 repeats at the same place, and the disk gets bytes that do not compress.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
POOL_BYTES = 8 << 20
EXPERT = 3 * 2 * 7168 * 2048  # bytes of one routed expert in BF16
LIMIT_BYTES = 2 << 30
# An eighth of Kimi's: embedding and head are then 3 % of 20 GB; they are 0.5 % of the full model and would be 23 %.
VOCABULARY = 163840 // 8
SHARD_BYTES = 2 << 30


def tensors(num_layers, num_experts):
    """(name, shape) of a DeepSeek-V3-like model of Kimi-K2.5's widths; the first layer is dense."""
    prefix = "language_model.model."
    yield prefix + "embed_tokens.weight", (VOCABULARY, 7168)
    for n in range(num_layers):
        layer = f"{prefix}layers.{n}."
        for name, shape in {"q_a_proj": (1536, 7168), "q_b_proj": (12288, 1536), "kv_a_proj_with_mqa": (576, 7168),
                            "kv_b_proj": (16384, 512), "o_proj": (7168, 8192)}.items():
            yield f"{layer}self_attn.{name}.weight", shape
        yield layer + "self_attn.q_a_layernorm.weight", (1536,)
        yield layer + "self_attn.kv_a_layernorm.weight", (512,)
        yield layer + "input_layernorm.weight", (7168,)
        yield layer + "post_attention_layernorm.weight", (7168,)
        mlps = {"mlp.": 18432} if n == 0 else {"mlp.shared_experts.": 2048} | {
            f"mlp.experts.{e}.": 2048 for e in range(num_experts)}
        for mlp, width in mlps.items():
            yield f"{layer}{mlp}gate_proj.weight", (width, 7168)
            yield f"{layer}{mlp}up_proj.weight", (width, 7168)
            yield f"{layer}{mlp}down_proj.weight", (7168, width)
        if n > 0:
            yield layer + "mlp.gate.weight", (num_experts, 7168)
            yield layer + "mlp.gate.e_score_correction_bias", (num_experts,)
    yield prefix + "norm.weight", (7168,)
    yield "language_model.lm_head.weight", (VOCABULARY, 7168)


def bytes_of(shape):
    size = 2
    for n in shape:
        size *= n
    return size


def make_pool():
    rng = random.Random(1)
    table = [struct.pack("<f", rng.gauss(0, 0.02))[2:] for _ in range(1 << 16)]
    return b"".join(table[i] for i in (rng.getrandbits(16) for _ in range(POOL_BYTES // 2)))


def write_shard(path, items, pool, rng):
    header, offset = {}, 0
    for name, shape in items:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + bytes_of(shape)]}
        offset += bytes_of(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, shape in items:
            left = bytes_of(shape)
            while left:
                start = 2 * rng.randrange(POOL_BYTES // 4)
                piece = pool[start:start + min(left, POOL_BYTES // 2)]
                f.write(piece)
                left -= len(piece)


def make_checkpoint(folder, gigabytes):
    fixed = sum(bytes_of(s) for _, s in tensors(4, 0))
    num_experts = max(8, round((gigabytes * 1e9 - fixed) / (3 * EXPERT)))
    folder.mkdir(parents=True)
    shards, size = [[]], 0
    for name, shape in tensors(4, num_experts):
        if shards[-1] and size + bytes_of(shape) > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append((name, shape))
        size += bytes_of(shape)
    pool, rng, weight_map, total = make_pool(), random.Random(2), {}, 0
    for i, items in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        write_shard(folder / name, items, pool, rng)
        weight_map |= {tensor: name for tensor, _ in items}
        total += sum(bytes_of(s) for _, s in items)
        if sys.stderr.isatty():
            print(f"\rmaking {folder}: {total / 1e9:.1f} GB", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    text_config = {
        "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "num_hidden_layers": 4,
        "first_k_dense_replace": 1, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "n_routed_experts": num_experts, "n_shared_experts": 1, "num_experts_per_tok": 8, "num_attention_heads": 64,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "vocab_size": VOCABULARY, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(
        {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": text_config}))
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": total}, "weight_map": weight_map}))
    return total


def forget_cached(folder):
    """The next read of these files comes from the disk."""
    for path in folder.glob("*.safetensors"):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read_rate(folder, readers=4):
    """GB/s of plain sequential reads of the whole checkpoint from the disk, several files at once (one reader alone
    gets a third of it)."""
    def read(path):
        buffer, done = bytearray(16 << 20), 0
        with open(path, "rb", buffering=0) as f:
            while n := f.readinto(buffer):
                done += n
        return done

    forget_cached(folder)
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(readers) as pool:
        done = sum(pool.map(read, sorted(folder.glob("*.safetensors"))))
    return done / (time.monotonic() - started) / 1e9


def encode_rate(bench, scheme):
    """GB/s of BF16 in memory, all cores, the scheme's default producer."""
    done = subprocess.run([bench, f"--benchmark_filter=^encode/{scheme}/", "--benchmark_format=json"],
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["benchmarks"][0]["bytes_per_second"] / 1e9


def quantize(eyrie, source, out, scheme, kill_at=None):
    """(seconds, peak resident bytes) of a run; kill_at: SIGKILL once that much of the output is on disk."""
    started, peak = time.monotonic(), 0
    process = subprocess.Popen([eyrie, "quantize", source, out, "--scheme", scheme], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    peak = max(peak, int(line.split()[1]) << 10)
        except (FileNotFoundError, ProcessLookupError):
            pass
        partial = pathlib.Path(f"{out}.partial")
        if kill_at and partial.exists() and sum(p.stat().st_size for p in list(partial.glob("*.safetensors"))) > kill_at:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return time.monotonic() - started, peak
        time.sleep(0.02)
    if process.returncode != 0:
        sys.exit(f"eyrie quantize ended with {process.returncode}")
    return time.monotonic() - started, peak


def digests(folder):
    result = {}
    for path in sorted(folder.iterdir()):
        with open(path, "rb") as f:
            digest = hashlib.blake2b()
            while piece := f.read(16 << 20):
                digest.update(piece)
            result[path.name] = digest.hexdigest()
    return result


def size_of(folder):
    return sum(p.stat().st_size for p in folder.glob("*.safetensors"))


def remove(*folders):
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(f"{folder}.partial", ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--scheme", default="mxfp4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--eyrie", default=str(ROOT / "build/release/eyrie"))
    parser.add_argument("--bench", default=str(ROOT / "build/bench/formats_bench"))
    parser.add_argument("--keep", action="store_true", help="leave the made-up checkpoint there")
    args = parser.parse_args()
    source = args.folder / f"bf16-{args.gigabytes:g}gb"
    if not source.exists():
        make_checkpoint(source, args.gigabytes)
    total = size_of(source)
    encode = encode_rate(args.bench, args.scheme)
    whole, resumed = args.folder / "whole", args.folder / "resumed"
    remove(whole, resumed)

    # A disk of a virtual machine gives twice as much in one minute as in the next: each run is compared with what
    # the disk gave for the same bytes right before and right after it.
    reads, runs, peak = [read_rate(source)], [], 0
    for i in range(args.rounds):
        remove(whole)
        forget_cached(source)
        seconds, round_peak = quantize(args.eyrie, source, whole, args.scheme)
        peak = max(peak, round_peak)
        reads.append(read_rate(source))
        limit = min((reads[-2] + reads[-1]) / 2, encode)
        runs.append((total / seconds / 1e9, limit))
        print(f"round {i + 1}: disk {reads[-2]:.2f} and {reads[-1]:.2f} GB/s, eyrie quantize {runs[-1][0]:.2f} GB/s, "
              f"{100 * runs[-1][0] / limit:.0f} % of the slower limit", flush=True)
    shares = [rate / limit for rate, limit in runs]
    share = statistics.median(shares)

    forget_cached(source)
    quantize(args.eyrie, source, resumed, args.scheme, kill_at=size_of(whole) / 2)
    looks_whole = resumed.exists()
    kept = len(list(pathlib.Path(f"{resumed}.partial").glob("*.safetensors")))
    resumed_seconds, _ = quantize(args.eyrie, source, resumed, args.scheme)
    same = digests(whole) == digests(resumed)

    rows = [
        ("input", f"{total / 1e9:.2f} GB BF16, {len(list(source.glob('*.safetensors')))} shards"),
        ("output", f"{size_of(whole) / 1e9:.2f} GB {args.scheme}"),
        ("disk read, cold", f"{min(reads):.2f}-{max(reads):.2f} GB/s"),
        ("encode, in memory, all cores", f"{encode:.2f} GB/s"),
        ("eyrie quantize", f"{min(r for r, _ in runs):.2f}-{max(r for r, _ in runs):.2f} GB/s"),
        ("share of the slower limit", f"median {100 * share:.0f} %, {100 * min(shares):.0f}-{100 * max(shares):.0f} %"),
        ("peak resident memory", f"{peak / 1e9:.2f} GB"),
        ("killed at half", f"{kept} shards kept, {'LOOKS WHOLE' if looks_whole else 'no output of its name'}"),
        ("resumed", f"{resumed_seconds:.1f} s, bytes {'identical' if same else 'DIFFER'}"),
    ]
    for name, value in rows:
        print(f"{name:<30} {value}")
    remove(whole, resumed, *([] if args.keep else [source]))
    good = peak < LIMIT_BYTES and share >= 0.6 and same and not looks_whole
    print("MET" if good else "NOT MET", "(memory under 2 GiB, 60 % of the slower limit, identical after a kill)")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
