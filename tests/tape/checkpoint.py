"""Writes a tiny Kimi-K2.5-shaped checkpoint that plays tapes, and EAGLE-3 drafts that foresee them or do not.

How it works. A token of text carries in its embedding the code (64 signs) of the token that follows it, and
lm_head compares with every code. A control token carries a flag instead, and asks the first layer: attention
there is uniform (all queries are zero), each token of text holds `its program - the program before it`, so
the mean over the context is the program of the last token of text, over n. A program has a code for every
kind of control token; the dense MLP multiplies flag and program, which picks one. Later layers are a mixture
of experts whose down projections are zero. All embeddings have one length, so no norm disturbs the sum.

The good draft does the same in one layer, from the embeddings alone; it guesses right however long the
chain. The bad one has its lm_head moved by one row: it is wrong about every token. The mixed one has every
other pair of rows exchanged. Standard library only.
"""

import array
import functools
import json
import math
import pathlib
import random
import shutil
import struct

from tape import CONTROLS, END, KINDS, SLOTS, VOCAB, Tapes

ROOT = pathlib.Path(__file__).resolve().parents[2]
NANO = ROOT / "models/kimi-k2.5-nano"
WIDTH = 64             # signs of a code
HIDDEN = 640
CODE, PROGRAM = 0, WIDTH
FLAG = PROGRAM + len(KINDS) * WIDTH
ONE, FILL = FLAG + len(KINDS), FLAG + len(KINDS) + 1  # a constant; two columns that even out the length
HEADS, HEAD = 4, 128   # of the values: they hold a program
LAYERS, EXPERTS, INNER = 3, 8, 64
GAIN = 52.0            # of a program's mean over up to 1,500 tokens, and of what the MLP picks from it
LOUDNESS = 1.5         # of codes and flags in the embedding: beside a long program they must still be heard
SHARPNESS = 0.25       # of lm_head: probabilities visibly below one, so that logprobs say something
DRAFT_HEADS = 1 + HEADS


@functools.lru_cache(maxsize=None)
def bf16(value: float) -> int:
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF


def rounded(value: float) -> float:
    return struct.unpack("<f", struct.pack("<I", bf16(value) << 16))[0]


class Matrix:
    """BF16, zero where nothing was set."""

    def __init__(self, *shape, fill=0.0):
        self.shape = shape
        self.data = array.array("H", [bf16(fill)]) * math.prod(shape)

    def set(self, row: int, column: int, value: float):
        self.data[row * self.shape[-1] + column] = bf16(value)

    def set_row(self, row: int, column: int, values: list):
        begin = row * self.shape[-1] + column
        self.data[begin:begin + len(values)] = array.array("H", map(bf16, values))

    def bytes(self) -> bytes:
        return self.data.tobytes()


def write_safetensors(path: pathlib.Path, tensors: dict):
    header, at = {}, 0
    for name, tensor in tensors.items():
        if isinstance(tensor, Matrix):
            dtype, shape, size = "BF16", list(tensor.shape), 2 * len(tensor.data)
        else:
            dtype, shape, size = "F32", [len(tensor)], 4 * len(tensor)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.bytes() if isinstance(tensor, Matrix) else array.array("f", tensor).tobytes())


def make_codes() -> list:
    """A code for every token: bit x is Tr(a x + b x³) over GF(64), the token being (a, b). Any two of these 4096
    codes, the dual of a double-error-correcting BCH code, have a product within ±16 of 64."""
    def times(a, b):
        product = 0
        for bit in range(6):
            if b >> bit & 1:
                product ^= a << bit
        for bit in range(11, 5, -1):
            if product >> bit & 1:
                product ^= 0b1000011 << (bit - 6)  # x⁶ + x + 1
        return product

    def trace(a):
        total = 0
        for _ in range(6):
            total ^= a
            a = times(a, a)
        return total

    basis = [sum(trace(times(1 << bit, x)) << x for x in range(WIDTH)) for bit in range(6)]
    basis += [sum(trace(times(1 << bit, times(x, times(x, x)))) << x for x in range(WIDTH)) for bit in range(6)]
    codes = [0]
    for word in basis:
        codes += [code ^ word for code in codes]
    return [[1.0 if code >> i & 1 else -1.0 for i in range(WIDTH)] for code in codes]


