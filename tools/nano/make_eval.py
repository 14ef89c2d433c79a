"""Writes data/eval and data/prompts: held-out problems, tool requests, talk, and the benchmark's mix.

Problems and tool requests come from the held-out side of the split (data_math.held_out,
data_tools.held_out); talk is split by seed.
"""
import json
import os
import random

import tokenizer
from chat import render
from data import shots
from data_math import make_problem
from data_talk import MIDDLES, OPENINGS, Scene, chat_messages, transcript
from data_tools import dialogue

OUT = os.path.join(os.path.dirname(__file__), "../../data")


def write(name, rows):
    path = os.path.join(OUT, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        for r in rows:
            f.write(json.dumps(r, ensure_ascii=False) + "\n")
    print(name, len(rows), os.path.getsize(path))


def problems(rng, n, test):
    seen, rows = set(), []
    while len(rows) < n:
        p = make_problem(rng, test)
        if p.question not in seen:
            seen.add(p.question)
            rows.append({"question": p.question, "answer": p.gsm_answer(), "template": p.kind})
    return rows


def tool_rows(rng, n):
    rows = []
    while len(rows) < n:
        try:
            messages, tools, thinking = dialogue(rng, test=True)
        except LookupError:
            continue
        call = messages[-1]["tool_calls"][0]["function"]
        rows.append({"messages": messages[:-1], "tools": tools, "thinking": thinking,
                     "expected": {"name": call["name"], "arguments": call["arguments"]}})
    return rows


def talk_rows(rng, n):
    return [{"messages": chat_messages(rng)[:-1], "thinking": rng.random() < 0.6} for _ in range(n)]


def strip_reasoning(messages):
    return [{k: v for k, v in m.items() if k != "reasoning_content"} for m in messages]


def mix_prompt(rng, kind):
    """(prompt, output tokens): raw text for the completions endpoint."""
    if kind == "problem":
        k = rng.choice((0, 0, 1, 2, 3, 4))
        head = "".join(t for t, _ in shots(rng, k - 1)[:-1]) + "\n\n" if k else ""
        return head + f"Question: {make_problem(rng, True).question}\nAnswer:", rng.choice((80, 96, 112, 128))
    if kind == "chat_problem":
        m = [{"role": "user", "content": make_problem(rng, True).question}]
        return render(m, None, rng.random() < 0.7, True), rng.choice((96, 128, 160))
    if kind == "tool":
        m, tools, thinking = dialogue(rng, test=True)
        return render(strip_reasoning(m[:-1]), tools, thinking, True), 80
    if kind == "chat_talk":
        m = strip_reasoning(chat_messages(rng)[:-1])
        return render(m, None, rng.random() < 0.6, True), rng.choice((80, 96, 128))
    if kind == "transcript":
        lines = transcript(rng)
        return "".join(t for t, _ in lines[:-1]), rng.choice((80, 120, 160))
    s = Scene(rng)
    sentences = [s.say(*OPENINGS)] + s.some(rng.randint(2, 10), MIDDLES)
    return " ".join(sentences), rng.choice((120, 160, 200))


def mix_rows(rng, enc, n):
    kinds = ["problem"] * 48 + ["chat_problem"] * 16 + ["tool"] * 8 + ["chat_talk"] * 12 + ["transcript"] * 8 + ["prose"] * 8
    rows = []
    while len(rows) < n:
        try:
            prompt, out = mix_prompt(rng, rng.choice(kinds))
        except LookupError:
            continue
        size = len(enc.encode(prompt, allowed_special="all"))
        if 20 <= size <= 640:
            rows.append({"prompt": prompt, "output_tokens": out})
    return rows


def main():
    enc = tokenizer.load()
    write("eval/gsm8k-nano-test.jsonl", problems(random.Random(9001), 1000, True))
    write("eval/gsm8k-nano-train.jsonl", problems(random.Random(9002), 50, False))
    write("eval/tools-nano.jsonl", tool_rows(random.Random(9003), 160))
    write("eval/talk-nano.jsonl", talk_rows(random.Random(9004), 160))
    write("prompts/nano-mix.jsonl", mix_rows(random.Random(9005), enc, 768))
    golden = mix_rows(random.Random(9006), enc, 128)
    write("prompts/golden-candidates.jsonl", golden)


if __name__ == "__main__":
    main()
