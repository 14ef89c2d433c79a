"""Vectors for the tokenizer tests, made by the tiktoken library and by Python's own UTF-8 decoder.

Trains a byte-level vocabulary of 1,000 tokens on the few lines below (Kimi's pattern, Kimi's slots
behind it) and writes to tests/golden/text/:

  tiktoken.model, tokenizer_config.json   the vocabulary, as a checkpoint would hold it
  tokenizer.json                          texts and their ids, with and without control tokens
  pieces.json                             where the pattern cuts around every character there is
  utf8.json                               bytes and what bytes.decode("utf-8", "replace") makes of them

    pip install tiktoken==0.14.0 regex && python tools/text_golden/make_tokenizer_golden.py
"""
import base64
import collections
import json
import pathlib
import random
import unicodedata

import regex
import tiktoken

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/text"
NUM_TOKENS = 1000
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    r"[\p{Han}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}",
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
SLOTS = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>",
         6: "<|start_header_id|>", 7: "<|end_header_id|>", 9: "[EOT]", 10: "<|im_system|>",
         11: "<|tool_calls_section_begin|>", 12: "<|tool_calls_section_end|>",
         13: "<|tool_call_begin|>", 14: "<|tool_call_argument_begin|>", 15: "<|tool_call_end|>",
         17: "<|im_middle|>", 18: "<|media_begin|>", 19: "<|media_content|>", 20: "<|media_end|>",
         21: "<|media_pad|>", 22: "<think>", 23: "</think>", 254: "[UNK]", 255: "[PAD]"}
NOT_SPECIAL = {11, 12, 13, 14, 15, 22, 23}

CORPUS = """The eagle left its eyrie at dawn and circled over the valley, looking for the river.
Tom has 12 apples. He buys 30 more and gives 5 to each of his 3 friends. How many are left? 12+30-15=27.
We'll see what they've got; I'm sure it's fine, they'd know, don't you think? THEY'LL say it's HER'S.
def encode(text: str) -> list[int]:\n    return [rank(piece) for piece in split(text)]\n
{"name": "get_weather", "arguments": {"city": "Berlin", "days": 3, "units": "metric"}}
Der Adler kreiste über dem Fluß; später hörte man die Vögel. Größe: 1.234,5 m². Ça va très bien, merci.
Быстрая лиса прыгает через ленивую собаку. Орёл летит над рекой. Γρήγορη αλεπού πηδάει πάνω.
老鹰在清晨离开巢穴，在山谷上空盘旋，寻找河流。今天的天气很好，我们去公园散步吧。数学题：十二加三十等于四十二。
ワシは夜明けに巣を離れ、谷の上を旋回した。東京タワーはとても高いです。カタカナとひらがな。
독수리는 새벽에 둥지를 떠나 계곡 위를 맴돌았다. 오늘 날씨가 좋습니다.
غادر النسر عشه عند الفجر وحلق فوق الوادي. השלום עליכם, מה שלומך? नमस्ते दुनिया, आप कैसे हैं? สวัสดีชาวโลก
🦅 🏔️ 👨‍👩‍👧‍👦 👍🏽 🇩🇪 ☀️ ☕ — “quoted” ‘single’ … • → ≤ ≥ ≠ ∑ √ ½ ¾ ² ³ № € £ ¥
        indented\t\ttabs\r\nwindows line\r\n\r\n\n\n   \n  trailing spaces   \nend.
"""

