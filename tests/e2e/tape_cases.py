"""Scripted answers and the requests that ask for them. A case's name begins with the number of the user's
report it comes from; names of tapes are words, one token each."""

import dataclasses
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tape"))
import checkpoint  # noqa: E402, F401
from tape import (ARGUMENT, CALL, CALL_END, CONTROLS, END, KINDS, SECTION, SECTION_END, THINK, UNTHINK, Pieces,  # noqa: E402
                  Tapes, call)


@dataclasses.dataclass
class Case:
    tape: list
    path: str = "chat"         # or "completion"
    body: dict = dataclasses.field(default_factory=dict)
    tools: tuple = ()          # names of functions offered
    thinking: bool = True


def tool(name: str) -> dict:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


BIG = "".join(f"line {i:04d} of a long text, " for i in range(800))  # 20,800 bytes in 70 tokens
BIG_PIECES = Pieces(['{"text": "', *(BIG[at:at + 300] for at in range(0, len(BIG), 300)), '"}\n'])
EAGLE = "🦅".encode()
D_CARON = "ď".encode()

CASES = {
    # --- A. tool calls ---------------------------------------------------------------------------
    "a1_newline_in_id": Case([UNTHINK, SECTION, *call("functions.newline\n:0", '{"a": 1}'), SECTION_END],
                             tools=("newline",)),
    "a2_big_argument": Case([UNTHINK, SECTION, *call("functions.write:0", BIG_PIECES), SECTION_END],
                            tools=("write",)),
    "a3_text_before": Case([UNTHINK, "Let me check.", SECTION, *call("functions.check:0", '{"b": 2}'), SECTION_END],
                           tools=("check",)),
    "a5_end_of_section": Case([UNTHINK, SECTION, *call("functions.leave:0", '{"c": 3}'), SECTION_END],
                              tools=("leave",)),
    "a6_spurious_words": Case([UNTHINK, SECTION, " spurious ", *call("functions.words:0", '{"d": 4}'), SECTION_END],
                              tools=("words",)),
    "a8_text_after": Case([UNTHINK, "Before.", SECTION, *call("functions.after:0", '{"e": 5}'), SECTION_END, " Done."],
                          tools=("after",)),
    "a9_bare_id": Case([UNTHINK, SECTION, *call("search:2", '{"f": 6}'), SECTION_END], tools=("search", "other")),
    "a12_no_parameters": Case([UNTHINK, SECTION, *call("functions.now:0", "{ }"), SECTION_END], tools=("now",)),
    "a12_no_arguments": Case([UNTHINK, SECTION, *call("functions.today:0"), SECTION_END], tools=("today",)),
    "a18_no_end_of_thought": Case(["I should look.", SECTION, *call("functions.look:0", '{"g": 7}'), SECTION_END],
                                  tools=("look",)),
    "two_calls": Case(["Both at once", UNTHINK, "Two things:", SECTION, *call("functions.first:0", '{"h": [8]}'),
                       *call("functions.second:1", '{"i": {"j": 9}}'), SECTION_END], tools=("first", "second")),
    "call_without_section": Case(["Only a call", UNTHINK, *call("functions.alone:0", '{"k": 10}'), " and text"],
                                 tools=("alone",)),
    "cut_in_arguments": Case([UNTHINK, SECTION, *call("functions.cut:0", Pieces(['{"lm"', ": [1, ", "22, 333]}"])),
                              SECTION_END], tools=("cut",), body={"max_tokens": 8}),
    "cut_in_id": Case([UNTHINK, "Then ", SECTION, CALL, Pieces(["functi", "ons.ha", "lf:0"]), ARGUMENT, CALL_END],
                      tools=("half",), body={"max_tokens": 5}),
    "stop_in_arguments": Case([UNTHINK, SECTION, *call("functions.halt:0", Pieces(['{"nn"', ": 1, STO", "P 2}"])),
                               SECTION_END], tools=("halt",), body={"stop": ["STOP"]}),
    "no_tools_offered": Case(["Nobody asked", UNTHINK, "See: ", SECTION, *call("functions.unasked:0", '{"o": 11}'),
                              SECTION_END, " bye"]),
    "tools_forbidden": Case(["Not allowed", UNTHINK, "Well, ", SECTION, *call("functions.forbidden:0", '{"p": 12}'),
                             SECTION_END, " so be it"], tools=("forbidden",), body={"tool_choice": "none"}),
    # --- B. thinking -----------------------------------------------------------------------------
    "b19_thought": Case(["A thought of some words.", UNTHINK, "The answer is forty-two."]),
    "b19_thinking_off": Case(["Straight to the point."], thinking=False),
    "b21_thought_to_call": Case([THINK, "abc", SECTION, *call("functions.straight:0", '{"q": 13}'), SECTION_END],
                                tools=("straight",), thinking=False),
    "only_thought": Case(["Thinking and never", " coming to an end"]),
    "thought_cut": Case(["Thinking past", " the limit", " of tokens", UNTHINK, "unseen"], body={"max_tokens": 4}),
    # --- C. stops and logprobs -------------------------------------------------------------------
    "c29_stop_inside_budget": Case([Pieces(["one", "two", "aXb", "four4", "five5", "six6"])], "completion",
                                   {"stop": ["X"], "max_tokens": 5}),
    "c31_stop_with_lists": Case([Pieces(["red", "gre", "en, b", "lue, ", "yell", "ow; end"])], "completion",
                                {"stop": ["blue"], "logprobs": 2}),
    "c31_stop_included": Case([Pieces(["Red", "Gre", "En, B", "Lue, ", "Yell", "Ow; end"])], "completion",
                              {"stop": ["BLue"], "logprobs": 2, "include_stop_str_in_output": True}),
    "c32_stop_in_thought": Case([Pieces(["Consider ", "this and HA", "LT here", " not there"]), UNTHINK, "never"],
                                body={"stop": ["HALT"]}),
    "c33_min_tokens": Case([Pieces(["say", " no ", "more"]), END, Pieces([" than", " this", " very", " long", " text",
                                                                         " of words", " at all"])], "completion",
                           {"min_tokens": 8, "max_tokens": 20, "logprobs": 1}),
    "c33_min_tokens_chat": Case([Pieces(["Think", " it over"]), UNTHINK, "Done now", END, Pieces([
        " not ye", " at le", " as ten", " tokens", " we sa", " and on"])], body={"min_tokens": 8, "max_tokens": 20}),
    "c33_min_tokens_stop": Case([Pieces(["ha!", "he!", "hi!", "ho!", "hu! he!", "!!! hy!", " end"])], "completion",
                                {"min_tokens": 4, "stop": ["h"], "max_tokens": 20}),
    "c35_logprobs": Case(["Many a word for which a probability is told"], "completion",
                         {"logprobs": 5, "max_tokens": 20, "return_tokens_as_token_ids": True}),
    "c35_logprobs_chat": Case(["Think with numbers", UNTHINK, "and answer with numbers"],
                              body={"logprobs": True, "top_logprobs": 4}),
    "stop_token": Case([Pieces(["alpha", "beta2", "gamma", "delta"]), "[EOT]"], "completion", {}),
    "length": Case([Pieces(["uno", "dos", "tres", "cuatro", "cinco"])], "completion", {"max_tokens": 3}),
    "ignore_eos": Case([Pieces(["ein", "zwei", "drei"]), END, Pieces(["vier", "fünf", "sechs"])], "completion",
                       {"ignore_eos": True, "max_tokens": 5}),
    # --- characters over several tokens (E63) ----------------------------------------------------
    "e63_split_characters": Case([Pieces([b"An eagle " + EAGLE[:1], EAGLE[1:] + b" and a " + D_CARON[:1],
                                          D_CARON[1:] + b" letter"])], "completion"),
    "e63_emoji_is_stop": Case([Pieces([b"The eagle: " + EAGLE[:2], EAGLE[2:] + b" flies"])], "completion",
                              {"stop": ["🦅"]}),
    "e63_never_completed": Case([Pieces([b"half a bird " + EAGLE[:3]])], "completion"),
    "e63_chat": Case([Pieces([b"bird in thought " + EAGLE[:3]]), UNTHINK, Pieces([b"n " + EAGLE[:2],
                                                                                  EAGLE[2:] + b" out"])]),
}
# B28: an answer that ends in each control token. So many that not every draft length plays them.
CASES |= {f"b28_ends_in_{offset}": Case([f"What ends in number {offset}?", UNTHINK, f"ends {offset:03d}", name])
          for name, offset in ((name, token - CONTROLS["[BOS]"]) for name, token in CONTROLS.items())}
