"""Makes build/models/kimi-k2.5-mini from models/kimi-k2.5-mini: a tokenizer of the size of its vocabulary and, with
--weights, model.safetensors with the very values that `--load-format dummy` makes up (src/checkpoint/dummy.cpp,
src/formats/mxfp4.cpp), so that another engine can be given the same model. --shape takes the true Kimi-K2.5 too, whose
weights are too many for a file.

    python tools/peers/mini.py [--shape kimi-k2.5] [--out FOLDER] [--weights]
"""
import argparse
import base64
import json
import pathlib
import re
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
NANO = ROOT / "models/kimi-k2.5-nano"
NUM_SLOTS = 256


def write_tokenizer(out, vocab_size):
    """Nano's vocabulary, then pairs of its own words and word parts, the frequent ones first."""
    lines = (NANO / "tiktoken.model").read_text().split("\n")
    tokens = [base64.b64decode(line.split()[0]) for line in lines if line]
    starts = [(rank, t) for rank, t in enumerate(tokens) if re.fullmatch(rb" ?[A-Za-z]+", t)][:700]
    ends = [(rank, t) for rank, t in enumerate(tokens) if re.fullmatch(rb"[a-z]+", t)][:700]
    pairs = sorted((a + b, first, second) for a, first in starts for b, second in ends)
    known = set(tokens)
    for _, first, second in pairs:
        if len(tokens) == vocab_size - NUM_SLOTS:
            break
        if first + second not in known:
            known.add(first + second)
            tokens.append(first + second)
    assert len(tokens) == vocab_size - NUM_SLOTS
    (out / "tiktoken.model").write_text(
        "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)))
    config = json.loads((NANO / "tokenizer_config.json").read_text())
    added = config["added_tokens_decoder"]
    shift = vocab_size - NUM_SLOTS - min(map(int, added))
    config["added_tokens_decoder"] = {
        str(int(key) + shift): {**entry, "content": re.sub(r"(?<=reserved_token_)\d+", lambda m: str(int(m[0]) + shift),
                                                           entry["content"])}
        for key, entry in added.items()}
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    shutil.copy(NANO / "chat_template.jinja", out)


def tensor_list(c):
    """(name of the linear layer or vector, shape, format) of every tensor, in the order of the checkpoint."""
    h, heads, latent, rope = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    nope, value, rank = c["qk_nope_head_dim"], c["v_head_dim"], c["q_lora_rank"]

    def mlp(prefix, width, kind):
        yield prefix + ".gate_proj", [width, h], kind
        yield prefix + ".up_proj", [width, h], kind
        yield prefix + ".down_proj", [h, width], kind

    yield "language_model.model.embed_tokens", [c["vocab_size"], h], "bf16"
    yield "language_model.lm_head", [c["vocab_size"], h], "bf16"
    yield "language_model.model.norm", [h], "ones"
    for layer in range(c["num_hidden_layers"]):
        prefix = f"language_model.model.layers.{layer}"
        for name, size in [("input_layernorm", h), ("post_attention_layernorm", h), ("self_attn.q_a_layernorm", rank),
                           ("self_attn.kv_a_layernorm", latent)]:
            yield f"{prefix}.{name}", [size], "ones"
        yield prefix + ".self_attn.q_a_proj", [rank, h], "bf16"
        yield prefix + ".self_attn.q_b_proj", [heads * (nope + rope), rank], "bf16"
        yield prefix + ".self_attn.kv_a_proj_with_mqa", [latent + rope, h], "bf16"
        yield prefix + ".self_attn.kv_b_proj", [heads * (nope + value), latent], "bf16"
        yield prefix + ".self_attn.o_proj", [h, heads * value], "bf16"
        if layer < c["first_k_dense_replace"]:
            yield from mlp(prefix + ".mlp", c["intermediate_size"], "bf16")
            continue
        yield prefix + ".mlp.gate", [c["n_routed_experts"], h], "bf16"
        yield prefix + ".mlp.gate.e_score_correction_bias", [c["n_routed_experts"]], "zeros"
        for expert in range(c["n_routed_experts"]):
            yield from mlp(f"{prefix}.mlp.experts.{expert}", c["moe_intermediate_size"], "mxfp4")
        yield from mlp(prefix + ".mlp.shared_experts", c["moe_intermediate_size"] * c["n_shared_experts"], "bf16")


def write_weights(path, config):
    import numpy as np

    import tensors

    def dummy(name, shape):
        rows, columns = shape
        state = np.uint64(0xCBF29CE484222325)
        with np.errstate(over="ignore"):
            for byte in name.encode():
                state = (state ^ np.uint64(byte)) * np.uint64(0x100000001B3)
            states = state + np.arange(rows, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)
            z = states[:, None] + np.arange(1, columns // 2 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z ^= z >> np.uint64(31)
        sums = z.view(np.uint8).reshape(rows, columns, 4).sum(-1, dtype=np.uint16)  # halves of a word, the low one first
        return (sums.astype(np.float32) - np.float32(510)) * (np.float32(0.02) / np.float32(147.801))

    def bf16(values):
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    def mxfp4(values):
        blocks = values.reshape(values.shape[0], -1, 32)
        amax = np.abs(blocks).max(-1).view(np.uint32)
        scale = np.maximum(((amax + 0x200000) >> 23).astype(np.int32) - 2, 1)
        scaled = blocks * np.exp2(127.0 - scale).astype(np.float32)[..., None]
        magnitude = np.abs(scaled)
        code = np.zeros(blocks.shape, np.uint8)
        for i, boundary in enumerate([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]):
            code += magnitude >= boundary if i % 2 else magnitude > boundary
        code |= np.where((code != 0) & (scaled < 0), 8, 0).astype(np.uint8)
        code = code.reshape(values.shape)
        return code[:, 0::2] | code[:, 1::2] << 4, scale.astype(np.uint8)

    items, makers = [], {}
    scales = {}
    for name, shape, kind in tensor_list(config):
        weight = name if kind == "zeros" else name + ".weight"
        if kind in ("ones", "zeros"):
            items.append((weight, "F32" if kind == "zeros" else "BF16", shape))
            makers[weight] = lambda shape=shape, kind=kind: (
                np.zeros(shape, np.float32) if kind == "zeros" else bf16(np.ones(shape, np.float32)))
        elif kind == "bf16":
            items.append((weight, "BF16", shape))
            makers[weight] = lambda name=name, shape=shape: bf16(dummy(name, shape))
        else:
            items += [(weight, "U8", [shape[0], shape[1] // 2]), (weight + "_scale", "U8", [shape[0], shape[1] // 32])]

            def encode(name=name, shape=shape, weight=weight):
                data, scales[weight + "_scale"] = mxfp4(dummy(name, shape))
                return data
            makers[weight] = encode  # sorts right before its scales
            makers[weight + "_scale"] = lambda key=weight + "_scale": scales.pop(key)
    tensors.write(path, items, lambda name: makers[name]())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["kimi-k2.5-mini", "kimi-k2.5"], default="kimi-k2.5-mini")
    parser.add_argument("--out", type=pathlib.Path, help="default: build/models/SHAPE")
    parser.add_argument("--weights", action="store_true", help="write model.safetensors too (1.2 GB; needs numpy)")
    args = parser.parse_args()
    if args.weights and args.shape != "kimi-k2.5-mini":
        parser.error("--weights is for kimi-k2.5-mini")
    args.out = args.out or ROOT / "build/models" / args.shape
    args.out.mkdir(parents=True, exist_ok=True)
    source = ROOT / "models" / args.shape
    config = json.loads((source / "config.json").read_text())["text_config"]
    for file in ("config.json", "generation_config.json"):
        shutil.copy(source / file, args.out)
    write_tokenizer(args.out, config["vocab_size"])
    if args.weights:
        write_weights(args.out / "model.safetensors", config)
    print(args.out)


main()
