"""Tool declarations as TypeScript text, the way Kimi's tokenizer hands them to its chat template.

Written from the description of the format; the C++ renderer is checked against the golden
texts this module produces. Shape: a `# Tools` head, then one `type NAME = (_: {...}) => any;` per
function inside `namespace functions { ... }`. Required fields come first, each group by name.
"""
import json

INDENT = "  "
CONSTRAINTS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}


class Unconvertible(Exception):
    """The schema uses something the format has no words for."""


def deep_sort(value):
    """The same JSON value with every object's keys in order."""
    if isinstance(value, dict):
        return {k: deep_sort(value[k]) for k in sorted(value)}
    if isinstance(value, list):
        return [deep_sort(v) for v in value]
    return value


def comment(text, indent):
    """`// ` before every line; an empty line stays empty."""
    return "".join((f"{indent}// {line}" if line else "") + "\n" for line in text.split("\n"))


def docstring(schema, indent):
    if not isinstance(schema, dict):
        return ""
    out = ""
    if schema.get("description"):
        out += comment(schema["description"], indent)
    kind = schema.get("type")
    keys = CONSTRAINTS.get(kind, ()) if isinstance(kind, str) else ()
    found = [f"{k}: {schema[k]}" for k in sorted(keys) if k in schema]
    if found:
        out += comment(", ".join(found), indent)
    if schema.get("default") is not None:
        d = schema["default"]
        shown = repr(d) if isinstance(d, (bool, int, float)) else json.dumps(d, ensure_ascii=False)
        out += comment(f"Default: {shown}", indent)
    return out


def reference(ref):
    if ref == "#":
        return "parameters"
    if ref.startswith("#/$defs/"):
        return ref[len("#/$defs/"):]
    raise Unconvertible(ref)


def type_text(schema, indent):
    if isinstance(schema, bool):
        return "any" if schema else "null"
    if "$ref" in schema:
        return reference(schema["$ref"])
    if "anyOf" in schema:
        return " | ".join(type_text(s, indent) for s in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join({"object": "{}", "array": "Array<any>", "integer": "number"}.get(k, k)
                          for k in kind)
    if kind == "object":
        return object_text(schema, indent)
    if kind == "array":
        return array_text(schema, indent)
    if kind is not None:
        return "number" if kind == "integer" else kind
    if not schema:
        return "any"
    raise Unconvertible(json.dumps(schema))


def array_text(schema, indent):
    items = schema.get("items", {})
    doc = docstring(items, indent + INDENT)
    if not doc:
        return f"Array<{type_text(items, indent)}>"
    inner = type_text(items, indent + INDENT)
    return f"Array<\n{doc}{indent}{INDENT}{inner}\n{indent}>"


def field_texts(schema, indent, names):
    required = set(schema.get("required", ()))
    out = []
    for name in names:
        field = schema["properties"][name]
        mark = "" if name in required else "?"
        out.append(f"{docstring(field, indent)}{indent}{name}{mark}: {type_text(field, indent)}")
    return out


def object_text(schema, indent):
    required = set(schema.get("required", ()))
    step = indent + INDENT
    parts = field_texts(schema, step, sorted(schema.get("properties", {}), key=lambda n: (n not in required, n)))
    if "additionalProperties" in schema:
        extra = schema["additionalProperties"]
        shown = {True: "any", False: "never"}[extra] if isinstance(extra, bool) else type_text(extra, step)
        parts.append(f"{step}[k: string]: {shown}")
    if not parts:
        return "{}"
    return "{\n" + ",\n".join(parts) + f"\n{indent}}}"


def uses_self(schema):
    if isinstance(schema, dict):
        return schema.get("$ref") == "#" or any(uses_self(v) for v in schema.values())
    return isinstance(schema, list) and any(uses_self(v) for v in schema)


def function_text(fn):
    params = fn.get("parameters") or {"type": "object", "properties": {}}
    out = comment(fn["description"], "") if fn.get("description") else ""
    before = ""
    if uses_self(params):
        # The root, once it is named, keeps the order of its (sorted) keys: required ones do not lead.
        fields = ",\n".join(field_texts(params, INDENT, params.get("properties", {})))
        before += f"interface parameters {{\n{fields}\n}}\n"
        shape = "parameters"
    else:
        shape = object_text(params, "")
    for name, sub in params.get("$defs", {}).items():
        about = comment(sub["description"], "") if sub.get("description") else ""
        before += f"{about}interface {name} {type_text(sub, '')}\n"
    return f"{before}{out}type {fn['name']} = (_: {shape}) => any;"


def declaration(tools):
    """`tools_ts_str` for a list of OpenAI-style tools; None when the format cannot hold them."""
    try:
        functions = [function_text(t["function"]) for t in deep_sort(tools)
                     if t.get("type") == "function"]
    except (Unconvertible, KeyError, TypeError, AttributeError):
        return None
    if not functions:
        return ""
    return ("# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(functions) + "\n}\n")
