"""Kimi's chat layout in Python: what chat_template.jinja renders, split into trained and given text.

The training data goes through here (fast, and it knows which part the model must produce); the test
compares every rendering with the template itself.
"""
import json
import os

from ts_tools import declaration

TEMPLATE = os.path.join(os.path.dirname(__file__), "../../models/kimi-k2.5-nano/chat_template.jinja")


def body_of(message):
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    out = ""
    for part in content:
        if part["type"] in ("image", "image_url"):
            out += "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>\n"
        elif part["type"] in ("video", "video_url"):
            out += "<|kimi_k25_video_placeholder|>\n"
        else:
            out += part["text"]
    return out


def calls_of(message):
    if not message.get("tool_calls"):
        return ""
    out = "<|tool_calls_section_begin|>"
    for call in message["tool_calls"]:
        args = call["function"]["arguments"]
        if not isinstance(args, str):
            args = json.dumps(args, ensure_ascii=False)
        out += (f"<|tool_call_begin|>{call['id']}<|tool_call_argument_begin|>{args}<|tool_call_end|>")
    return out + "<|tool_calls_section_end|>"


def segments(messages, tools=None, thinking=True, add_generation_prompt=False, train=False):
    """[(text, produced)]: true for what the model must write, None for what it must never learn.

    None marks the emptied reasoning of earlier and of instant turns: only the template writes it. train=True renders a finished dialogue as the model met it: its last turn keeps the reasoning,
    which the template would drop once another turn follows.
    """
    out = []
    if tools:
        ts = declaration(tools)
        if ts is None:
            ts = json.dumps(tools, ensure_ascii=False, separators=(",", ":"))
        out.append((f"<|im_system|>tool_declare<|im_middle|>{ts}<|im_end|>", False))
    last = max((i for i, m in enumerate(messages[:-1] if train else messages)
                if m["role"] == "assistant" and not m.get("tool_calls")), default=-1)
    for i, m in enumerate(messages):
        role = m["role"]
        head = f"<|im_{role}|>" if role in ("user", "assistant") else "<|im_system|>"
        head += (m.get("name") or role) + "<|im_middle|>"
        if role == "assistant":
            keep = i > last and thinking
            reason = (m.get("reasoning_content") or "") if keep else ""
            if thinking:
                out += [(head + "<think>", False), (f"{reason}</think>", True if i > last else None)]
            else:
                out += [(head + "<think>", False), ("</think>", None)]
            out.append((body_of(m) + calls_of(m) + "<|im_end|>", i > last or not thinking))
        elif role == "tool":
            out.append((f"{head}## Return of {m.get('tool_call_id')}\n{body_of(m)}<|im_end|>", False))
        else:
            out.append((head + body_of(m) + "<|im_end|>", False))
    if add_generation_prompt:
        out.append(("<|im_assistant|>assistant<|im_middle|><think>" + ("" if thinking else "</think>"), False))
    return out


def render(messages, tools=None, thinking=True, add_generation_prompt=False):
    return "".join(t for t, _ in segments(messages, tools, thinking, add_generation_prompt))


def render_jinja(messages, tools=None, add_generation_prompt=True, use_ts=True, **kwargs):
    """The template file itself, in the environment transformers gives it."""
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    if tools and use_ts:
        ts = declaration(tools)
        if ts is not None:
            kwargs["tools_ts_str"] = ts
    with open(TEMPLATE, encoding="utf-8") as f:
        template = env.from_string(f.read())
    return template.render(messages=messages, tools=tools,
                           add_generation_prompt=add_generation_prompt, **kwargs)