TEXTS = [
    "", " ", "  ", "   ", "\n", "\r\n", "\n\n\n", " \n", "\n ", "  \n  x", "\t", "\t\tx", "a", "A", "aB", "Ab", "AB",
    "ABc", "aBC", "HelloWorld", "helloWORLD", "XMLHttpRequest", "iPhone15ProMax", "The eagle left its eyrie.",
    "don't", "DON'T", "don’t", "I'm we'll they've you're he'd it's 's 'S 'LL 'll", "'sa", "it'ſ", "K'ſ x", "x'",
    "1", "12", "123", "1234", "1234567", "3.14159", "1,234.56", "１２３４５", "Ⅷ Ⅸ", "½¼¾", "x²y³", "٣٤٥٦", "१२३४",
    "12abc", "abc12", "a1b2c3", "$100", "100%", "#1", "C++20", "e=mc²", "192.168.0.1", "2024-01-31T12:34:56Z",
    "hello, world!", "hello,world", " hello", "  hello", "   hello", "hello ", "hello  ", "hello   world", "a  b   c    d",
    "x\n y", "x \ny", "x  \n\n  y", "x\r\ry", "x\r\n\r\ny", "\r\n\r\n", "end.\n", "end!!\n\n", "...\r\n...", "??!\n x",
    " \u00a0x", "\u00a0", "\u3000全角", "a\u2003b", "a\u2028b", "a\u2029b", "a\u0085b", "a\u180eb", " \u180e b", "\x1c\x1d\x1e\x1fx",
    "a\x0bb\x0cc", "\ufeffbom", "zero\u200bwidth", "soft\u00adhyphen", "\u202eright-to-left", "nul\x00nul", "\x7f",
    "老鹰", "老鹰在 清晨", "abc老鹰def", "老鹰123", "，。！？", "老鹰，离开。", " 老鹰", "「引用」", "々〆〇〡〢", "々", "〇", "〻", "⺀⺁⼀",
    "カタカナ", "ひらがなと漢字", "ーー長音ー", "ｶﾀｶﾅ", "東京タワー", "독수리는", "한국어 텍스트", "ᄒᆞᆫ글", "漢字한글かな",
    "über Größe", "Fluß", "ÀÉÎÕÜ", "éa", "e\u0301a", "E\u0301A", "a\u0301\u0302\u0303", "\u0301", " \u0301x", "ǅ ǈ ǋ", "ǅabc", "ʰʷ ˈstress", "ªº",
    "Быстрая ЛИСА", "ЁЖИК ёжик", "Γρήγορη", "ΑΒΓδεζ", "שלום", "مرحبا بالعالم", "नमस्ते दुनिया", "क्षत्रिय", "สวัสดีชาวโลก", "ภาษาไทย",
    "ქართული", "Ქ ქ", "አማርኛ", "ខ្មែរ", "བོད་", "𝒜𝓑𝖈", "𐐀𐐨", "𠀀𠀁", "𠮷野家", "\U00016ff0", "𒀀𒁀", "𝟘𝟙𝟚",
    "🦅", "🦅🦅", "👨‍👩‍👧‍👦", "👍🏽", "🇩🇪🇫🇷", "☀️☕", "1️⃣", "a🦅b", " 🦅", "🦅\n", "❤️‍🔥", "\ufe0f",
    "“quoted”", "—dash—", "…", "• item", "→←", "∑∫√", "≤≥≠", "€5 £6 ¥7", "~`!@#$%^&*()_+-=[]{}|;':\",./<>?",
    "def f(x):\n    return x  # comment\n", "if (a && b || !c) { d(); }\n\n}", "<div class=\"x\">\n\t<p>y</p>\n</div>",
    "https://example.com/a?b=c&d=e#f", "user@example.com", "C:\\Users\\x", "a/b/c", "snake_case_name", "kebab-case-name", "__init__",
    "{\"city\": \"Berlin\"}", "[1, 2, 3]", "\\n\\t\\u00e9", "<", "<<<", "<|", "<|im_end", "|>", "<|im_end|", "<|IM_END|>", "<| im_end |>",
    "<|im_end|>", "x<|im_end|>y", " <|im_end|> ", "<|im_user|>user<|im_middle|>Who are you?<|im_end|>", "<think></think>", "<think>a</think>b",
    "</think>", "<<think>>", "<think", "[EOS]", "[BOS]text[EOS]", "[EOT] [UNK] [PAD] [X]", "<|reserved_token_1005|>", "<|reserved_token_1002|>",
    "<|reserved_token_9|>", "<|media_pad|><|media_pad|>", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
    "a  <|im_end|>", "a\n<|im_end|>\nb", "it's<|im_end|>'s", "老<|im_end|>鹰", "🦅</think>🦅",
    "aaaaaaaaaaaaaaaaaaaa", "abababababababab", "thethethethethe", "T" * 40, "lowercase" * 30, "é" * 70, "=" * 100, "-" * 200 + "\n",
    " " * 50, " " * 50 + "x", "\n" * 50, " \n" * 20, "a " * 40, "ab\tcd\t" * 10, "鹰" * 60, "x" * 96, "x" * 97, "eagle" * 19 + "e", "eagle" * 19 + "ea",
]

# Texts too long to write down: (unit, count) repeated and joined. Their ids are given as a digest.
LONG = [
    [[" ", 24_999], ["x", 1]], [[" ", 25_000], ["x", 1]], [[" ", 25_001], ["x", 1]], [[" ", 60_000]],
    [["a", 25_000]], [["a", 25_001]], [["A", 25_001], [" b", 3]], [["é", 25_003]], [["鹰", 51_000]], [["가", 26_000]],
    [["1", 25_001]], [["=", 26_000]], [["\n", 26_000]], [["a\u0301", 13_000]], [["x", 24_995], ["<|im_end|>", 1]],
    [["The eagle left its eyrie. ", 15_386]], [["word ", 79_999], ["<|im_end|>", 2]], [["ab ", 133_334], ["xyz", 5]],
    [["\x1f", 25_005], ["x", 2]], [["\u2003", 25_002], ["ſ", 1]],
]


AROUND = "a*a *\u9e70*1*'s*\n*"  # * is the character


def gpt2_byte_order():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return printable + [b for b in range(256) if b not in printable]


def train():
    ranks = {bytes([b]): i for i, b in enumerate(gpt2_byte_order())}
    pieces = collections.Counter(regex.findall(PATTERN, CORPUS, flags=regex.V1))
    words = {piece: [bytes([b]) for b in piece.encode()] for piece in pieces}
    while len(ranks) < NUM_TOKENS:
        pairs = collections.Counter()
        for piece, parts in words.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += pieces[piece]
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        ranks[best[0] + best[1]] = len(ranks)
        for piece, parts in words.items():
            merged, i = [], 0
            while i < len(parts):
                if tuple(parts[i:i + 2]) == best:
                    merged.append(best[0] + best[1])
                    i += 2
                else:
                    merged.append(parts[i])
                    i += 1
            words[piece] = merged
    return ranks


