#!/usr/bin/env python3
"""Writes tests/golden/ngram.json: texts, and what a look-up by definition proposes for them. The longest run of
last tokens (min … max of them) that stands somewhere before; of its places the first; what followed there."""

import json
import pathlib
import random


def look_up(text: list, least: int, most: int, count: int) -> list:
    for length in range(min(most, len(text) - 1), least - 1, -1):
        end = text[-length:]
        for start in range(len(text) - length):
            if text[start:start + length] == end:
                return text[start + length:start + length + count]
    return []


def cases() -> list:
    rng = random.Random(20261130)
    out = []
    for i in range(400):
        size = rng.choice([0, 1, 2, 3, 5, 8, 20, 60, 200])
        letters = rng.choice([1, 2, 3, 5, 30])
        text = [rng.randrange(letters) for _ in range(size)]
        if i % 4 == 3:  # a period, broken here and there
            period = text[:rng.randint(1, 7)] or [4]
            text = (period * 40)[:size]
            for _ in range(rng.randrange(3)):
                if text:
                    text[rng.randrange(len(text))] = 99
        most = rng.choice([1, 2, 3, 5, 8])
        least = rng.randint(1, most)
        count = rng.choice([0, 1, 3, 6, 20])
        out.append({"text": text, "min": least, "max": most, "count": count,
                    "proposed": look_up(text, least, most, count)})
    return out


if __name__ == "__main__":
    path = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/ngram.json"
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases()) + "\n]\n")
