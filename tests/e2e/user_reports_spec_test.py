#!/usr/bin/env python3
"""Users' reports about speculation (section C) that need the bundled model, its trained draft or load: a name
begins with the report's number. What a scripted answer can show is in tape_reports_test.py."""

import concurrent.futures
import json
import pathlib
import tempfile
import unittest

import harness
from harness import DRAFT, ROOT, Server, ngram, spec
from tape_assemble import plain
from tape_cases import NAMES, TAPES, checkpoint

BLOCK = 16  # tokens


def prompts(count: int) -> list:
    lines = (ROOT / "data/prompts/nano-mix.jsonl").read_text().splitlines()[: count * 5: 5]
    return [json.loads(line)["prompt"] for line in lines]


def ask(server, bodies: list, path="/v1/completions", at_once=16) -> list:
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda body: server.post(path, body), bodies))


def texts(answers: list) -> list:
    return [(a["choices"][0]["text"], a["choices"][0]["finish_reason"]) for a in answers]


@harness.needs_models
class TrainedDraft(unittest.TestCase):
    maxDiff = None

    def numbers(self, draft_args: list, bodies: list, path: str) -> tuple:
        """Answers the first and the second time, without what a cache may change; cached tokens; accepted drafts."""
        with Server("--enable-prompt-tokens-details", *draft_args) as server:
            answers = [ask(server, bodies, path) for _ in range(2)]
            accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total")
        cached = [(a["usage"].pop("prompt_tokens_details", None) or {}).get("cached_tokens", 0)
                  for a in answers[1]]
        for a in answers[0]:
            a["usage"].pop("prompt_tokens_details", None)
        return [[plain(a) for a in some] for some in answers], cached, accepted

    def assert_close(self, one, other, where):
        if isinstance(one, float):
            self.assertAlmostEqual(one, other, delta=1e-3, msg=where)
        elif isinstance(one, dict):
            self.assertEqual(one.keys(), other.keys(), where)
            for key in one:
                self.assert_close(one[key], other[key], f"{where} {key}")
        elif isinstance(one, list):
            self.assertEqual(len(one), len(other), where)
            for a, b in zip(one, other):
                self.assert_close(a, b, where)
        else:
            self.assertEqual(one, other, where)

    def check_same(self, bodies, path):
        (expected, _), plain_cached, _ = self.numbers([], bodies, path)
        self.assertIn("stop", {answer["finish_reason"] for answer in expected})
        values = [value for answer in expected for value in self.logprobs_of(answer)]
        self.assertGreater(sum(value < -1e-3 for value in values), len(values) // 20)
        for k in (1, 6):
            both, cached, accepted = self.numbers(spec(DRAFT, k), bodies, path)
            self.assertGreater(accepted, 0, k)
            for answers in both:
                for i, (got, wanted) in enumerate(zip(answers, expected)):
                    self.assert_close(got, wanted, f"{k} drafts, request {i}")
            for one, other in zip(cached, plain_cached):
                self.assertLessEqual(abs(one - other), BLOCK, k)

    def logprobs_of(self, answer) -> list:
        lists = answer["logprobs"]
        if "token_logprobs" in lists:
            return lists["token_logprobs"]
        return [entry["logprob"] for entry in lists["content"]]

    def test_c35_c36_c31_c33_numbers_of_completions_are_those_without_a_draft(self):
        bodies = []
        for i, prompt in enumerate(prompts(12)):
            body = {"prompt": prompt, "max_tokens": 40, "temperature": 0, "logprobs": 5, "return_token_ids": True}
            if i % 4 == 1:
                body["stop"] = [" is", "\n", "="]
            if i % 4 == 2:
                body.update(min_tokens=30, max_tokens=60)
            if i % 4 == 3:
                body.update(temperature=1.0, seed=i, top_p=0.9)
            bodies.append(body)
        self.check_same(bodies, "/v1/completions")

    def test_c35_c32_numbers_of_chats_are_those_without_a_draft(self):
        bodies = [{"messages": [{"role": "user", "content": text}], "max_tokens": 120, "temperature": 0,
                   "logprobs": True, "top_logprobs": 3, "return_token_ids": True, **more}
                  for text in ("What is 17 + 25?", "Tom has 3 bags of 12 apples. How many apples is that?")
                  for more in ({}, {"stop": ["="]}, {"min_tokens": 100}, {"temperature": 0.8, "seed": 5})]
        self.check_same(bodies, "/v1/chat/completions")

    def test_c44_a_full_cache_preempts_and_nothing_crashes(self):
        bodies = [{"prompt": prompt, "max_tokens": 120, "temperature": 0, "ignore_eos": True} for prompt in prompts(16)]
        with Server() as server:
            expected = texts(ask(server, bodies))
        with Server(*spec(DRAFT), "--num-gpu-blocks-override", "64", "--max-model-len", "1024") as server:
            self.assertEqual(texts(ask(server, bodies)), expected)
            self.assertGreater(server.metric("vllm:num_preemptions_total"), 0)

    def test_c45_rejection_sampling_with_default_flags(self):
        seeded = [{"prompt": prompt, "max_tokens": 30, "temperature": 1, "seed": i}
                  for i, prompt in enumerate(prompts(6))]
        free = [{key: value for key, value in body.items() if key != "seed"} for body in seeded]
        with Server() as server:
            expected = texts(ask(server, seeded))
        with Server(*spec(DRAFT, 3)) as server:
            self.assertEqual(texts(ask(server, seeded)), expected)
            for answer in ask(server, free):
                self.assertGreater(answer["usage"]["completion_tokens"], 0)
            self.assertGreater(server.metric("vllm:spec_decode_num_accepted_tokens_total"), 0)

    def test_c47_a_shared_prefix_with_cache_and_draft(self):
        count = 50 if harness.SLOW == 1 else 10
        shared = prompts(1)[0] * 3
        bodies = [{"prompt": shared + prompt, "max_tokens": 16, "temperature": 0} for prompt in prompts(count)]
        expected = None
        for cache in ("--no-enable-prefix-caching", "--enable-prefix-caching"):
            for draft in ([], spec(DRAFT)):
                with self.subTest(cache=cache, draft=bool(draft)), Server(cache, *draft) as server:
                    got = texts(ask(server, bodies))
                    expected = expected or got
                    self.assertEqual(got, expected)
                    hits = server.metric("vllm:prefix_cache_hits_total")
                    (self.assertEqual if "no-" in cache else self.assertGreater)(hits, 0)
        self.assertGreater(len(set(expected)), count // 5)


class ScriptedDraft(unittest.TestCase):
    def test_c49_drafts_never_cost_steps_at_any_concurrency(self):
        """That drafts which size themselves are never 5 % slower is counted in src/sched/draft_sizer_test.cpp and
        measured in docs/benchmarks.md; here is what does not depend on the machine: with a right draft there are
        fewer steps at every concurrency, with a wrong one no more, whoever says how many."""
        counts = (1, 4, 16, 32)
        prompt = "<|im_user|>" + NAMES["c35_logprobs"]
        with tempfile.TemporaryDirectory(prefix="eyrie-tapes-") as folder:
            paths = checkpoint.write(pathlib.Path(folder), TAPES)
            steps, said = {}, set()
            for draft, flags in (("none", []), ("good", spec(paths["good"], 4)), ("bad", spec(paths["bad"], 4)),
                                 ("sized good", spec(paths["good"], 4, adaptive=True)),
                                 ("sized bad", spec(paths["bad"], 4, adaptive=True)), ("n-gram", ngram(4))):
                with Server("--max-model-len", "2048", "--num-gpu-blocks-override", "512", *flags,
                            model=paths["target"]) as server:
                    for count in counts:
                        # One request, so that no client decides how many are in a step; on a machine with other
                        # work its choices may still begin apart, so a number that is too large is counted again.
                        for _ in range(3):
                            before = server.metric("vllm:iteration_tokens_total_count")
                            answer = server.post("/v1/completions", {
                                "prompt": [prompt] * count, "max_tokens": 24, "temperature": 0, "ignore_eos": True})
                            taken = server.metric("vllm:iteration_tokens_total_count") - before
                            steps[draft, count] = min(taken, steps.get((draft, count), taken))
                            said |= {choice["text"] for choice in answer["choices"]}
                            if draft != "none" and taken <= steps["none", count] + 1:
                                break
        self.assertEqual(len(said), 1)
        for count in counts:
            self.assertLess(steps["good", count], 0.5 * steps["none", count], count)
            for draft in ("bad", "sized good", "sized bad", "n-gram"):
                self.assertLessEqual(steps[draft, count], steps["none", count] + 1, (draft, count))


if __name__ == "__main__":
    unittest.main()
