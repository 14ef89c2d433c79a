"""A text-only twin of a checkpoint for vLLM's CPU build: DeepseekV3ForCausalLM, a tokenizer.json, no remote code, no
vision. Values do not change; with --bf16 MXFP4 weights are decoded, which is exact (for a build without MXFP4 kernels).

    python to_vllm.py CHECKPOINT OUT [--bf16]
"""
import base64
import json
import pathlib
import sys

import numpy as np
import tokenizers

import tensors
from to_gguf import byte_letters, halves

PATTERN = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
           r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
           r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def write_tokenizer(folder, out, config):
    lines = (folder / "tiktoken.model").read_text().split("\n")
    ranks = {base64.b64decode(text): int(rank) for text, rank in (line.split() for line in lines if line)}
    letters = byte_letters()

    def spell(token):
        return "".join(letters[b] for b in token)

    pairs = [halves(token, ranks) for token in sorted(ranks, key=ranks.get) if len(token) > 1]
    model = tokenizers.models.BPE({spell(token): rank for token, rank in ranks.items()},
                                  [tuple(map(spell, pair)) for pair in pairs if pair], ignore_merges=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    added = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    for token_id in range(len(ranks), config["vocab_size"]):
        entry = added.get(str(token_id), {"content": f"<|reserved_token_{token_id}|>", "special": True})
        token = tokenizers.AddedToken(entry["content"], special=entry["special"], normalized=False)
        (tokenizer.add_special_tokens if entry["special"] else tokenizer.add_tokens)([token])
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "model_max_length": 1 << 30,
        "clean_up_tokenization_spaces": False}))


def decoded(files, name):
    _, (rows, half), raw = files[name]
    codes = np.asarray(raw).reshape(rows, half)
    scales = np.exp2(np.asarray(files[name + "_scale"][2]).reshape(rows, half // 16).astype(np.float32) - 127)
    values = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], -1).reshape(rows, half // 16, 32) * scales[..., None]
    return (values.reshape(rows, -1).view(np.uint32) >> 16).astype(np.uint16)


def main():
    folder, out = map(pathlib.Path, sys.argv[1:3])
    to_bf16 = "--bf16" in sys.argv
    out.mkdir(parents=True, exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    text = {**config["text_config"], "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]}
    if "quantization_config" in config and not to_bf16:
        text["quantization_config"] = config["quantization_config"]
    (out / "config.json").write_text(json.dumps(text, indent=1))
    (out / "generation_config.json").write_text((folder / "generation_config.json").read_text())
    write_tokenizer(folder, out, text)
    files = {}
    for shard in sorted(folder.glob("*.safetensors")):
        files.update(tensors.read(shard))
    items, makers = [], {}
    for name, (dtype, shape, raw) in files.items():
        target = name.removeprefix("language_model.")
        if to_bf16 and name.endswith("_scale"):
            continue
        if to_bf16 and dtype == "U8":
            items.append((target, "BF16", [shape[0], shape[1] * 2]))
            makers[target] = lambda name=name: decoded(files, name)
        else:
            items.append((target, dtype, shape))
            makers[target] = lambda raw=raw: raw
    tensors.write(out / "model.safetensors", items, lambda name: makers[name]())


if __name__ == "__main__":
    main()
