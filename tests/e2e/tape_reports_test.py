#!/usr/bin/env python3
"""Users' reports about tool calls, thinking and speculation (sections A, B and C), on checkpoints that say
exactly what a report says. Every case runs plain, with a draft that is always right, with one that is always
wrong and with one that is right half the time, at 1 … 8 drafts, streamed and not, and gives the same answer."""

import concurrent.futures
import json
import pathlib
import shutil
import tempfile
import unittest

import harness
from tape_assemble import assemble, plain
from tape_cases import (ARGUMENT, BIG, CALL, CALL_END, CASES, CONTROLS, KINDS, NAMES, SECTION, SECTION_END, TAPES,
                        checkpoint, expected_ids, request_of)

FLAGS = ["--max-model-len", "2048", "--num-gpu-blocks-override", "512"]
DRAFTS = [("good", k) for k in range(1, 9)] + [("bad", k) for k in range(1, 9)] + [("mixed", 3), ("mixed", 8)]
if harness.SLOW > 1:  # a sanitizer looks for faults, not for bytes
    DRAFTS = [("good", 4), ("bad", 4), ("mixed", 8)]
CONFIGS = {"plain": []}


def setUpModule():
    global FOLDER, PATHS, ANSWERS, METRICS  # pylint: disable=global-statement
    FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="eyrie-tapes-"))
    PATHS = checkpoint.write(FOLDER, TAPES)
    CONFIGS.update({f"{name} {k}": harness.spec(PATHS[name], k) for name, k in DRAFTS})
    ANSWERS, METRICS = {}, {}
    for config, flags in CONFIGS.items():
        with harness.Server(*FLAGS, *flags, model=PATHS["target"]) as server:
            for case in CASES:
                if case.startswith("b28") and config not in ("plain", "good 4", "bad 4", "mixed 8"):
                    continue
                path, body = request_of(case)
                ANSWERS[config, case, "whole"] = plain(server.post(path, body))
                chunks = server.stream(path, {**body, "stream_options": {"include_usage": True}})
                ANSWERS[config, case, "stream"] = assemble(chunks)
            METRICS[config] = server.metrics()


def tearDownModule():
    shutil.rmtree(FOLDER)


def total(config: str, name: str) -> float:
    return sum(v for k, v in METRICS[config].items() if k.split("{")[0] == name)


def answer(case: str) -> dict:
    return ANSWERS["plain", case, "whole"]


class Everywhere(unittest.TestCase):
    """What holds for all cases."""

    maxDiff = None

    def close(self, one, other, where):
        """Equal, numbers of logprobs within 1e-3."""
        if isinstance(one, float) and isinstance(other, float):
            self.assertAlmostEqual(one, other, delta=1e-3, msg=where)
        elif isinstance(one, dict) and isinstance(other, dict):
            self.assertEqual(one.keys(), other.keys(), where)
            for key, value in one.items():
                self.close(value, other[key], f"{where} {key}")
        elif isinstance(one, list) and isinstance(other, list):
            self.assertEqual(len(one), len(other), where)
            for i, value in enumerate(one):
                self.close(value, other[i], f"{where} [{i}]")
        else:
            self.assertEqual(one, other, where)

    def test_streamed_and_unstreamed_are_twins_and_no_draft_changes_a_thing(self):
        for (config, case, mode), got in ANSWERS.items():
            with self.subTest(config=config, case=case, mode=mode):
                self.close(got, answer(case), case)

    def test_tapes_are_played_token_for_token(self):
        cut = {name for name, case in CASES.items()
               if {"stop", "max_tokens", "min_tokens", "ignore_eos"} & case.body.keys()}
        for case in CASES:
            ids, expected = answer(case)["token_ids"], expected_ids(case)
            if case in cut:
                self.assertEqual(ids[:len(expected) - 1], expected[:len(ids)][:len(expected) - 1], case)
            else:
                self.assertEqual(ids, expected, case)

    def test_a_right_draft_is_always_accepted_and_a_wrong_one_never(self):
        for name, k in DRAFTS:
            config = f"{name} {k}"
            drafted = total(config, "vllm:spec_decode_num_draft_tokens_total")
            accepted = total(config, "vllm:spec_decode_num_accepted_tokens_total")
            rounds = total(config, "vllm:spec_decode_num_drafts_total")
            with self.subTest(config=config):
                self.assertGreater(rounds, 100)
                if name == "bad":
                    self.assertEqual(accepted, 0)
                elif name == "good":
                    # Where min_tokens forbids the end the draft still expects it; nothing else is refused.
                    self.assertGreater(accepted, 0.97 * drafted)
                else:
                    self.assertGreater(accepted, 0.03 * drafted)
                    self.assertLess(accepted, 0.9 * drafted)

    def test_no_marker_reaches_reasoning_or_the_content_of_a_tool_user(self):
        for case, description in CASES.items():
            got = answer(case)
            self.assertNotIn("<|", got["reasoning"] or "", case)
            self.assertNotIn("think>", got["reasoning"] or "", case)
            if description.tools:
                self.assertNotIn("<|", got["content"] or "", case)

    def test_usage_adds_up(self):
        for (config, case, mode), got in ANSWERS.items():
            usage = got["usage"]
            self.assertEqual(usage["completion_tokens"], len(got["token_ids"]), (config, case, mode))
            self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"], case)


