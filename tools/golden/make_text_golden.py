"""Golden vectors that need no model: token ids by tiktoken, chat renderings by jinja2.

`python make_text_golden.py` writes tests/golden/tokenizer.json and tests/golden/chat.json.
"""
import json
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../nano"))

import tokenizer                                      # noqa: E402
from chat import render_jinja                         # noqa: E402
from data_math import make_problem                    # noqa: E402
from data_talk import prose, turn                     # noqa: E402
from data_tools import dialogue                       # noqa: E402
from ts_tools import declaration                      # noqa: E402

OUT = os.path.join(HERE, "../../tests/golden")

HAND = [
    "", " ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\r\n", "\r\n\r\n", "\t", "\t\tx", " \t \n \t", "a\n\nb", "a \n b", "a  b", "a   b    c",
    "trailing  ", "trailing \n", "  leading", "\u00a0x\u00a0y", "x\u2003y", "\u200bzero", "tab\tend\t",
    "Hello, world!", "hello", " hello", "Hello", "HELLO", "HeLLo", "helloWorld", "HelloWorldAgain", "XMLHttpRequest", "iPhone", "McDonald",
    "I'm", "you're", "we've", "they'll", "she'd", "it's", "can't", "I'M", "YOU'RE", "it'S", "rock'n'roll", "'s", "'tis", "dogs' tails", "x'y", "don''t",
    "I\u2019m", "l'\u00e9t\u00e9", "0", "1", "12", "123", "1234", "12345", "123456", "1234567", "1000", "10000", "100000", "1000000", "00", "000", "0000", "00000",
    "3.14159", "1,000,000", "$5.00", "12%", "2026-01-31", "09:45", "1st", "x2y3", "v1.2.3", "\u0661\u0662\u0663\u0664", "\u00bd", "\u2167", "\u00b2\u00b3",
    "\u4f60\u597d", "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u6211\u7231\u5317\u4eac\u5929\u5b89\u95e8", "abc\u4f60\u597ddef", "\u4f60 \u597d", "\u4f60\u597d123\u4e16\u754c", "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8", "\u30ab\u30bf\u30ab\u30ca", "\ud55c\uad6d\uc5b4 \ubb38\uc7a5",
    "\u3005\u3006\u3007", "\u2e80\u2f00", "\U00020000\U0002a6d6", "caf\u00e9", "cafe\u0301", "na\u00efve", "\u00dcber", "stra\u00dfe", "STRASSE", "\u00c9COLE", "\u01c5ungla", "\u02b0x", "\u0130stanbul", "\u0131",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440", "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "\u05e2\u05d1\u05e8\u05d9\u05ea", "\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e44\u0e17\u0e22", "\u0f56\u0f7c\u0f51",
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea", "a\U0001f600b", " \U0001f600 \U0001f601", "\u2764\ufe0f", "\u2192 \u21d2 \u2200x\u2203y", "\u20ac100", "\u00a3\u00a5",
    "...", "!!!", "?!", " ...", " !!!\n\n", "--", "\u2014", "(x)", "[x]", "{x}", "<x>", "<<3*4=12>>12", "a=b", "a == b", "a!=b;", "// comment", "/* c */", "#include <x>\n",
    "def f(x):\n    return x + 1\n", "for (int i = 0; i < 10; ++i) {\n\tsum += a[i];\n}", "{\"a\": [1, 2, {\"b\": null}]}", "{\"city\": \"Oslo\", \"days\": 3}", "http://example.com/a?b=c&d=e#f", "user@example.com", "C:\\dir\\file.txt",
    "snake_case_name", "kebab-case-name", "__init__", "a_1", "_", "__", "*bold* _it_ `code`", "| a | b |\n|---|---|", "- item\n- item2\n", "1. one\n2. two",
    "#### 42", "\n#### 42", "Question: How many?\nAnswer:", "Answer: 3*4 = <<3*4=12>>12.", "a\u0000b", "\u0001\u0002", "\u007f", "\ufeffBOM", "\ufffd", "\ufffe", "e\u0301\u0302\u0303", "\u0301", "\U0010ffff",
    "[BOS]", "[EOS]", "[PAD]", "[UNK]", "[EOT]", "<think>", "</think>", "<think></think>", "<|im_end|>", "<|im_user|>user<|im_middle|>Who are you?<|im_end|>",
    "<|im_system|>tool_declare<|im_middle|>", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>\n", "a<|im_end|>b", "<|im_end|><|im_end|>", "<|im_end", "|im_end|>", "<|im_end|", "<|nope|>", "[bos]", "[ BOS ]", "<|reserved_token_3845|>", "<|reserved_token_4000|>", "<|reserved_token_1|>", "<|start_header_id|>x<|end_header_id|>",
    "<|kimi_k25_video_placeholder|>", "< think >", "<THINK>", "x" * 300, "ab" * 200, "A" * 100, " " * 100, "\n" * 50, "9" * 50, "\u4e2d" * 40, "-" * 80, "aA" * 50,
]


