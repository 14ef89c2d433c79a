"""The official openai client against our server: completions, chat and responses; sync and async, streamed and not, tool
loops, logprobs."""

import asyncio
import json
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

TASKS = [json.loads(line) for line in (ROOT / "data/eval/tools-nano.jsonl").open()]
QUESTION = "Question: Tom has 3 apples and buys 4 more. How many apples does Tom have?\nAnswer:"


def plain(response):
    """A response without what differs from one to the next."""
    data = response.to_dict()
    for name in ("id", "created_at"):
        data.pop(name)
    for item in data["output"]:
        item.pop("id")
        item.pop("parsed_arguments", None)  # made up by the client
    return data


def response_tools(task):
    return [{"type": "function", **tool["function"]} for tool in task["tools"]]


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

    def test_chat_logprobs_streamed(self):
        ask = dict(model="nano", messages=[{"role": "user", "content": "Hello!"}], max_tokens=40, temperature=0,
                   logprobs=True, top_logprobs=3)
        whole = self.client.chat.completions.create(**ask)
        streamed, usage = [], None
        for chunk in self.client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                streamed += choice.logprobs.content if choice.logprobs else []
        self.assertEqual(streamed, whole.choices[0].logprobs.content)
        self.assertEqual(usage.completion_tokens, len(streamed))
        self.assertEqual(usage.completion_tokens_details, whole.usage.completion_tokens_details)
        self.assertGreater(usage.completion_tokens_details.reasoning_tokens, 0)

    def test_tools_loop(self):
        right = 0
        for task in TASKS[:12]:
            ask = dict(model="nano", tools=task["tools"], max_tokens=400, temperature=0)
            choice = self.client.chat.completions.create(**ask, messages=task["messages"]).choices[0]
            with self.client.chat.completions.stream(**ask, messages=task["messages"]) as stream:
                final = stream.get_final_completion().choices[0]
            self.assertEqual(final.finish_reason, choice.finish_reason)
            calls = choice.message.tool_calls or []
            show = lambda message: [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or []]
            self.assertEqual(show(final.message), show(choice.message))
            if choice.finish_reason != "tool_calls":
                continue
            right += [{"name": c.function.name, "arguments": json.loads(c.function.arguments)}
                      for c in calls] == [task["expected"]]
            messages = [*task["messages"], choice.message,
                        *({"role": "tool", "tool_call_id": call.id, "content": "done"} for call in calls)]
            after = self.client.chat.completions.create(**ask, messages=messages).choices[0]
            self.assertIn(after.finish_reason, ("stop", "tool_calls"))
        self.assertGreaterEqual(right, 9, "calls of the bundled model that were as expected, of 12")

    def test_response_streamed_and_not(self):
        ask = dict(model="nano", input="Hello! How are you?", instructions="Be brief.", max_output_tokens=300,
                   temperature=0, include=["message.output_text.logprobs"], top_logprobs=2)
        whole = self.client.responses.create(**ask)
        self.assertEqual([item.type for item in whole.output], ["reasoning", "message"])
        self.assertEqual(whole.status, "completed")
        self.assertTrue(whole.output_text)
        logprobs = whole.output[1].content[0].logprobs
        self.assertEqual("".join(entry.token for entry in logprobs), whole.output_text)
        text, numbers, last = "", [], None
        for event in self.client.responses.create(**ask, stream=True):
            numbers.append(event.sequence_number)
            last = event
            if event.type == "response.output_text.delta":
                text += event.delta
        self.assertEqual(text, whole.output_text)
        self.assertEqual(numbers, list(range(len(numbers))))
        self.assertEqual(last.type, "response.completed")
        self.assertEqual(plain(last.response), plain(whole))
        with self.client.responses.stream(**ask) as stream:
            self.assertEqual(stream.get_final_response().output_text, text)
        short = self.client.responses.create(**{**ask, "max_output_tokens": 4})
        self.assertEqual((short.status, short.incomplete_details.reason), ("incomplete", "max_output_tokens"))

    def test_responses_are_stored(self):
        first = self.client.responses.create(model="nano", input="Hello!", temperature=0, max_output_tokens=200)
        self.assertEqual(self.client.responses.retrieve(first.id).to_dict(), first.to_dict())
        second = self.client.responses.create(model="nano", input="And now?", previous_response_id=first.id,
                                              temperature=0, max_output_tokens=50)
        by_hand = self.client.responses.create(
            model="nano", temperature=0, max_output_tokens=50,
            input=[{"role": "user", "content": "Hello!"}, *first.output, {"role": "user", "content": "And now?"}])
        self.assertEqual(second.usage.input_tokens, by_hand.usage.input_tokens)
        self.assertEqual(second.output_text, by_hand.output_text)
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.create(model="nano", input="x", previous_response_id=first.id)

    def test_responses_tools_loop(self):
        right = 0
        for task in TASKS[:12]:
            ask = dict(model="nano", tools=response_tools(task), max_output_tokens=400, temperature=0)
            answer = self.client.responses.create(**ask, input=task["messages"])
            with self.client.responses.stream(**ask, input=task["messages"]) as stream:
                self.assertEqual(plain(stream.get_final_response())["output"], plain(answer)["output"])
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                continue
            right += [{"name": c.name, "arguments": json.loads(c.arguments)} for c in calls] == [task["expected"]]
            results = [{"type": "function_call_output", "call_id": call.call_id, "output": "done"} for call in calls]
            by_hand = self.client.responses.create(**ask, input=[*task["messages"], *answer.output, *results])
            stored = self.client.responses.create(**ask, input=results, previous_response_id=answer.id)
            self.assertEqual(by_hand.status, "completed")
            self.assertEqual(plain(by_hand)["output"], plain(stored)["output"])
        self.assertGreaterEqual(right, 9, "calls of the bundled model that were as expected, of 12")

    def test_async_streams(self):
        async def one(client, i):
            text = ""
            async for chunk in await client.chat.completions.create(
                    model="nano", messages=[{"role": "user", "content": f"Hi {i}"}], max_tokens=20, stream=True):
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
            final = None
            async for event in await client.responses.create(model="nano", input=f"Hi {i}", max_output_tokens=20,
                                                             stream=True):
                final = event
            return final.type

        async def ask():
            async with openai.AsyncOpenAI(base_url=self.url, api_key="secret") as client:
                return await asyncio.gather(*(one(client, i) for i in range(8)))
        self.assertLessEqual(set(asyncio.run(ask())), {"response.completed", "response.incomplete"})

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