def portions(text):
    """Kimi's limits: 400,000 characters at once, 25,000 in a row of one kind (space or not)."""
    for start in range(0, len(text), 400_000):
        part, begin, run, kind = text[start:start + 400_000], 0, 0, None
        for i, char in enumerate(part):
            run = run + 1 if char.isspace() == kind else 1
            kind = char.isspace()
            if run > 25_000:
                yield part[begin:i]
                begin, run = i, 1
        yield part[begin:]


def digest(ids):
    value = 0xCBF29CE484222325
    for i in ids:
        value = ((value ^ i) * 0x100000001B3) % 2**64
    return f"{len(ids)}:{value:016x}"


def random_texts(rng, count):
    assigned = [c for c in map(chr, range(0x20000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    by_category = collections.defaultdict(list)
    for char in assigned:
        by_category[unicodedata.category(char)].append(char)
    categories = sorted(by_category)
    common = list("abcdeXYZ 019.,'\n\r\t") + ["'s", "'LL", "  ", "鹰", "あ", "é", "\u0301", "🦅", "<|im_end|>", "<think>"]
    for _ in range(count):
        text = ""
        for _ in range(rng.randint(1, 40)):
            text += rng.choice(common) if rng.random() < 0.6 else rng.choice(by_category[rng.choice(categories)])
        yield text


def piece_digests():
    """Per 4,096 code points: a digest of the ends of all pieces (in bytes) around each of them."""
    for block in range(0, 0x110000, 0x1000):
        ends = []
        for char in map(chr, range(block, block + 0x1000)):
            if unicodedata.category(char) in ("Cn", "Cs", "Co"):
                continue
            at = 0
            for piece in regex.findall(PATTERN, AROUND.replace("*", char), flags=regex.V1):
                at += len(piece.encode())
                ends.append(at)
        if ends:
            yield {"block": block, "digest": digest(ends)}


def utf8_cases(rng):
    fixed = [b"", b"abc", b"\x80", b"\xff", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
             b"\xe2\x82", b"\xe2\x82x", b"\xf0\x9f\xa6", b"\xf0\x9f\xa6\x85", b"\xf0\x9fx", b"\xf0\x9f\xe2\x82\xac", b"a\xc3", b"\xc3\xa9\xc3",
             b"\xf0\x90\x80", b"\xf8\x88\x80\x80\x80", b"\xe0\xa0", b"\xed\x9f\xbf", b"\xee\x80\x80", b"\xc2\xc2\x80", b"\xf1\x80\xe1\x80\xc2\x62"]
    yield from fixed
    interesting = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF]
    for _ in range(200):
        yield bytes(rng.choice(interesting) for _ in range(rng.randint(1, 9)))


def dump_lines(path, rows):
    path.write_text("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    ranks = train()
    (OUT / "tiktoken.model").write_text(
        "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    added = {str(NUM_TOKENS + slot): {"content": text, "lstrip": False, "normalized": False, "rstrip": False,
                                      "single_word": False, "special": slot not in NOT_SPECIAL}
             for slot, text in SLOTS.items()}
    (OUT / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": added, "bos_token": "[BOS]", "eos_token": "[EOS]"}, indent=1) + "\n")

    controls = {SLOTS.get(i, f"<|reserved_token_{NUM_TOKENS + i}|>"): NUM_TOKENS + i for i in range(256)}
    encoding = tiktoken.Encoding("golden", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=controls)

    def encode(text, allow):
        options = {"allowed_special": "all"} if allow else {"disallowed_special": ()}
        return [i for part in portions(text) for i in encoding.encode(part, **options)]

    rows = [{"text": t, "ids": encode(t, True), "plain_ids": encode(t, False)}
            for t in [*TEXTS, *CORPUS.split("\n"), *random_texts(random.Random(7), 250)]]
    for row in rows:
        if row["plain_ids"] == row["ids"]:
            del row["plain_ids"]
    for recipe in LONG:
        text = "".join(unit * count for unit, count in recipe)
        rows.append({"repeat": recipe, "digest": digest(encode(text, True))})
    dump_lines(OUT / "tokenizer.json", rows)
    assigned = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    runs = []  # [first, last] of assigned code points, so that both sides walk the same ones
    for c in assigned:
        if runs and runs[-1][1] == c - 1:
            runs[-1][1] = c
        else:
            runs.append([c, c])
    (OUT / "pieces.json").write_text(json.dumps(
        {"around": AROUND, "assigned": runs, "blocks": list(piece_digests())}, separators=(",", ":")) + "\n")
    dump_lines(OUT / "utf8.json", [{"hex": b.hex(), "text": b.decode("utf-8", "replace")} for b in utf8_cases(random.Random(8))])


if __name__ == "__main__":
    main()
