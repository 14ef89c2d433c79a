"""Converts a checkpoint of the Kimi-K2.5 class (BF16, MXFP4 experts or not) to GGUF for llama.cpp: architecture
"deepseek2" with absorbed latent attention. No value changes: MXFP4 blocks are packed anew, BF16 stays, vectors and the
router become F32.

    python to_gguf.py CHECKPOINT OUT.gguf

What llama.cpp expects was read from its loader (src/models/deepseek2.cpp) and from ggml-common.h:
  attn_k_b [heads, latent, nope] and attn_v_b [heads, value, latent] are the two halves of kv_b_proj, the first transposed;
  experts of a layer are one tensor [experts, out, in];
  a block of MXFP4 is the scale byte, then 16 bytes: element i in the low nibble of byte i, element i + 16 in the high one
  (in our files byte i has elements 2i and 2i + 1);
  rope_scaling.yarn_log_multiplier is mscale_all_dim / 10.
"""
import base64
import json
import pathlib
import sys

import gguf
import numpy as np

import tensors

MXFP4 = gguf.GGMLQuantizationType.MXFP4
BF16 = gguf.GGMLQuantizationType.BF16
TYPES = gguf.TokenType


def byte_letters():
    """GPT-2's way to write any byte as a printable letter."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def halves(token, ranks):
    """The two tokens whose merge makes this one: byte-pair encoding with the tokens before it."""
    parts = [token[i:i + 1] for i in range(len(token))]
    limit = ranks[token]
    while len(parts) > 2:
        found = [(ranks.get(a + b, limit), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
        rank, i = min(found)
        if rank >= limit:
            return None  # no text reaches this token by merging
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts


def add_tokenizer(writer, folder, config):
    lines = (folder / "tiktoken.model").read_text().split("\n")
    ranks = {base64.b64decode(text): int(rank) for text, rank in (line.split() for line in lines if line)}
    letters = byte_letters()

    def spell(token):
        return "".join(letters[b] for b in token)

    tokens = [spell(token) for token in sorted(ranks, key=ranks.get)]
    types = [TYPES.NORMAL] * len(tokens)
    added = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    for token_id in range(len(tokens), config["vocab_size"]):
        entry = added.get(str(token_id))
        tokens.append(entry["content"] if entry else f"<|reserved_token_{token_id}|>")
        types.append(TYPES.CONTROL if entry is None or entry["special"] else TYPES.USER_DEFINED)
    pairs = [halves(token, ranks) for token in sorted(ranks, key=ranks.get) if len(token) > 1]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("kimi-k2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(map(spell, pair)) for pair in pairs if pair])
    generation = json.loads((folder / "generation_config.json").read_text())
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(generation["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)


def add_hyperparameters(writer, c):
    yarn = c["rope_scaling"]
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(1)  # one latent for all heads
    writer.add_q_lora_rank(c["q_lora_rank"])
    writer.add_kv_lora_rank(c["kv_lora_rank"])
    writer.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
    writer.add_value_length(c["kv_lora_rank"])
    writer.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    writer.add_value_length_mla(c["v_head_dim"])
    writer.add_rope_dimension_count(c["qk_rope_head_dim"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(yarn["factor"])
    writer.add_rope_scaling_orig_ctx_len(yarn["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(yarn["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(yarn["beta_slow"])
    writer.add_rope_scaling_yarn_log_mul(0.1 * yarn["mscale_all_dim"])
    writer.add_leading_dense_block_count(c["first_k_dense_replace"])
    writer.add_expert_count(c["n_routed_experts"])
    writer.add_expert_used_count(c["num_experts_per_tok"])
    writer.add_expert_shared_count(c["n_shared_experts"])
    writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    writer.add_expert_weights_scale(c["routed_scaling_factor"])
    writer.add_expert_weights_norm(c["norm_topk_prob"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


class Weights:
    def __init__(self, writer, files):
        self.writer, self.files = writer, files

    def vector(self, name, source):
        self.writer.add_tensor(name, np.ascontiguousarray(tensors.to_f32(*self.files[source])))

    def bf16(self, name, values):
        """values: uint16, any shape."""
        self.writer.add_tensor(name, np.ascontiguousarray(values).view(np.uint8), raw_dtype=BF16)

    def matrix(self, name, *sources):
        """One linear layer, or several of one shape as one tensor, in the encoding they have."""
        first = self.files[sources[0] + ".weight"]
        stacked = [self.blocks(source) if first[0] == "U8" else self.plain(source) for source in sources]
        raw = np.stack(stacked) if len(sources) > 1 else stacked[0]
        self.writer.add_tensor(name, raw.view(np.uint8), raw_dtype=MXFP4 if first[0] == "U8" else BF16)

    def plain(self, source):
        dtype, shape, raw = self.files[source + ".weight"]
        assert dtype == "BF16", (source, dtype)
        return np.ascontiguousarray(raw).view(np.uint16).reshape(shape)

    def blocks(self, source):
        _, (rows, half), raw = self.files[source + ".weight"]
        _, _, scales = self.files[source + ".weight_scale"]
        pairs = np.asarray(raw).reshape(rows, half // 16, 16)
        codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(rows, half // 16, 32)
        packed = codes[..., :16] | codes[..., 16:] << 4
        scales = np.asarray(scales).reshape(rows, half // 16, 1)
        return np.concatenate([scales, packed], axis=-1).reshape(rows, -1)


def add_layer(out, c, layer, source):
    blk = f"blk.{layer}."
    out.vector(blk + "attn_norm.weight", source + "input_layernorm.weight")
    out.vector(blk + "ffn_norm.weight", source + "post_attention_layernorm.weight")
    attn = source + "self_attn."
    out.vector(blk + "attn_q_a_norm.weight", attn + "q_a_layernorm.weight")
    out.vector(blk + "attn_kv_a_norm.weight", attn + "kv_a_layernorm.weight")
    out.matrix(blk + "attn_q_a.weight", attn + "q_a_proj")
    out.matrix(blk + "attn_q_b.weight", attn + "q_b_proj")
    out.matrix(blk + "attn_kv_a_mqa.weight", attn + "kv_a_proj_with_mqa")
    out.matrix(blk + "attn_output.weight", attn + "o_proj")
    nope = c["qk_nope_head_dim"]
    kv_b = out.plain(attn + "kv_b_proj").reshape(c["num_attention_heads"], nope + c["v_head_dim"], -1)
    out.bf16(blk + "attn_k_b.weight", kv_b[:, :nope].transpose(0, 2, 1))
    out.bf16(blk + "attn_v_b.weight", kv_b[:, nope:])
    mlp = source + "mlp."
    kinds = ("gate", "up", "down")
    if layer < c["first_k_dense_replace"]:
        for kind in kinds:
            out.matrix(f"{blk}ffn_{kind}.weight", f"{mlp}{kind}_proj")
        return
    out.vector(blk + "ffn_gate_inp.weight", mlp + "gate.weight")
    out.vector(blk + "exp_probs_b.bias", mlp + "gate.e_score_correction_bias")
    for kind in kinds:
        experts = [f"{mlp}experts.{e}.{kind}_proj" for e in range(c["n_routed_experts"])]
        out.matrix(f"{blk}ffn_{kind}_exps.weight", *experts)
        out.matrix(f"{blk}ffn_{kind}_shexp.weight", f"{mlp}shared_experts.{kind}_proj")


def convert(folder, path):
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())["text_config"]
    files = {}
    for shard in sorted(folder.glob("*.safetensors")):
        files.update(tensors.read(shard))
    writer = gguf.GGUFWriter(path, "deepseek2", use_temp_file=False)
    writer.add_name(folder.name)
    add_hyperparameters(writer, config)
    add_tokenizer(writer, folder, config)
    out = Weights(writer, files)
    model = "language_model.model."
    out.matrix("token_embd.weight", model + "embed_tokens")
    out.vector("output_norm.weight", model + "norm.weight")
    out.matrix("output.weight", "language_model.lm_head")
    for layer in range(config["num_hidden_layers"]):
        add_layer(out, config, layer, f"{model}layers.{layer}.")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    convert(*sys.argv[1:3])
