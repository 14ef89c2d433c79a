"""Checks of the generators and the chat layout: `python test_data.py` (needs tiktoken, jinja2, numpy)."""
import json
import random

import data_math
import tokenizer
from chat import render, render_jinja
from data import check_split, document, encode
from data_tools import BY_NAME, dialogue


def test_every_template_is_exact():
    """Each answer is what its last calculation says, and every calculation is a whole number."""
    rng = random.Random(1)
    for fn in data_math.TEMPLATES:
        for _ in range(1500):
            _, steps, answer = fn(data_math.G(rng))
            values = [data_math.value_of(m[1]) for s in steps for m in data_math.CALC.finditer(s)]
            assert values[-1] == answer, (fn.__name__, steps, answer)
    assert len(data_math.TEMPLATES) >= 40


def test_rendering_is_the_templates():
    rng = random.Random(2)
    for _ in range(300):
        messages, tools, thinking = dialogue(rng)
        ours = render(messages, tools, thinking, True)
        assert ours == render_jinja(messages, tools, thinking=thinking), messages


def test_calls_carry_declared_arguments():
    rng = random.Random(3)
    for _ in range(500):
        messages, tools, _ = dialogue(rng)
        declared = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
        for m in messages:
            for c in m.get("tool_calls", ()):
                p = declared[c["function"]["name"]]
                args = c["function"]["arguments"]
                assert set(p["required"]) <= set(args) <= set(p["properties"])
                json.dumps(args)
    assert len(BY_NAME) >= 30


def test_tokens_round_trip_and_weights_match():
    enc, rng = tokenizer.load(), random.Random(4)
    assert enc.n_vocab == 4096
    for _ in range(300):
        parts = document(rng)
        ids, weights = encode(enc, parts)
        assert enc.decode(ids) == "".join(t for t, _ in parts) and len(ids) == len(weights)


if __name__ == "__main__":
    check_split()
    count = 0
    for name, fn in list(globals().items()):
        if name.startswith("test_"):
            fn()
            count += 1
    print(f"{count} passed, 0 failed")
