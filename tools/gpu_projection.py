"""From measured decoding steps of a few true-size layers on one card to the whole model on eight.

A step t(C) of L layers is taken as  L·f + bytes(C) / (e(C)·B):  a fixed cost f a layer (launches, latencies, what does not
grow with the batch) and the share e of the bandwidth B that what is read then gets. f comes from plain steps, by least
squares over C with one e for all: of the difference between L layers and fewer where both were measured, else of whole
steps, where the head's and the sampler's costs count into it. With f, each point has its own e(C). The projection to all
layers at tensor parallelism 8 is

    t(C) = 61·f + 2·61·a(C) + bytes_TP8(C) / (e(C)·B)

where bytes_TP8 are the bytes of one rank: projections of heads, experts, dense layer, LM head and the draft are split,
the low-rank down projections, the router and the latent cache are replicated; and a(C) is one all-reduce of C·(1 + K) rows of
7,168 bfloat16 values, which this tool has not measured: it is assumed (MSCCL++ in a CUDA graph on 8 H200, sglang#22734).
A rank's matrices are an eighth as large and fall further below the bandwidth than e says: the projection is a lower bound
of the time. Bytes come from the benchmark's own count. Standard library only.
"""

import json
import math
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
RANKS = 8
# us by KiB of message.
ALL_REDUCE_US = {32: 7.2, 64: 8.2, 128: 8.8, 256: 10.6, 512: 12.0, 1024: 14.0}


def all_reduce_us(kib):
    sizes = sorted(ALL_REDUCE_US)
    if kib <= sizes[0]:
        return ALL_REDUCE_US[sizes[0]]
    if kib >= sizes[-1]:
        return ALL_REDUCE_US[sizes[-1]] * kib / sizes[-1]
    high = next(s for s in sizes if s >= kib)
    low = sizes[sizes.index(high) - 1]
    share = math.log(kib / low) / math.log(high / low)
    return ALL_REDUCE_US[low] * (ALL_REDUCE_US[high] / ALL_REDUCE_US[low]) ** share


def read_seconds(point, bandwidth):
    return sum(point["read_bytes"].values()) / bandwidth


def step_seconds(point):
    return point["step_ms"]["p50"] / 1e3


def layer_rows(points, fewer_points, num_more, bandwidth):
    """[(batch size, reading seconds, seconds)] of one layer with experts: the difference of two depths."""
    few = {p["batch_size"]: p for p in fewer_points}
    return [(p["batch_size"], (read_seconds(p, bandwidth) - read_seconds(few[p["batch_size"]], bandwidth)) / num_more,
             (step_seconds(p) - step_seconds(few[p["batch_size"]])) / num_more)
            for p in points if p["batch_size"] in few]


def fit(rows):
    """(fixed seconds, share of the bandwidth) of (reading seconds, seconds), by least squares of the relative error."""
    weights = [1 / t ** 2 for _, t in rows]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, rows)) / total
    mean_t = sum(w * t for w, (_, t) in zip(weights, rows)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, rows))
    slope = sum(w * (x - mean_x) * (t - mean_t) for w, (x, t) in zip(weights, rows)) / spread
    return mean_t - slope * mean_x, 1 / slope


def rank_bytes(point, config, layers):
    """Bytes one of eight ranks reads in a step of the whole model."""
    read, whole = point["read_bytes"], config["num_hidden_layers"]
    moe = (whole - config["first_k_dense_replace"]) / (layers - config["first_k_dense_replace"])
    down = 2 * whole * config["hidden_size"] * (
        config["q_lora_rank"] + config["kv_lora_rank"] + config["qk_rope_head_dim"])
    attention = read["attention"] * whole / layers
    split = attention - down + moe * (read["routed"] + read["shared"]) + read["dense"] + read["head"]
    split += sum(read.get(part, 0) for part in ("draft", "draft head", "draft KV"))
    return split / RANKS + down + moe * read["router"] + read["KV"] * whole / layers


def project(points, layers, bandwidth, fixed):
    """Rows of the projection; fixed: seconds a layer."""
    config = json.loads((ROOT / "models/kimi-k2.5/config.json").read_text())["text_config"]
    whole = config["num_hidden_layers"]
    rows = []
    for point in points:
        count = point["batch_size"]
        kib = count * (1 + point["draft_length"]) * config["hidden_size"] * 2 / 1024
        reduce_s = 2 * whole * all_reduce_us(kib) / 1e6
        efficiency = read_seconds(point, bandwidth) / (step_seconds(point) - layers * fixed)
        read_s = rank_bytes(point, config, layers) / bandwidth
        step = whole * fixed + reduce_s + read_s / efficiency
        tokens = count * point["tokens_per_sequence_step"] / step
        rows.append({"batch_size": count, "rank_gb": rank_bytes(point, config, layers) / 1e9,
                     "efficiency": efficiency, "fixed_ms": 1e3 * whole * fixed, "all_reduce_ms": 1e3 * reduce_s,
                     "read_ms": 1e3 * read_s / efficiency, "step_ms": 1e3 * step, "tok_s": tokens,
                     "tok_s_gpu": tokens / RANKS, "tok_s_user": tokens / count})
    return rows
