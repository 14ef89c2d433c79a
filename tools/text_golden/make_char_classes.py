"""Writes src/tokenizer/char_classes.inc: which classes of Kimi's pattern each code point is in, asked of tiktoken.

tiktoken gives the tokens of what a pattern matches and drops the rest, so a pattern that is one class and a vocabulary
of the 256 bytes list the class's characters. That way the table has the Unicode version that tiktoken was built with.

    pip install tiktoken==0.14.0 && python tools/text_golden/make_char_classes.py
"""
import pathlib

import tiktoken

OUT = pathlib.Path(__file__).resolve().parents[2] / "src/tokenizer/char_classes.inc"
CLASSES = {  # bit (CharBits in char_classes.h): the class
    1: r"\p{Han}",
    2: r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
    4: r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
    8: r"\p{L}",
    16: r"\p{N}",
    32: r"\s",
    64: r"[\r\n]",
}
PER_LINE = 8


def main():
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    byte_ranks = {bytes([b]): b for b in range(256)}
    bits = [0] * 0x110000
    for bit, pattern in CLASSES.items():
        encoding = tiktoken.Encoding("class", pat_str=pattern, mergeable_ranks=byte_ranks, special_tokens={})
        for begin in range(0, len(characters), 0x1000):
            text = "".join(characters[begin:begin + 0x1000])
            for char in bytes(encoding.encode_ordinary(text)).decode():
                bits[ord(char)] |= bit
    runs = [(c, b) for c, b in enumerate(bits) if c == 0 or bits[c - 1] != b]
    words = [f"0x{c << 8 | b:07X}," for c, b in runs]
    lines = [" ".join(words[i:i + PER_LINE]) for i in range(0, len(words), PER_LINE)]
    OUT.write_text("// Written by tools/text_golden/make_char_classes.py.\n" + "\n".join(lines) + "\n")
    print(f"{len(runs)} runs")


main()