class ToolCalls(unittest.TestCase):
    """Section A."""

    def check(self, case, calls, content=None, reasoning=None, finish="tool_calls"):
        got = answer(case)
        self.assertEqual([(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in got["tool_calls"]],
                         calls, case)
        self.assertEqual(got["content"] or None, content, case)
        self.assertEqual(got["reasoning"], reasoning, case)
        self.assertEqual(got["finish_reason"], finish, case)

    def test_a1_newline_inside_the_call_id(self):
        self.check("a1_newline_in_id", [("functions.newline:0", "newline", '{"a": 1}')])

    def test_a2_arguments_of_20_kb(self):
        got = answer("a2_big_argument")["tool_calls"][0]["function"]["arguments"]
        self.assertEqual(json.loads(got), {"text": BIG})

    def test_a3_text_before_the_section(self):
        self.check("a3_text_before", [("functions.check:0", "check", '{"b": 2}')], "Let me check.")

    def test_a5_leaving_the_section_sends_nothing_again(self):
        self.check("a5_end_of_section", [("functions.leave:0", "leave", '{"c": 3}')])

    def test_a6_words_between_section_and_call(self):
        self.check("a6_spurious_words", [("functions.words:0", "words", '{"d": 4}')])

    def test_a8_text_after_the_section(self):
        self.check("a8_text_after", [("functions.after:0", "after", '{"e": 5}')], "Before. Done.")

    def test_a9_id_without_functions(self):
        self.check("a9_bare_id", [("functions.search:2", "search", '{"f": 6}')])

    def test_a12_tool_without_parameters(self):
        self.check("a12_no_parameters", [("functions.now:0", "now", "{ }")])
        self.check("a12_no_arguments", [("functions.today:0", "today", "{}")])

    def test_a18_section_in_the_thought(self):
        self.check("a18_no_end_of_thought", [("functions.look:0", "look", '{"g": 7}')], None, "I should look.")

    def test_several_calls_and_calls_without_a_section(self):
        self.check("two_calls", [("functions.first:0", "first", '{"h": [8]}'),
                                 ("functions.second:1", "second", '{"i": {"j": 9}}')], "Two things:", "Both at once")
        self.check("call_without_section", [("functions.alone:0", "alone", '{"k": 10}')], " and text", "Only a call")

    def test_answers_that_end_inside_a_call(self):
        self.check("cut_in_arguments", [("functions.cut:0", "cut", '{"lm": [1, 22, 333]}')], finish="length")
        self.check("cut_in_id", [], "Then ", finish="length")
        self.check("stop_in_arguments", [("functions.halt:0", "halt", '{"nn": 1, ')], finish="stop")

    def test_calls_nobody_asked_for(self):
        call = (f'{SECTION}{CALL}functions.unasked:0{ARGUMENT}{{"o": 11}}{CALL_END}{SECTION_END}')
        self.check("no_tools_offered", [], f"See: {call} bye", "Nobody asked", finish="stop")
        self.check("tools_forbidden", [], "Well,  so be it", "Not allowed", finish="stop")


class Thinking(unittest.TestCase):
    """Section B."""

    def test_b19_thoughts_are_parsed_without_a_flag(self):
        got = answer("b19_thought")
        self.assertEqual(got["reasoning"], "A thought of some words.")
        self.assertEqual(got["content"], "The answer is forty-two.")
        self.assertEqual(answer("b19_thinking_off")["reasoning"], None)
        self.assertEqual(answer("b19_thinking_off")["content"], "Straight to the point.")

    def test_b19_flags_say_the_same_or_switch_off(self):
        given = ["--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2", "--reasoning-parser", "kimi_k2"]
        with harness.Server(*FLAGS, *given, model=PATHS["target"]) as server:
            for case in ("b19_thought", "two_calls", "a18_no_end_of_thought"):
                path, body = request_of(case)
                self.assertEqual(plain(server.post(path, body)), answer(case))
        with harness.Server(*FLAGS, "--tool-call-parser", "kimi_k2", model=PATHS["target"]) as server:
            path, body = request_of("two_calls")
            self.assertEqual(plain(server.post(path, body)), answer("two_calls"))
        with harness.Server(*FLAGS, "--reasoning-parser", "none", model=PATHS["target"]) as server:
            path, body = request_of("b19_thought")
            got = plain(server.post(path, body))
            self.assertEqual((got["reasoning"], got["content"]),
                             (None, "A thought of some words.</think>The answer is forty-two."))

    def test_b20_kimi_k2_and_kimi_k25_are_read_alike(self):
        with harness.Server(*FLAGS, model=PATHS["k2"]) as server:
            for case in ("b19_thought", "two_calls", "a9_bare_id", "a18_no_end_of_thought", "c35_logprobs_chat"):
                path, body = request_of(case)
                self.assertEqual(plain(server.post(path, body)), answer(case))

    def test_b21_from_thought_straight_to_a_call(self):
        got = answer("b21_thought_to_call")
        self.assertEqual((got["reasoning"], got["content"]), ("abc", None))
        self.assertEqual([call["id"] for call in got["tool_calls"]], ["functions.straight:0"])

    def test_thoughts_without_an_end(self):
        self.assertEqual(answer("only_thought")["reasoning"], "Thinking and never coming to an end")
        self.assertEqual(answer("only_thought")["content"], None)
        self.assertEqual(answer("thought_cut")["reasoning"], "Thinking past the limit")
        self.assertEqual(answer("thought_cut")["finish_reason"], "length")

    def test_b28_every_control_token_at_the_end(self):
        for name, token in CONTROLS.items():
            offset = token - CONTROLS["[BOS]"]
            # Tool markers nobody asked for are text, think markers never are.
            is_text = name in KINDS and "tool" in name
            with self.subTest(token=name):
                got = answer(f"b28_ends_in_{offset}")
                self.assertEqual(got["content"], f"ends {offset:03d}" + (name if is_text else ""))
                self.assertEqual(got["reasoning"], f"What ends in number {offset}?")
                shown = answer(f"b28_shown_{offset}")["content"]
                is_end = name in ("<|im_end|>", "[EOS]", "[EOT]")
                hidden = is_end or name in ("<think>", "</think>")
                self.assertEqual(shown, f"shown {offset:03d}" + ("" if hidden else name))


class Speculation(unittest.TestCase):
    """Section C."""

    def test_c29_a_stop_inside_the_budget_is_a_stop(self):
        got = answer("c29_stop_inside_budget")
        self.assertEqual((got["content"], got["finish_reason"], got["stop_reason"]), ("onetwoa", "stop", "X"))
        self.assertEqual(got["usage"]["completion_tokens"], 3)

    def test_c31_three_lists_of_one_length(self):
        for case, text in (("c31_stop_with_lists", "redgreen, "), ("c31_stop_included", "RedGreEn, BLue")):
            got = answer(case)
            self.assertEqual(got["content"], text)
            lists = got["logprobs"]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                self.assertEqual(len(lists[name]), 4, name)
            self.assertEqual(len(got["token_ids"]), 4)
            self.assertEqual(got["usage"]["completion_tokens"], 4)

    def test_c32_reasoning_tokens_are_among_the_completion_tokens(self):
        got = answer("c32_stop_in_thought")
        self.assertEqual((got["reasoning"], got["content"]), ("Consider this and ", None))
        self.assertEqual(got["usage"]["completion_tokens"], 3)
        self.assertEqual(got["usage"]["completion_tokens_details"]["reasoning_tokens"], 3)
        for case in CASES:
            details = answer(case)["usage"].get("completion_tokens_details") or {}
            self.assertLessEqual(details.get("reasoning_tokens", 0), answer(case)["usage"]["completion_tokens"], case)

    def test_c33_min_tokens_are_kept(self):
        for case in ("c33_min_tokens", "c33_min_tokens_chat"):
            self.assertGreaterEqual(answer(case)["usage"]["completion_tokens"], 8, case)
        self.assertEqual(answer("c33_min_tokens")["content"], "say no more than this very long text of words at all")
        # No stop string may begin among the first four tokens; the fifth begins with one.
        self.assertEqual(answer("c33_min_tokens_stop")["content"], "ha!he!hi!ho!")

    def test_c35_logprobs_are_real(self):
        lists = answer("c35_logprobs")["logprobs"]
        self.assertTrue(any(value < -1e-4 for value in lists["token_logprobs"]), lists["token_logprobs"])
        for top in lists["top_logprobs"]:
            self.assertEqual(len(top), 5)
            self.assertLess(min(top.values()), -3)
        for entry in answer("c35_logprobs_chat")["logprobs"]["content"]:
            self.assertEqual(len(entry["top_logprobs"]), 4)
            self.assertEqual(entry["logprob"], entry["top_logprobs"][0]["logprob"])

    def test_c36_logprobs_do_not_switch_speculation_off(self):
        path, body = request_of("c35_logprobs")
        with harness.Server(*FLAGS, *harness.spec(PATHS["good"], 4), model=PATHS["target"]) as server:
            server.post(path, body)
            self.assertGreater(server.metric("vllm:spec_decode_num_accepted_tokens_total"), 0)

    def test_c48_a_schema_is_refused_and_harms_nobody(self):
        body = {"messages": [{"role": "user", "content": NAMES["b19_thought"]}], "max_tokens": 50,
                "response_format": {"type": "json_schema",
                                    "json_schema": {"name": "x", "schema": {"type": "object"}}}}
        path, good_body = request_of("b19_thought")
        for draft in ("good", "bad"):
            with (harness.Server(*FLAGS, *harness.spec(PATHS[draft], 4), model=PATHS["target"]) as server,
                  concurrent.futures.ThreadPoolExecutor(8) as pool):
                results = list(pool.map(lambda _: server.request("POST", path, body), range(8)))
                for status, refusal, _ in results:
                    self.assertEqual(status, 400)
                    self.assertIn("response_format", refusal["error"]["message"])
                self.assertEqual(plain(server.post(path, good_body)), answer("b19_thought"))

    def test_e63_characters_over_several_tokens(self):
        self.assertEqual(answer("e63_split_characters")["content"], "An eagle 🦅 and a ď letter")
        self.assertEqual(answer("e63_emoji_is_stop")["content"], "The eagle: ")
        self.assertEqual(answer("e63_never_completed")["content"], "half a bird �")
        self.assertEqual(answer("e63_chat")["reasoning"], "bird in thought �")
        self.assertEqual(answer("e63_chat")["content"], "n 🦅 out")


if __name__ == "__main__":
    unittest.main()