CASES |= {f"b28_shown_{offset}": Case([f"Showing what ends in {offset}?", UNTHINK, f"shown {offset:03d}", name],
                                      body={"skip_special_tokens": False})
          for name, offset in ((name, token - CONTROLS["[BOS]"]) for name, token in CONTROLS.items())}


def tape_name(index: int) -> str:
    """A word that the pre-tokenizer keeps whole."""
    return "tape" + chr(ord("a") + index // 26) + chr(ord("a") + index % 26)


NAMES = {case: tape_name(i) for i, case in enumerate(CASES)}
TAPES = Tapes({NAMES[name]: case.tape for name, case in CASES.items()})


def request_of(name: str) -> tuple:
    """(path, body)"""
    case = CASES[name]
    body = {"temperature": 0, "max_tokens": 200, "return_token_ids": True, **case.body}
    if case.path == "completion":
        return "/v1/completions", {"prompt": "<|im_user|>" + NAMES[name], **body}
    body["messages"] = [{"role": "user", "content": NAMES[name]}]
    if case.tools:
        body["tools"] = [tool(name) for name in case.tools]
    if not case.thinking:
        body["chat_template_kwargs"] = {"thinking": False}
    return "/v1/chat/completions", body


def expected_ids(name: str) -> list:
    return TAPES.ids[NAMES[name]]