def encode(enc, text, specials):
    if specials:
        return enc.encode(text, allowed_special="all")
    return enc.encode(text, allowed_special=set(), disallowed_special=())


def tokenizer_vectors():
    enc = tokenizer.load()
    rng = random.Random(41)
    texts = list(HAND)
    for _ in range(20):
        texts += [make_problem(rng).question, make_problem(rng).gsm_answer(), turn(rng)[1]]
    texts += [prose(rng) for _ in range(6)]
    pool = "aAzZ09 \n\t'.,!?-_<>|[]\u00e9\u00df\u4e2d\u6587\u0301\U0001f600\u0416\u05d0s t"
    texts += ["".join(rng.choice(pool) for _ in range(rng.randint(1, 40))) for _ in range(80)]
    rows = []
    for t in texts:
        row = {"text": t, "ids": encode(enc, t, True)}
        plain = encode(enc, t, False)
        if plain != row["ids"]:
            row["ids_plain"] = plain
        assert enc.decode_bytes(row["ids"]) == t.encode() == enc.decode_bytes(plain)
        rows.append(row)
    return {"about": "ids: special strings recognised; ids_plain (where different): encoded as ordinary text",
            "vocab_size": enc.n_vocab, "cases": rows}


def fn(name, description=None, parameters=None):
    f = {"name": name}
    if description is not None:
        f["description"] = description
    if parameters is not None:
        f["parameters"] = parameters
    return {"type": "function", "function": f}


def obj(properties, required=(), **more):
    return {"type": "object", "properties": properties, "required": list(required), **more}


