"""Texts made to find differences between our tokenizer and tiktoken, and a vocabulary of Kimi's size to run them with.

    pip install tiktoken==0.14.0 regex tokenizers
    python tools/text_golden/fuzz_tokenizer.py slice          # tests/golden/text/fuzz.json, on the small vocabulary
    python tools/text_golden/fuzz_tokenizer.py full --texts 100000     # build/tokenizer: 163,584 ranks and their texts
    EYRIE_TOKENIZER_DIR=build/tokenizer build/dev/src/tokenizer/tokenizer_test --gtest_filter='*Fuzz*'
    EYRIE_TOKENIZER_DIR=build/tokenizer build/bench/src/tokenizer/tokenizer_bench --benchmark_filter=mixed

The real vocabulary is not ours to ship, so `full` trains one of the same size and pattern on text found on this machine:
documentation, source code and the translations of installed programs (a hundred languages, Chinese and Japanese among
them). mixed.txt, from other files than the training's, is what the benchmark encodes.
"""
import argparse
import base64
import gettext
import json
import pathlib
import random
import struct
import unicodedata

import tiktoken

import make_tokenizer_golden as golden

ROOT = pathlib.Path(__file__).resolve().parents[2]
NUM_RANKS = 163_584
PLACES = ["/usr/share", "/usr/lib/python3", "/usr/lib/python3.11", "/usr/local/lib"]
KINDS = {  # how the text is mixed: suffixes, share
    "prose": ({".md", ".txt", ".rst", ".html", ".htm"}, 0.35),
    "code": ({".py", ".cpp", ".h", ".js", ".json", ".sh"}, 0.35),
    "languages": ({".mo"}, 0.18),
    "han": ({".mo"}, 0.12),  # Chinese, Japanese, Korean
}
MEGABYTE = 1 << 20


def translations(path):
    try:
        catalog = gettext.GNUTranslations(path.open("rb"))._catalog
    except (OSError, LookupError, ValueError, struct.error):  # broken or in a charset Python lacks
        return ""
    return "\n".join(text for text in catalog.values() if isinstance(text, str))


def is_han(path):
    return any(part.split("_")[0].split(".")[0] in ("zh", "ja", "ko") for part in path.parts)


def texts_of(kind, files, bytes_wanted):
    out, size = [], 0
    for path in files:
        if size >= bytes_wanted:
            break
        if path.suffix == ".mo":
            if is_han(path) != (kind == "han"):
                continue
            text = translations(path)
        else:
            text = path.read_bytes()[:300_000].decode("utf-8", "ignore")
        if text:
            out.append(text)
            size += len(text.encode())
    return out, size


def gather(megabytes, part, places):
    """Texts in the shares of KINDS; part 0 and 1 draw from different files."""
    everything = sorted(p for place in places for p in pathlib.Path(place).rglob("*")
                        if p.suffix and p.is_file() and not p.is_symlink())
    chosen = []
    for kind, (suffixes, share) in KINDS.items():
        files = [p for i, p in enumerate(f for f in everything if f.suffix in suffixes) if (i % 8 == 0) == (part == 1)]
        random.Random(kind).shuffle(files)
        texts, size = texts_of(kind, files, share * megabytes * MEGABYTE)
        print(f"  {kind}: {len(texts)} texts, {size / MEGABYTE:.1f} MB")
        chosen += texts
    random.Random(part).shuffle(chosen)
    return chosen


def train(texts):
    import tokenizers

    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(golden.PATTERN), "isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=NUM_RANKS, min_frequency=2, show_progress=False, special_tokens=[],
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model.train_from_iterator(texts, trainer)
    order = golden.gpt2_byte_order()
    letters, other = {}, 256
    for byte in order:
        printable = 33 <= byte < 127 or 161 <= byte < 173 or 174 <= byte
        letters[chr(byte) if printable else chr(other)] = byte
        other += not printable
    spelled = sorted(model.get_vocab().items(), key=lambda item: item[1])
    ranks = {bytes([b]): i for i, b in enumerate(order)}
    for token, _ in spelled:
        token = bytes(letters[c] for c in token)
        ranks.setdefault(token, len(ranks))
    return ranks


def read_ranks(folder):
    lines = (folder / "tiktoken.model").read_text().split("\n")
    return {base64.b64decode(text): int(rank) for text, rank in (line.split() for line in lines if line)}