def embeddings(tapes: Tapes, codes: list) -> Matrix:
    kinds = {CONTROLS[kind]: i for i, kind in enumerate(KINDS)}

    def program(token) -> list:
        row = [0.0] * (len(KINDS) * WIDTH)
        for control, after in tapes.program.get(token, {}).items():
            row[kinds[control] * WIDTH:(kinds[control] + 1) * WIDTH] = codes[after]
        return row

    programs = {token: program(token) for token in tapes.program}
    empty = [0.0] * (len(KINDS) * WIDTH)
    steps = {token: [a - b for a, b in zip(own, programs.get(tapes.before.get(token), empty))]
             for token, own in programs.items()}
    longest = max(sum(x * x for x in step) for step in steps.values())
    matrix = Matrix(VOCAB, HIDDEN)
    for token in range(VOCAB):
        matrix.set(token, ONE, 1.0)
        step = steps.get(token, empty)
        matrix.set_row(token, PROGRAM, step)
        rest = longest + 1 - sum(x * x for x in step)
        coarse = rounded(math.sqrt(rest) * (1 - 1 / 128))
        matrix.set(token, FILL, coarse)
        matrix.set(token, FILL + 1, math.sqrt(rest - coarse * coarse))
        if token in kinds:
            matrix.set(token, FLAG + kinds[token], LOUDNESS * math.sqrt(WIDTH))
            continue
        code = codes[tapes.follow.get(token, CONTROLS[END])]
        if token in tapes.second:
            code = [0.8 * a + 0.6 * b for a, b in zip(code, codes[tapes.second[token]])]
            length = math.sqrt(sum(x * x for x in code) / WIDTH)
            code = [x / length for x in code]
        matrix.set_row(token, CODE, [LOUDNESS * x for x in code])
    return matrix


def lm_head(codes: list, row_of=lambda token: token) -> Matrix:
    matrix = Matrix(VOCAB, HIDDEN)
    for token in range(VOCAB):
        matrix.set_row(token, CODE, [SHARPNESS * sign for sign in codes[row_of(token)]])
    return matrix


def picking_mlp(prefix: str) -> dict:
    """One unit for every kind and sign: flag of the kind times the program's sign."""
    units = len(KINDS) * WIDTH
    gate, up, down = Matrix(units, HIDDEN), Matrix(units, HIDDEN), Matrix(HIDDEN, units)
    for unit in range(units):
        gate.set(unit, FLAG + unit // WIDTH, 1.0)
        up.set(unit, PROGRAM + unit, 1.0)
        down.set(CODE + unit % WIDTH, unit, GAIN)
    return {f"{prefix}.gate_proj.weight": gate, f"{prefix}.up_proj.weight": up, f"{prefix}.down_proj.weight": down}


def layer(index: int, prefix: str) -> dict:
    ones = Matrix(HIDDEN, fill=1.0)
    kv_a, kv_b, o = Matrix(HIDDEN + 32, HIDDEN), Matrix(HEADS * (64 + HEAD), HIDDEN), Matrix(HIDDEN, HEADS * HEAD)
    if index == 0:
        for i in range(HIDDEN):
            kv_a.set(i, i, 1.0)
        for i in range(len(KINDS) * WIDTH):
            kv_b.set(i // HEAD * (64 + HEAD) + 64 + i % HEAD, PROGRAM + i, 1.0)
            o.set(PROGRAM + i, i, GAIN)
    attention = {
        "q_a_proj": Matrix(32, HIDDEN), "q_a_layernorm": Matrix(32, fill=1.0), "q_b_proj": Matrix(HEADS * 96, 32),
        "kv_a_proj_with_mqa": kv_a, "kv_a_layernorm": ones, "kv_b_proj": kv_b, "o_proj": o,
    }
    tensors = {f"{prefix}.self_attn.{name}.weight": matrix for name, matrix in attention.items()}
    tensors |= {f"{prefix}.input_layernorm.weight": ones, f"{prefix}.post_attention_layernorm.weight": ones}
    if index == 0:
        return tensors | picking_mlp(f"{prefix}.mlp")
    rng = random.Random(index)
    router = Matrix(EXPERTS, HIDDEN)
    for expert in range(EXPERTS):
        router.set_row(expert, 0, [rng.gauss(0, 0.1) for _ in range(HIDDEN)])
    tensors |= {f"{prefix}.mlp.gate.weight": router, f"{prefix}.mlp.gate.e_score_correction_bias": [0.0] * EXPERTS}
    for name in ["shared_experts", *(f"experts.{e}" for e in range(EXPERTS))]:
        tensors |= {f"{prefix}.mlp.{name}.{part}.weight": Matrix(INNER, HIDDEN, fill=0.01)
                    for part in ("gate_proj", "up_proj")}
        tensors[f"{prefix}.mlp.{name}.down_proj.weight"] = Matrix(HIDDEN, INNER)
    return tensors


def config() -> dict:
    ends = {"bos_token_id": SLOTS, "eos_token_id": SLOTS + 1, "pad_token_id": VOCAB - 1}
    return {
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "dtype": "bfloat16", **ends,
        "media_placeholder_token_id": CONTROLS["<|media_pad|>"], "tie_word_embeddings": False,
        "text_config": {
            "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
            "q_lora_rank": 32, "kv_lora_rank": HIDDEN, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
            "v_head_dim": HEAD, "attention_bias": False, "intermediate_size": len(KINDS) * WIDTH,
            "moe_intermediate_size": INNER, "n_routed_experts": EXPERTS, "n_shared_experts": 1,
            "num_experts_per_tok": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 1, "topk_group": 1,
            "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True,
            "routed_scaling_factor": 2.5, "hidden_act": "silu", "rms_norm_eps": 1e-05, "vocab_size": VOCAB,
            "max_position_embeddings": 4096, "rope_theta": 50000.0, "rope_scaling": None,
            "num_nextn_predict_layers": 0, "tie_word_embeddings": False, **ends,
        },
    }


def write_target(folder: pathlib.Path, tapes: Tapes, codes: list, is_k2: bool = False):
    """is_k2: as a text-only Kimi-K2 names and describes itself."""
    prefix = "" if is_k2 else "language_model."
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config()["text_config"] if is_k2 else config()))
    shutil.copyfile(NANO / "chat_template.jinja", folder / "chat_template.jinja")
    (folder / "tiktoken.model").write_text(tapes.vocabulary.ranks())
    tensors = {f"{prefix}model.embed_tokens.weight": embeddings(tapes, codes)}
    for index in range(LAYERS):
        tensors |= layer(index, f"{prefix}model.layers.{index}")
    tensors[f"{prefix}model.norm.weight"] = Matrix(HIDDEN, fill=1.0)
    tensors[f"{prefix}lm_head.weight"] = lm_head(codes)
    write_safetensors(folder / "model.safetensors", tensors)


