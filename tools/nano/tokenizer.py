"""The nano tokenizer: byte-level BPE in tiktoken's file format, Kimi's split pattern and specials.

`python tokenizer.py OUT_DIR` trains it on the generators' text and writes tiktoken.model and
tokenizer_config.json. Digits are never merged, except 00 and 000: arithmetic is learned digit by
digit, and the three-digit split of the pattern still shows in the ids.
"""
import base64
import collections
import json
import os
import random
import sys

BASE = 3840                  # mergeable ranks; the 256 special slots follow
SLOTS = 256
MODEL_DIR = os.path.join(os.path.dirname(__file__), "../../models/kimi-k2.5-nano")

PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])

# Offset from the first special slot, as in Kimi's vocabulary (163584 + offset there).
NAMED = {
    0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>",
    6: "<|start_header_id|>", 7: "<|end_header_id|>", 9: "[EOT]", 10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>", 12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>", 15: "<|tool_call_end|>", 17: "<|im_middle|>",
    18: "<|media_begin|>", 19: "<|media_content|>", 20: "<|media_end|>", 21: "<|media_pad|>",
    22: "<think>", 23: "</think>", 254: "[UNK]", 255: "[PAD]",
}
# Text that parsers read is not "special": decoding with skip_special_tokens keeps it.
NOT_SPECIAL = {11, 12, 13, 14, 15, 22, 23}


def special_tokens(base=BASE):
    return {NAMED.get(i, f"<|reserved_token_{base + i}|>"): base + i for i in range(SLOTS)}


def byte_order():
    """GPT-2's order of the 256 bytes: the printable ones first."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [bytes([b]) for b in shown + [b for b in range(256) if b not in shown]]


def load(folder=MODEL_DIR):
    import tiktoken
    ranks = {}
    with open(os.path.join(folder, "tiktoken.model"), "rb") as f:
        for line in f:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    return tiktoken.Encoding("nano", pat_str=PATTERN, mergeable_ranks=ranks,
                             special_tokens=special_tokens(len(ranks)))


def train(counts, size):
    """Byte-pair merges of the pieces in `counts` (bytes -> how often), the most frequent pair first."""
    ranks = {b: i for i, b in enumerate(byte_order())}
    words = [([bytes([b]) for b in piece], n) for piece, n in counts.items()]
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for w, (parts, n) in enumerate(words):
        for pair in zip(parts, parts[1:]):
            pairs[pair] += n
            where[pair].add(w)
    while len(ranks) < size:
        pair = max(pairs, key=lambda p: (pairs[p], p), default=None)
        if pair is None or pairs[pair] <= 0:
            raise SystemExit(f"only {len(ranks)} tokens can be made from this text")
        merged = pair[0] + pair[1]
        ranks.setdefault(merged, len(ranks))
        for w in list(where.pop(pair)):
            parts, n = words[w]
            for q in zip(parts, parts[1:]):
                pairs[q] -= n
            out, i = [], 0
            while i < len(parts):
                if i + 1 < len(parts) and (parts[i], parts[i + 1]) == pair:
                    out.append(merged)
                    i += 2
                else:
                    out.append(parts[i])
                    i += 1
            words[w] = (out, n)
            for q in zip(out, out[1:]):
                pairs[q] += n
                where[q].add(w)
        del pairs[pair]
    return ranks


def corpus_counts(documents, seed):
    import regex
    from data import document
    from words import COMMON
    split = regex.compile(PATTERN, regex.V1)
    rng = random.Random(seed)
    special = regex.compile("|".join(map(regex.escape, special_tokens())))
    counts = collections.Counter()
    for _ in range(documents):
        for text, _ in document(rng):
            for plain in special.split(text):
                counts.update(split.findall(plain))
    for word in COMMON:
        for form in (word, " " + word, word.capitalize(), " " + word.capitalize()):
            counts[form] += 3
    for text in ("é", "ü", "ä", "ö", "ß", "ñ", "—", "“", "”", "’", "…", "€", "£", "°", "你", "好", "的"):
        counts[text] += 200
    return collections.Counter({k.encode(): v for k, v in counts.items()
                                if not any(c.isdigit() for c in k)})


def write(ranks, folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tiktoken.model"), "wb") as f:
        for token, rank in sorted(ranks.items(), key=lambda x: x[1]):
            f.write(base64.b64encode(token) + b" " + str(rank).encode() + b"\n")
    base = len(ranks)
    added = {}
    for text, i in special_tokens(base).items():
        added[str(i)] = {"content": text, "lstrip": False, "normalized": False, "rstrip": False,
                         "single_word": False, "special": i - base not in NOT_SPECIAL}
    config = {
        "added_tokens_decoder": added,
        "additional_special_tokens": ["<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>",
                                      "<|im_middle|>", "<|start_header_id|>", "<|end_header_id|>", "[EOT]"],
        "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]", "pad_token": "[PAD]",
        "clean_up_tokenization_spaces": False, "model_max_length": 4096,
        "tokenizer_class": "TikTokenTokenizer",
    }
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1, ensure_ascii=False)
        f.write("\n")


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else MODEL_DIR
    counts = corpus_counts(20000, seed=11)
    ranks = train(counts, BASE - 2)
    for zeros in (b"00", b"000"):
        ranks.setdefault(zeros, len(ranks))
    assert len(ranks) == BASE
    write(ranks, folder)
    print(f"{len(counts)} pieces, {len(ranks)} tokens")


if __name__ == "__main__":
    main()