class Maker:
    """Random texts that lie close to where the pattern and the merges decide."""

    FEW = list("aAsStTlLrevEmd'ʼ  \t\n\r1.,’-") + ["ſ", "ǅ", "ʰ", "א", "\u0301", "\u0903", "٣", "Ⅷ", "²", "\u00a0", "\u3000",
                                                  "鹰", "〇", "々", "⺀", "\U00016ff0", "の", "가", "🦅", "\u200d", "\x1f", "\u180e"]

    def __init__(self, rng, ranks, corpus, controls):
        self.rng, self.corpus = rng, [text for text in corpus if text]
        self.tokens = list(ranks)
        self.controls = [c for c in controls if "reserved" not in c]
        self.by_category = {}
        for char in map(chr, range(0x110000)):
            category = unicodedata.category(char)
            if category != "Cs":
                self.by_category.setdefault(category, []).append(char)
        self.categories = sorted(self.by_category)
        self.kinds = [self.few, self.few, self.categories_mixed, self.cuts, self.cuts, self.joined_tokens, self.runs, self.spelled]

    def text(self):
        out = self.rng.choice(self.kinds)()
        while self.rng.random() < 0.3:
            out += self.rng.choice(self.kinds)()
        return out

    def few(self):
        chosen = self.rng.sample(self.FEW, self.rng.randint(2, 6))
        return "".join(self.rng.choice(chosen) for _ in range(self.rng.randint(1, 40)))

    def categories_mixed(self):
        return "".join(self.rng.choice(self.by_category[self.rng.choice(self.categories)])
                       for _ in range(self.rng.randint(1, 30)))

    def cuts(self):
        parts = []
        for _ in range(self.rng.randint(1, 6)):
            text = self.rng.choice(self.corpus)
            begin = self.rng.randrange(len(text))
            parts.append(text[begin:begin + self.rng.randint(1, 60)])
        return "".join(parts)

    def joined_tokens(self):
        raw = b"".join(self.rng.choice(self.tokens) for _ in range(self.rng.randint(1, 12)))
        return raw.decode("utf-8", "replace")

    def runs(self):
        unit = self.rng.choice([*self.FEW, "ab", "the", "老鹰", " \n", "=-", "\r\n"])
        return unit * self.rng.randint(1, 150)

    def spelled(self):
        control = self.rng.choice(self.controls)
        begin = self.rng.choice([0, 0, 1])
        return self.rng.choice(self.FEW) + control[begin:self.rng.choice([None, None, -1])] + self.rng.choice(self.FEW)


def write_cases(path, ranks, corpus, count, seed):
    base = len(ranks)
    controls = {golden.SLOTS.get(i, f"<|reserved_token_{base + i}|>"): base + i for i in range(256)}
    encoding = tiktoken.Encoding("fuzz", pat_str=golden.PATTERN, mergeable_ranks=ranks, special_tokens=controls)
    maker = Maker(random.Random(seed), ranks, corpus, controls)
    rows = []
    for _ in range(count):
        text = maker.text()
        row = {"text": text, "ids": encoding.encode(text, allowed_special="all")}
        plain = encoding.encode(text, disallowed_special=())
        if plain != row["ids"]:
            row["plain_ids"] = plain
        rows.append(row)
    golden.dump_lines(path, rows)


def make_slice():
    write_cases(golden.OUT / "fuzz.json", read_ranks(golden.OUT), golden.CORPUS.split("\n"), 240, 11)


def make_full(args):
    args.out.mkdir(parents=True, exist_ok=True)
    places = PLACES + args.corpus
    if not (args.out / "tiktoken.model").exists():
        print("training on")
        ranks = train(gather(args.train_megabytes, 0, places))
        assert len(ranks) == NUM_RANKS, f"{len(ranks)} ranks: more text is needed"
        (args.out / "tiktoken.model").write_text(
            "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    print("mixed.txt")
    mixed = gather(16, 1, places)
    (args.out / "mixed.txt").write_text("\n".join(mixed))
    write_cases(args.out / "fuzz.json", read_ranks(args.out), mixed, args.texts, args.seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["slice", "full"])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/tokenizer")
    parser.add_argument("--corpus", action="append", default=[], help="a folder with more text")
    parser.add_argument("--train-megabytes", type=int, default=120)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    make_slice() if args.what == "slice" else make_full(args)


main()
