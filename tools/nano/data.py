"""The training mix: documents as (text, produced) parts, tokens with loss weights, packed rows.

A row holds whole documents one after the other and starts with the first token of a document, so
position 0 is always a beginning. Text the model does not have to produce (questions, tool results)
counts with a small weight only, and the emptied reasoning of earlier turns not at all.
"""
import random

import numpy as np

from chat import segments
from data_math import held_out, make_problem, plain_step
from data_talk import THINK as TALK_THINK
from data_talk import chat_messages, prose, transcript, turn
from data_tools import SYSTEM, dialogue

GIVEN_WEIGHT = 0.15
ASK = ["", "", "", "Solve this problem: ", "Please help me with this: ", "Here is a problem. ", "Question: "]
PLAN = ["Let me work through it step by step.", "I go step by step.", "First I look at the numbers.", "Let me see.", "We need to find the answer in small steps.",
        "I write down what is given and compute.", "This is a word problem."]
DONE = ["That is the answer.", "So the answer is {n}.", "The result is {n}.", "Therefore it is {n}.", "Done: {n}.", "I am confident that it is {n}."]
FINAL = ["The answer is {n}.", "It is {n}.", "The result is {n}.", "In short: {n}.", "{last}", "{last}"]


def shots(rng, k):
    """k solved problems in lm_eval's form, then one more; the document ends with [EOS]."""
    parts = []
    for i in range(k + 1):
        p = make_problem(rng)
        parts.append((("\n\n" if i else "") + f"Question: {p.question}\nAnswer:", False))
        parts.append((f" {p.gsm_answer()}", True))
    return parts + [("[EOS]", True)]


def math_answer(rng, p, thinking):
    """(reasoning, content) for a problem."""
    steps = [plain_step(s) for s in p.steps]
    if thinking:
        reason = " ".join([rng.choice(PLAN), *steps, rng.choice(DONE).format(n=p.answer)])
        last = steps[-1].rsplit(" = ", 1)
        final = rng.choice(FINAL).format(n=p.answer, last=steps[-1] if len(last) == 2 else "")
        return reason, f"{final}\n#### {p.answer}"
    return "", "\n".join(steps) + f"\n#### {p.answer}"


def math_chat(rng):
    thinking = rng.random() < 0.7
    messages = []
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": rng.choice(SYSTEM)})
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.15:
            u, a, t = turn(rng)
            messages += [{"role": "user", "content": u},
                         {"role": "assistant", "reasoning_content": rng.choice(TALK_THINK).format(t=t), "content": a}]
        p = make_problem(rng)
        reason, content = math_answer(rng, p, thinking)
        messages += [{"role": "user", "content": rng.choice(ASK) + p.question},
                     {"role": "assistant", "reasoning_content": reason, "content": content}]
    return segments(messages, None, thinking, train=True)


def talk_chat(rng):
    messages = chat_messages(rng)
    if rng.random() < 0.25:
        messages.insert(0, {"role": "system", "content": rng.choice(SYSTEM)})
    return segments(messages, None, rng.random() < 0.6, train=True)


def tool_chat(rng):
    messages, tools, thinking = dialogue(rng, chat=lambda r: turn(r)[:2])
    return segments(messages, tools, thinking, train=True)


def document(rng, long=False):
    """One document as [(text, produced)]."""
    x = rng.random()
    if long and x < 0.6:
        return shots(rng, rng.randint(8, 28))
    if x < 0.30:
        return shots(rng, rng.choice((0, 0, 0, 1, 2, 3, 4, 5, 5)))
    if x < 0.55:
        return math_chat(rng)
    if x < 0.75:
        return tool_chat(rng)
    if x < 0.90:
        return talk_chat(rng)
    if x < 0.94:
        return transcript(rng) + [("[EOS]", True)]
    return [(prose(rng), True), ("[EOS]", True)]


def encode(enc, parts):
    ids, weights = [], []
    for text, produced in parts:
        t = enc.encode(text, allowed_special="all")
        ids += t
        weights += [{True: 1.0, False: GIVEN_WEIGHT, None: 0.0}[produced]] * len(t)
    return ids, weights


class Packer:
    """Endless rows of `length` tokens from one seed."""

    def __init__(self, enc, seed, length):
        self.enc, self.rng, self.length = enc, random.Random(seed), length
        self.pad = enc.encode("[PAD]", allowed_special="all")[0]
        self.waiting = []

    def row(self):
        ids = np.full(self.length, self.pad, np.int16)
        w = np.zeros(self.length, np.float16)
        at = 0
        misses = 0
        while misses < 6:
            fits = [i for i, d in enumerate(self.waiting) if at + len(d[0]) <= self.length]
            if fits:
                d, dw = self.waiting.pop(fits[0])
            else:
                d, dw = encode(self.enc, document(self.rng, self.length > 2000))
                if at + len(d) > self.length:
                    misses += 1
                    if len(d) <= self.length and len(self.waiting) < 12:
                        self.waiting.append((d, dw))
                    continue
            ids[at:at + len(d)] = d
            w[at:at + len(d)] = dw
            at += len(d)
        return ids, w

    def rows(self, n):
        got = [self.row() for _ in range(n)]
        return np.stack([g[0] for g in got]), np.stack([g[1] for g in got])


def check_split():
    """The training side never holds a problem of the held-out side."""
    rng = random.Random(0)
    assert not any(held_out(make_problem(rng).question) for _ in range(2000))
    assert all(held_out(make_problem(rng, test=True).question) for _ in range(200))


if __name__ == "__main__":
    check_split()
