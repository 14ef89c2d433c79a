"""What users of other engines reported about the API, tokens and text, tried on the bundled pair. Each name holds the
case's number in the project's list of reports (section E; those that need no model are in src/server/reports_test.cpp)."""

import concurrent.futures
import random
import unittest

import harness
from harness import DRAFT, Server, spec

QUESTION = "Question: Tom has 3 apples and buys 4 more. How many apples does Tom have?\nAnswer:"


@harness.needs_models
class UserReportsApiTest(unittest.TestCase):
    def test_E61_a_seed_gives_the_same_texts_under_load(self):
        with Server("--served-model-name", "nano", "--max-num-seqs", "8", *spec(DRAFT, 4)) as server:
            ask = {"model": "nano", "seed": 7, "temperature": 1, "n": 3, "max_tokens": 60,
                   "messages": [{"role": "user", "content": "Tell me about yourself."}]}

            def texts(_=None):
                choices = server.post("/v1/chat/completions", ask)["choices"]
                return [(c["message"]["reasoning"], c["message"]["content"]) for c in choices]

            alone = texts()
            self.assertEqual(len(set(alone)), 3, "the choices must differ from each other")
            with concurrent.futures.ThreadPoolExecutor(12) as pool:
                noise = [pool.submit(server.post, "/v1/completions", {
                    "model": "nano", "prompt": f"{QUESTION} {i}", "max_tokens": 80, "temperature": 1}) for i in range(8)]
                for again in pool.map(texts, range(3)):
                    self.assertEqual(again, alone)
                for one in noise:
                    one.result()

    def test_E65_a_hundred_turns_and_requests_of_every_length(self):
        with Server("--served-model-name", "nano", "--max-model-len", "2048", *spec(DRAFT, 4)) as server:
            messages = []
            for turn in range(2):
                messages.append({"role": "user", "content": f"Tom has {turn + 3} apples and buys 4 more. How many?"})
                answer = server.post("/v1/chat/completions", {"model": "nano", "messages": messages, "temperature": 0,
                                                              "max_tokens": 200})
                messages.append(answer["choices"][0]["message"])
            dice = random.Random(65)
            for _ in range(100):
                length = dice.randrange(1, 400)
                answer = server.post("/v1/completions", {
                    "model": "nano", "prompt": [dice.randrange(0, 3000) for _ in range(length)], "temperature": 0,
                    "max_tokens": dice.randrange(1, 12), "ignore_eos": True})
                self.assertEqual(answer["usage"]["prompt_tokens"], length)
            self.assertEqual(server.metric("vllm:num_requests_running"), 0)

    def test_E66_prompts_around_a_chunks_length_answer_as_unchunked(self):
        chunk = 64
        dice = random.Random(66)
        prompts = [[dice.randrange(0, 3000) for _ in range(length)]
                   for length in (chunk - 1, chunk, chunk + 1, 2 * chunk + 1)]

        def texts(*flags):
            with Server("--served-model-name", "nano", "--no-enable-prefix-caching", *flags) as server:
                return [server.post("/v1/completions", {
                    "model": "nano", "prompt": prompt, "temperature": 0, "max_tokens": 24, "ignore_eos": True,
                    "return_token_ids": True})["choices"][0]["token_ids"] for prompt in prompts]

        whole = texts("--max-num-batched-tokens", "2048")
        self.assertEqual(texts("--max-num-batched-tokens", str(chunk)), whole)
        self.assertEqual(texts("--max-num-batched-tokens", str(chunk), *spec(DRAFT, 4)), whole)


if __name__ == "__main__":
    unittest.main()
