"""What jinja2 makes of templates and expressions, for the interpreter's tests in src/chat.

    pip install jinja2==3.1.6
    python tools/text_golden/make_jinja_golden.py

Environment as transformers sets it up for chat templates. Writes to tests/golden/text/:
  jinja_expressions.json   the variables, then [source, output] or [source, null, jinja2's error]
  jinja_templates.json     templates in jinja/*.jinja over conversations: every pair's output or refusal
The templates are small ones of our own that use the constructs of public models' templates.
"""
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from jinja_cases import CONVERSATIONS, EXPRESSIONS, KWARGS, TEMPLATES, VARIABLES

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/golden/text"
NOW = datetime.datetime(2026, 3, 7, 9, 5, 2)


class Generation(jinja2.ext.Extension):
    """{% generation %}: its body, in a scope of its own."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def make_environment():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    return environment


def outcome(environment, source, variables):
    """(text, None) or (None, the exception's name and message)."""
    try:
        return environment.from_string(source).render(**variables), None
    except Exception as error:  # whatever it is, the template is refused
        return None, f"{type(error).__name__}: {error}"


def write_rows(path, rows):
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    path.write_text("[\n" + lines + "\n]\n")


def main():
    environment = make_environment()
    rows = []
    for source in EXPRESSIONS:
        text, error = outcome(environment, source, VARIABLES)
        rows.append([source, text] if error is None else [source, None, error[:100]])
    write_rows(OUT / "jinja_expressions.json", [{"variables": VARIABLES}] + rows)
    rows = []
    for name, settings in TEMPLATES.items():
        source = (ROOT / settings["path"]).read_text()
        for at, conversation in enumerate(CONVERSATIONS):
            for kwargs in KWARGS + settings.get("kwargs", []):
                variables = {"tools": None, "documents": None, "add_generation_prompt": True,
                             **settings.get("tokens", {}), **conversation, **kwargs}
                text, error = outcome(environment, source, variables)
                rows.append({"template": settings["path"], "conversation": at, "kwargs": {**settings.get("tokens", {}), **kwargs},
                             **({"text": text} if error is None else {"error": error[:100]})})
    write_rows(OUT / "jinja_templates.json", [{"conversations": CONVERSATIONS}] + rows)
    print(sum("error" in row for row in rows), "of", len(rows), "renderings are refused")


main()
