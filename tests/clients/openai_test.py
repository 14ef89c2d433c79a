"""The official openai client against our server: chat and completion, streamed and not, logprobs."""

import asyncio
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import harness
from harness import DRAFT, Server, spec

ROOT = harness.ROOT
STAMP = ROOT / "build/venv/.requirements"
try:
    import openai
except ImportError:
    why = "is not in this environment" if STAMP.exists() else "could not be installed: no package index was reached"
    print(f"skipped: the openai package {why} (tools/setup.sh test)")
    sys.exit(77)

QUESTION = "Question: Tom has 3 apples and buys 4 more. How many apples does Tom have?\nAnswer:"


@harness.needs_models
class OpenAiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "nano", "--api-key", "secret", *spec(DRAFT, 4))
        cls.url = f"http://127.0.0.1:{cls.server.port}/v1"
        cls.client = openai.OpenAI(base_url=cls.url, api_key="secret")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["nano"])

    def test_completion_streamed_and_not(self):
        ask = dict(model="nano", prompt=QUESTION, max_tokens=60, temperature=0)
        whole = self.client.completions.create(**ask)
        stream = self.client.completions.create(**ask, stream=True, stream_options={"include_usage": True})
        text, usage = "", None
        for chunk in stream:
            text += "".join(choice.text for choice in chunk.choices)
            usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].text)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_chat_streamed_and_not(self):
        ask = dict(model="nano", messages=[{"role": "user", "content": "Hello! How are you?"}], max_tokens=200,
                   temperature=0)
        whole = self.client.chat.completions.create(**ask).choices[0].message
        content, reasoning = "", ""
        for chunk in self.client.chat.completions.create(**ask, stream=True):
            for choice in chunk.choices:
                content += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        self.assertEqual(content, whole.content or "")
        self.assertEqual(reasoning, getattr(whole, "reasoning_content", None) or "")

    def test_logprobs(self):
        answer = self.client.completions.create(model="nano", prompt=QUESTION, max_tokens=8, temperature=0, logprobs=3)
        logprobs = answer.choices[0].logprobs
        self.assertEqual(len(logprobs.tokens), 8)
        self.assertEqual("".join(logprobs.tokens), answer.choices[0].text)
        for chosen, top in zip(logprobs.token_logprobs, logprobs.top_logprobs):
            self.assertLessEqual(chosen, 0)
            self.assertAlmostEqual(chosen, max(top.values()), places=5)  # greedy picks the likeliest
        chat = self.client.chat.completions.create(model="nano", messages=[{"role": "user", "content": "Hi"}],
                                                   max_tokens=5, temperature=0, logprobs=True, top_logprobs=2)
        content = chat.choices[0].logprobs.content
        self.assertEqual(len(content), chat.usage.completion_tokens)
        self.assertTrue(all(len(token.top_logprobs) == 2 for token in content))

    def test_async_and_errors(self):
        async def ask():
            async with openai.AsyncOpenAI(base_url=self.url, api_key="secret") as client:
                return await asyncio.gather(*(client.completions.create(
                    model="nano", prompt=f"{QUESTION} {i}", max_tokens=5) for i in range(8)))
        self.assertEqual(len(asyncio.run(ask())), 8)
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.url, api_key="wrong").models.list()
        with self.assertRaises(openai.NotFoundError):
            self.client.completions.create(model="other", prompt="x")
        with self.assertRaises(openai.BadRequestError):
            self.client.completions.create(model="nano", prompt="x", max_tokens=10 ** 6)


if __name__ == "__main__":
    unittest.main()