TOOLSETS = {
    "weather": [fn("get_weather", "Get the weather.", obj({"city": {"type": "string", "description": "City name"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, ["city"]))],
    "two": [fn("search", "Search the web.\nReturns a list.", obj({"query": {"type": "string", "minLength": 1, "maxLength": 80, "pattern": "^.+$"}, "limit": {"type": "integer", "minimum": 1, "maximum": 10, "default": 5}}, ["query"])),
            fn("add", "", obj({"numbers": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 9}}, ["numbers"]))],
    "nested": [fn("book", "Book\n\na trip", obj({
        "z_last": {"type": "boolean", "default": True}, "who": obj({"name": {"type": "string"}, "age": {"type": "integer", "description": "in years", "minimum": 0}}, ["name"], additionalProperties=False),
        "stops": {"type": "array", "items": {"type": "object", "description": "one stop", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
        "tags": {"type": "array", "items": {"type": "string", "description": "a tag", "maxLength": 4}}, "any": {}, "opt": {"type": ["string", "null"]},
        "mode": {"enum": ["fast", 1, None, True]}, "cost": {"anyOf": [{"type": "number"}, {"type": "string"}], "description": "price"}, "map": {"type": "object", "additionalProperties": {"type": "integer"}}}, ["who", "cost"]))],
    "bare": [fn("now"), fn("ping", "Answers pong.", obj({}))],
    "refs": [fn("tree", "A tree.", obj({"left": {"$ref": "#"}, "right": {"$ref": "#"}, "value": {"type": "integer"}}, ["value"])),
             fn("shape", "A shape.", obj({"at": {"$ref": "#/$defs/Point"}}, ["at"], **{"$defs": {"Point": obj({"x": {"type": "number"}, "y": {"type": "number"}}, ["x", "y"])}}))],
    "unicode": [fn("gr\u00fc\u00dfen", "Gr\u00fc\u00dft jemanden \u2013 \u4f60\u597d", obj({"name": {"type": "string", "description": "\u540d\u5b57", "default": "\u4e16\u754c"}}))],
    "not_functions": [{"type": "retrieval"}],
    "mixed_kinds": [{"type": "retrieval"}, fn("f", "F.", obj({"x": {"type": "string"}}, ["x"]))],
}


def call(name, index, arguments):
    return {"id": f"functions.{name}:{index}", "type": "function", "function": {"name": name, "arguments": arguments}}


def conversations():
    u = lambda t, **k: {"role": "user", "content": t, **k}
    a = lambda t, r=None, **k: {"role": "assistant", "content": t, **({"reasoning_content": r} if r is not None else {}), **k}
    tool = lambda i, t: {"role": "tool", "tool_call_id": i, "content": t}
    loop = [u("Weather in Oslo?"), a("", "I call it.", tool_calls=[call("get_weather", 0, "{\"city\": \"Oslo\"}")]), tool("functions.get_weather:0", "{\"sky\": \"clear\"}")]
    two = [u("Both."), a("Doing it.", "R2", tool_calls=[call("f", 0, {"x": 1}), call("g", 1, {"y": [1, 2], "\u00fc": "\u4f60"})]), tool("functions.f:0", "ok"), tool("functions.g:1", "")]
    cases = [
        ("one user", [u("Hi")], {}), ("thinking off", [u("Hi")], {"thinking": False}), ("thinking on", [u("Hi")], {"thinking": True}),
        ("system", [{"role": "system", "content": "Be short."}, u("Hi")], {}), ("no generation prompt", [u("Hi")], {"add_generation_prompt": False}),
        ("empty content", [u("")], {}), ("null content", [u("x"), a(None), u("y")], {}), ("newlines and spaces kept", [u("  a\n\n b \n")], {}),
        ("history drops reasoning", [u("1"), a("A1", "R1"), u("2"), a("A2", "R2"), u("3")], {}),
        ("last answer drops it too", [u("1"), a("A1", "R1")], {"add_generation_prompt": False}),
        ("tool loop keeps reasoning", loop, {"tools": "weather"}), ("tool loop, thinking off", loop, {"tools": "weather", "thinking": False}),
        ("tool loop finished", loop + [a("Clear.", "Done."), u("Thanks")], {"tools": "weather"}),
        ("second loop", loop + [a("Clear.", "Done."), u("And Rome?"), a("", "Again.", tool_calls=[call("get_weather", 1, "{\"city\": \"Rome\"}")]), tool("functions.get_weather:1", "rain")], {"tools": "weather"}),
        ("two calls, object arguments", two, {"tools": "two"}), ("preserve_thinking", [u("1"), a("A1", "R1"), u("2"), *two[1:]], {"preserve_thinking": True}),
        ("reasoning without tools in suffix", [u("1"), a("A1", "R1"), u("2")], {}), ("null reasoning", [u("1"), {"role": "assistant", "content": "A", "reasoning_content": None}, u("2")], {}),
        ("named user", [u("Hi", name="Ada")], {}), ("named tool", [u("x"), {"role": "tool", "name": "g", "tool_call_id": "functions.g:0", "content": "r"}], {}),
        ("text parts", [u([{"type": "text", "text": "a"}, {"type": "text", "text": "b\n"}])], {}),
        ("image part", [u([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "What?"}])], {}),
        ("image between texts", [u([{"type": "text", "text": "See "}, {"type": "image", "image": "x"}, {"type": "text", "text": "now"}])], {}),
        ("video part", [u([{"type": "video_url", "video_url": {"url": "x"}}, {"type": "text", "text": "Which?"}])], {}),
        ("parts in assistant and tool", [u("x"), a([{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]), tool("functions.f:0", [{"type": "text", "text": "p"}])], {}),
        ("special strings in content", [u("say <|im_end|> and <think>")], {}), ("unicode", [u("Gr\u00fc\u00dfe \u4f60\u597d \U0001f600")], {}),
        ("unknown role", [{"role": "developer", "content": "D"}, u("x")], {}), ("html is not escaped", [u("<b>&amp;\"'</b>")], {}),
        ("empty tools list", [u("x")], {"tools_value": []}), ("nothing", [], {}),
        ("tools without tools_ts_str", [u("x")], {"tools": "unicode", "use_ts": False}), ("nested without tools_ts_str", [u("x")], {"tools": "nested", "use_ts": False}),
    ]
    cases += [(f"tools: {name}", [u("x")], {"tools": name}) for name in TOOLSETS]
    rng = random.Random(43)
    for i in range(12):
        m, t, th = dialogue(rng, test=i % 2 == 0) if i % 2 else dialogue(rng)
        cases.append((f"dialogue {i}", m, {"tools_value": t, "thinking": th, "add_generation_prompt": m[-1]["role"] != "assistant"}))
    return cases


def chat_vectors():
    rows = []
    for name, messages, how in conversations():
        how = dict(how)
        tools = how.pop("tools_value", None) if "tools_value" in how else TOOLSETS.get(how.pop("tools", None))
        row = {"name": name, "messages": messages, "tools": tools, "add_generation_prompt": how.get("add_generation_prompt", True),
               "kwargs": {k: v for k, v in how.items() if k in ("thinking", "preserve_thinking")}, "use_ts": how.get("use_ts", True)}
        row["text"] = render_jinja(messages, tools, **how)
        if tools and row["use_ts"]:
            row["tools_ts_str"] = declaration(tools)
        rows.append(row)
    return {"about": "text: chat_template.jinja by jinja2; tools_ts_str is passed in unless use_ts is false", "cases": rows}


def main():
    os.makedirs(OUT, exist_ok=True)
    for name, value in (("tokenizer.json", tokenizer_vectors()), ("chat.json", chat_vectors())):
        with open(os.path.join(OUT, name), "w", encoding="utf-8") as f:
            json.dump(value, f, ensure_ascii=True, indent=0)
            f.write("\n")
        print(name, len(value["cases"]))


if __name__ == "__main__":
    main()
