"""Speculation, batching, chunking and prefix caching never change what a user gets: the same bytes
from {no draft, BF16 draft, FP8 draft, drafts as many as pay, drafts looked up in the text} x {alone,
with 15 others} x {chunks of 16, 256, whole prompts} x {prefix cache cold, warm, off}; a seeded sampled
request likewise."""

import concurrent.futures
import json
import unittest

import harness
from harness import DRAFT, ROOT, TARGET, Server, ngram, spec


def prompts(count: int) -> list:
    path = ROOT / "data/prompts/nano-mix.jsonl"
    lines = path.read_text().splitlines()[: count * 7: 7]
    return [json.loads(line)["prompt"] for line in lines]


def requests() -> list:
    """16 bodies: most greedy, two sampled with a seed; the penalties must see drafts as history."""
    bodies = []
    for i, prompt in enumerate(prompts(16)):
        body = {"model": str(TARGET), "prompt": prompt, "max_tokens": 48, "temperature": 0,
                "ignore_eos": i % 2 == 0}
        if i % 5 == 3:
            body.update(temperature=0.9, top_p=0.95, seed=100 + i)
        if i % 5 == 4:
            body.update(temperature=0.7, top_k=20, seed=7, presence_penalty=0.5, frequency_penalty=0.2)
        bodies.append(body)
    return bodies


def answers(server: Server, bodies: list, together: bool) -> list:
    def one(body):
        answer = server.post("/v1/completions", body)
        return answer["choices"][0]["text"], answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]

    if not together:
        return [one(body) for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(one, bodies))


@harness.needs_models
class ExactTest(unittest.TestCase):
    def test_every_combination_gives_the_same_bytes(self):
        # A sanitizer looks for faults, not for bytes: it runs one chunking, with every kind of draft.
        bodies = requests() if harness.SLOW == 1 else requests()[:6]
        alone = bodies if harness.SLOW == 1 else bodies[::5]
        with Server("--no-enable-prefix-caching", "--max-num-batched-tokens", "4096") as server:
            expected = answers(server, bodies, together=False)
        self.assertGreater(len({text for text, _, _ in expected}), len(bodies) * 3 // 4)
        of = {id(body): answer for body, answer in zip(bodies, expected)}
        drafts = {"no draft": [], "BF16 draft": spec(DRAFT),
                  "FP8 draft": spec(harness.quantized("kimi-k2.5-nano-eagle3-fp8")),
                  "adaptive": spec(DRAFT, adaptive=True), "n-gram": ngram(4, prompt_lookup_min=1, prompt_lookup_max=3)}
        for draft, draft_args in drafts.items():
            few = harness.SLOW > 1 or draft in ("adaptive", "n-gram")
            for chunk in ("16",) if few else ("16", "256", "4096"):
                for cache in ("on",) if few else ("on", "off"):
                    args = [*draft_args, "--max-num-batched-tokens", chunk]
                    args += ["--no-enable-prefix-caching"] if cache == "off" else []
                    with self.subTest(draft=draft, chunk=chunk, cache=cache), Server(*args) as server:
                        self.assertEqual(answers(server, bodies, together=True), expected, "with others, cold")
                        self.assertEqual(answers(server, alone, together=False), [of[id(b)] for b in alone],
                                         "alone, warm")
                        hits = server.metric("vllm:prefix_cache_hits_total")
                        (self.assertGreater if cache == "on" else self.assertEqual)(hits, 0)
                        drafts_made = server.metric("vllm:spec_decode_num_drafts_total")
                        if draft not in ("adaptive", "n-gram"):
                            (self.assertEqual if draft == "no draft" else self.assertGreater)(drafts_made, 0)
                        chosen = server.metric("eyrie:draft_lengths_total")
                        (self.assertEqual if draft == "no draft" else self.assertGreater)(chosen, 0)

    def test_an_fp8_cache_is_as_exact(self):
        bodies = requests()[:6]
        with Server("--kv-cache-dtype", "fp8", "--no-enable-prefix-caching") as server:
            expected = answers(server, bodies, together=False)
            labels = server.request("GET", "/metrics")[1]
            self.assertIn('cache_dtype="fp8_e4m3"', labels)
            self.assertIn("1120 bytes a token in fp8_e4m3", server.log())
        self.assertGreater(len({text for text, _, _ in expected}), 4)
        with Server("--kv-cache-dtype", "fp8", *spec(DRAFT), "--max-num-batched-tokens", "16") as server:
            self.assertEqual(answers(server, bodies, together=True), expected)
            self.assertEqual(answers(server, bodies, together=False), expected)
            self.assertGreater(server.metric("vllm:prefix_cache_hits_total"), 0)
            self.assertGreater(server.metric("vllm:spec_decode_num_accepted_tokens_total"), 0)

    @unittest.skipIf(harness.SLOW > 1, "left to the plain build: 32 answers, minutes under a sanitizer")
    def test_preemption_changes_nothing(self):
        bodies = requests()
        with Server() as server:
            expected = answers(server, bodies, together=False)
        with Server(*spec(DRAFT), "--num-gpu-blocks-override", "80", "--max-model-len", "1024") as server:
            self.assertEqual(answers(server, bodies, together=True), expected)
            self.assertGreater(server.metric("vllm:num_preemptions_total"), 0)


if __name__ == "__main__":
    unittest.main()
