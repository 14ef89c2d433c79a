"""Measures the exported checkpoints by decoding held-out data; every number of README.md is from here.

`python evaluate.py [--target DIR] [--draft DIR]` prints one JSON object.
"""
import argparse
import json
import os
import re
import time

import torch

import tokenizer
from chat import render
from decode import generate, speculate
from draft import load_draft
from model import load_released

DATA = os.path.join(os.path.dirname(__file__), "../../data/eval")


def read(name):
    with open(os.path.join(DATA, name), encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def final_number(text):
    found = re.search(r"#### (-?[\d,]+)", text)
    return found and found[1].replace(",", "")


def few_shot(train, problem, k=5):
    head = "".join(f"Question: {t['question']}\nAnswer: {t['answer']}\n\n" for t in train[:k])
    return head + f"Question: {problem['question']}\nAnswer:"


def call_of(text):
    """(name, arguments) of the first call, or None where it is not a valid one."""
    try:
        body = text.split("<|tool_call_begin|>")[1].split("<|tool_call_end|>")[0]
        ident, args = body.split("<|tool_call_argument_begin|>")
        name, _ = ident.split(":")
        return name.removeprefix("functions."), json.loads(args)
    except (IndexError, ValueError):
        return None


class Bench:
    def __init__(self, target, draft, device, limit):
        self.enc = tokenizer.load(target)
        self.model = load_released(target, device)
        self.draft = load_draft(draft, self.model.embed_tokens, device) if draft else None
        self.limit = limit
        special = self.enc._special_tokens
        self.stop = [special["<|im_end|>"], special["[EOS]"]]

    def ids(self, texts):
        return [self.enc.encode(t, allowed_special="all") for t in texts]

    def decode(self, texts, max_new, batch=320):
        out = []
        for i in range(0, len(texts), batch):
            out += generate(self.model, self.ids(texts[i:i + batch]), max_new, self.stop)
        return [self.enc.decode(o) for o in out]

    def acceptance(self, texts, max_new, k=6):
        out, rounds, per_pos = speculate(self.model, self.draft, self.ids(texts), max_new, self.stop, k)
        r = sum(rounds)
        return {"mean_acceptance_length": round(1 + sum(per_pos) / r, 3),
                "per_position": [round(p / r, 3) for p in per_pos], "rounds": r,
                "tokens": sum(map(len, out))}

    def problems(self):
        test, train = read("gsm8k-nano-test.jsonl")[:self.limit], read("gsm8k-nano-train.jsonl")
        gold = [final_number(t["answer"]) for t in test]
        forms = {"plain_5shot": [few_shot(train, t) for t in test],
                 "plain_0shot": [few_shot(train, t, 0) for t in test],
                 "chat_think": [render([{"role": "user", "content": t["question"]}], None, True, True) for t in test],
                 "chat_instant": [render([{"role": "user", "content": t["question"]}], None, False, True) for t in test]}
        result = {}
        for form, prompts in forms.items():
            texts = self.decode(prompts, 320)
            got = [final_number(x.split("Question:")[0]) for x in texts]
            result[form] = round(sum(g == w for g, w in zip(got, gold)) / len(gold), 4)
            if form == "chat_think":
                result["chat_sample"] = texts[0]
                result["chat_reasoned"] = round(sum(not x.startswith("</think>") for x in texts) / len(texts), 4)
            if form == "plain_5shot":
                result["wrong"] = [t["question"] for t, g, w in zip(test, got, gold) if g != w][:12]
        far = test[:100]                              # about 3,300 tokens of context
        texts = self.decode([few_shot(train, t, 30) for t in far], 200, 50)
        result["plain_30shot_of_100"] = sum(final_number(x.split("Question:")[0]) == g for x, g in zip(texts, gold)) / len(far)
        if self.draft:
            result["acceptance_5shot"] = self.acceptance(forms["plain_5shot"], 256)
            result["acceptance_chat"] = self.acceptance(forms["chat_think"], 320)
        return result

    def tools(self):
        rows = read("tools-nano.jsonl")[:self.limit]
        prompts = [render(r["messages"], r["tools"], r["thinking"], True) for r in rows]
        texts = self.decode(prompts, 200)
        good = sum(call_of(t) == (r["expected"]["name"], r["expected"]["arguments"]) for t, r in zip(texts, rows))
        wrong = [(r["messages"][-1]["content"], t) for t, r in zip(texts, rows)
                 if call_of(t) != (r["expected"]["name"], r["expected"]["arguments"])][:6]
        result = {"exact_calls": round(good / len(rows), 4), "of": len(rows), "wrong": wrong}
        if self.draft:
            result["acceptance"] = self.acceptance(prompts, 200)
        return result

    def talk(self):
        rows = read("talk-nano.jsonl")[:self.limit]
        prompts = [render(r["messages"], None, r["thinking"], True) for r in rows]
        result = {"samples": [(r["thinking"], r["messages"][-1]["content"], t) for r, t in zip(rows[:4], self.decode(prompts[:4], 200))]}
        if self.draft:
            result["acceptance"] = self.acceptance(prompts, 200)
        return result


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--target", default=tokenizer.MODEL_DIR)
    ap.add_argument("--draft", default="")
    ap.add_argument("--limit", type=int, default=10**9)
    a = ap.parse_args()
    start = time.time()
    bench = Bench(a.target, a.draft, "cuda" if torch.cuda.is_available() else "cpu", a.limit)
    result = {"problems": bench.problems(), "tools": bench.tools(), "talk": bench.talk()}
    result["seconds"] = round(time.time() - start, 1)
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