def write_draft(folder: pathlib.Path, head):
    """Head 0 looks at its own token only (queries and keys of a constant, turned by RoPE), the others at all."""
    width = DRAFT_HEADS * HEAD
    q, k, v, o = Matrix(width, 2 * HIDDEN), Matrix(width, 2 * HIDDEN), Matrix(width, 2 * HIDDEN), Matrix(HIDDEN, width)
    for i in range(HEAD // 2):
        q.set(i, ONE, 8.0)
        k.set(i, ONE, 8.0)
    own = [*range(CODE, CODE + WIDTH), *range(FLAG, FLAG + len(KINDS))]
    for i, column in enumerate(own):
        v.set(i, column, 1.0)
        o.set(column, i, 1.0)
    for i in range(len(KINDS) * WIDTH):
        v.set(HEAD + i, PROGRAM + i, 1.0)
        o.set(PROGRAM + i, HEAD + i, GAIN)
    ones = Matrix(HIDDEN, fill=1.0)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": len(KINDS) * WIDTH, "num_hidden_layers": 1, "num_attention_heads": DRAFT_HEADS,
        "num_key_value_heads": DRAFT_HEADS, "head_dim": HEAD, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        # Fast rotations only: the constant's score falls off within one position.
        "rope_theta": 2.0, "rope_scaling": None, "max_position_embeddings": 4096, "vocab_size": VOCAB,
        "draft_vocab_size": VOCAB, "target_hidden_size": HIDDEN, "num_aux_hidden_states": 1,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1]},
        # With hidden_norm zero nothing comes from the states before: neither fed nor carried on.
        "norm_before_residual": True, "tie_word_embeddings": False, "dtype": "bfloat16",
    }))
    tensors = {
        "fc.weight": Matrix(HIDDEN, HIDDEN), "midlayer.input_layernorm.weight": ones,
        "midlayer.hidden_norm.weight": Matrix(HIDDEN), "midlayer.self_attn.q_proj.weight": q,
        "midlayer.self_attn.k_proj.weight": k, "midlayer.self_attn.v_proj.weight": v,
        "midlayer.self_attn.o_proj.weight": o, "midlayer.post_attention_layernorm.weight": ones,
        **picking_mlp("midlayer.mlp"), "norm.weight": ones,
    }
    if head is not None:
        tensors["lm_head.weight"] = head  # otherwise the target's
    write_safetensors(folder / "model.safetensors", tensors)


def write(folder: pathlib.Path, tapes: Tapes) -> dict:
    """{"target", "k2", "good", "bad", "mixed"} → checkpoint folders under `folder`."""
    codes = make_codes()
    paths = {name: folder / name for name in ("target", "k2", "good", "bad", "mixed")}
    write_target(paths["target"], tapes, codes)
    write_target(paths["k2"], tapes, codes, is_k2=True)
    write_draft(paths["good"], None)
    write_draft(paths["bad"], lm_head(codes, lambda token: (token + 1) % VOCAB))
    write_draft(paths["mixed"], lm_head(codes, lambda token: token ^ 1 if token & 2 else token))
    return paths
