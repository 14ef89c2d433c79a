"""The official anthropic client against our /v1/messages: text, thoughts, tools, streamed and not."""

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
    import anthropic
except ImportError:
    why = "is not in this environment" if STAMP.exists() else "could not be installed: no package index was reached"
    print(f"skipped: the anthropic package {why} (tools/setup.sh test)")
    sys.exit(77)

HELLO = [{"role": "user", "content": "Hello! How are you?"}]
GREEDY = {"extra_body": {"temperature": 0}}
TASKS = [json.loads(line) for line in (ROOT / "data/eval/tools-nano.jsonl").open()]


def tools_of(task):
    return [{"name": tool["function"]["name"], "description": tool["function"].get("description", ""),
             "input_schema": tool["function"]["parameters"]} for tool in task["tools"]]


def plain(message):
    """A message without what differs from one to the next."""
    data = message.to_dict()
    data.pop("id")
    for block in data["content"]:
        block.pop("signature", None)
    return data


@harness.needs_models
class AnthropicTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "nano", "--api-key", "secret", "--max-model-len", "4096", *spec(DRAFT, 4))
        cls.url = f"http://127.0.0.1:{cls.server.port}"
        cls.client = anthropic.Anthropic(base_url=cls.url, api_key="secret")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_message_streamed_and_not(self):
        ask = dict(model="nano", max_tokens=300, messages=HELLO, system="Be brief.", **GREEDY)
        whole = self.client.messages.create(**ask)
        self.assertEqual([block.type for block in whole.content], ["thinking", "text"])
        self.assertEqual(whole.stop_reason, "end_turn")
        with self.client.messages.stream(**ask) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[1].text)
        self.assertEqual(plain(final)["content"], plain(whole)["content"])
        self.assertEqual((final.stop_reason, final.usage.output_tokens), (whole.stop_reason, whole.usage.output_tokens))
        self.assertEqual(final.usage.input_tokens, whole.usage.input_tokens)
        events = [event.type for event in self.client.messages.create(**ask, stream=True)]
        self.assertEqual(events[0], "message_start")
        self.assertEqual(events[-2:], ["message_delta", "message_stop"])

    def test_thinking_off_stops_and_lengths(self):
        ask = dict(model="nano", max_tokens=300, messages=HELLO, thinking={"type": "disabled"}, **GREEDY)
        whole = self.client.messages.create(**ask)
        self.assertEqual([block.type for block in whole.content], ["text"])
        word = whole.content[0].text.split()[3]
        stopped = self.client.messages.create(**ask, stop_sequences=[word])
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", word))
        self.assertEqual(stopped.content[0].text, whole.content[0].text.split(word)[0])
        short = self.client.messages.create(**{**ask, "max_tokens": 4})
        self.assertEqual((short.stop_reason, short.usage.output_tokens), ("max_tokens", 4))

    def test_an_answer_that_is_begun_is_continued(self):
        ask = dict(model="nano", max_tokens=100, thinking={"type": "disabled"}, **GREEDY)
        whole = self.client.messages.create(**ask, messages=HELLO).content[0].text
        begun = " ".join(whole.split(" ")[:4])
        rest = self.client.messages.create(**ask, messages=[*HELLO, {"role": "assistant", "content": begun}])
        self.assertEqual(begun + rest.content[0].text, whole)

    def test_tools_loop(self):
        right = 0
        for task in TASKS[:12]:
            system = "".join(m["content"] for m in task["messages"] if m["role"] == "system")
            messages = [m for m in task["messages"] if m["role"] != "system"]
            ask = dict(model="nano", max_tokens=400, tools=tools_of(task), tool_choice={"type": "auto"}, **GREEDY)
            if system:
                ask["system"] = system
            answer = self.client.messages.create(**ask, messages=messages)
            with self.client.messages.stream(**ask, messages=messages) as stream:
                self.assertEqual(plain(stream.get_final_message())["content"], plain(answer)["content"])
            calls = [block for block in answer.content if block.type == "tool_use"]
            if answer.stop_reason != "tool_use":
                continue
            right += [{"name": c.name, "arguments": c.input} for c in calls] == [task["expected"]]
            messages = [*messages, {"role": "assistant", "content": answer.content},
                        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "done"}
                                                     for call in calls]}]
            after = self.client.messages.create(**ask, messages=messages)
            self.assertGreater(after.usage.input_tokens, answer.usage.input_tokens)
            self.assertIn(after.stop_reason, ("end_turn", "tool_use"))
        self.assertGreaterEqual(right, 9, "calls of the bundled model that were as expected, of 12")

    def test_count_tokens(self):
        ask = dict(model="nano", messages=HELLO, system="Be brief.", tools=tools_of(TASKS[0]))
        counted = self.client.messages.count_tokens(**ask).input_tokens
        self.assertEqual(counted, self.client.messages.create(**ask, max_tokens=1).usage.input_tokens)

    def test_async_and_errors(self):
        async def ask():
            async with anthropic.AsyncAnthropic(base_url=self.url, auth_token="secret") as client:
                return await asyncio.gather(*(client.messages.create(
                    model="nano", max_tokens=5, messages=[{"role": "user", "content": f"Hi {i}"}]) for i in range(8)))
        self.assertEqual([m.usage.output_tokens for m in asyncio.run(ask())], [5] * 8)
        with self.assertRaises(anthropic.AuthenticationError) as caught:
            anthropic.Anthropic(base_url=self.url, api_key="wrong").messages.create(
                model="nano", max_tokens=5, messages=HELLO)
        self.assertEqual(caught.exception.body["error"]["type"], "authentication_error")
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.create(model="other", max_tokens=5, messages=HELLO)
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.client.messages.create(model="nano", max_tokens=20000, messages=HELLO)
        self.assertIn("maximum context length", caught.exception.body["error"]["message"])
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.client.messages.create(model="nano", max_tokens=5, messages=HELLO, tools=tools_of(TASKS[0]),
                                        tool_choice={"type": "any"})
        self.assertIn("constrained decoding", caught.exception.body["error"]["message"])


if __name__ == "__main__":
    unittest.main()
