"""One shape for an answer, from a whole body or put together from a stream as a client does it."""


def plain(body: dict) -> dict:
    """What a whole answer says in its first choice; fields that a request did not ask for are None."""
    choice = body["choices"][0]
    message = choice.get("message", {})
    return {
        "content": message.get("content") if "message" in choice else choice["text"],
        "reasoning": message.get("reasoning"),
        "tool_calls": message.get("tool_calls") or [],
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice["stop_reason"],
        "token_ids": choice["token_ids"],
        "logprobs": choice["logprobs"],
        "usage": {key: value for key, value in body["usage"].items() if value is not None},
    }


def add_logprobs(total, new):
    if new is None:
        return total
    if total is None:
        return {key: list(values) for key, values in new.items()}
    for key, values in new.items():
        total[key] += values
    return total


def add_calls(calls: list, deltas: list):
    for delta in deltas:
        if delta["index"] == len(calls):
            calls.append({"id": delta["id"], "type": delta["type"],
                          "function": {"name": delta["function"]["name"], "arguments": ""}})
        calls[delta["index"]]["function"]["arguments"] += delta["function"].get("arguments") or ""


def assemble(chunks) -> dict:
    """The same, from the chunks of a stream of one choice with usage."""
    out = {"content": None, "reasoning": None, "tool_calls": [], "finish_reason": None, "stop_reason": None,
           "token_ids": [], "logprobs": None, "usage": None}
    for chunk in chunks:
        if chunk.get("usage"):
            out["usage"] = {key: value for key, value in chunk["usage"].items() if value is not None}
        for choice in chunk["choices"]:
            if out["finish_reason"] is not None:
                raise AssertionError(f"a chunk after the finish reason: {chunk}")
            if "text" in choice:
                out["content"] = (out["content"] or "") + choice["text"]
            delta = choice.get("delta", {})
            for key in ("content", "reasoning"):
                if delta.get(key) is not None:
                    out[key] = (out[key] or "") + delta[key]
            if delta.get("reasoning") != delta.get("reasoning_content"):
                raise AssertionError(f"two spellings of one thought: {chunk}")
            add_calls(out["tool_calls"], delta.get("tool_calls") or [])
            out["token_ids"] += choice.get("token_ids") or []
            out["logprobs"] = add_logprobs(out["logprobs"], choice.get("logprobs"))
            out["finish_reason"] = choice.get("finish_reason")
            out["stop_reason"] = choice.get("stop_reason")
    # The first delta of a chat has the content "": beside thoughts or calls that says nothing.
    if out["content"] == "" and (out["reasoning"] is not None or out["tool_calls"]):
        out["content"] = None
    return out
