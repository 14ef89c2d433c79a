"""Tapes: answers written down in advance, and the token chains that make a model give them.

A tape is a list of elements: texts (str or bytes), Kimi's control tokens by name ("</think>", "<|im_end|>")
and `Pieces`, a text cut as its author wants. Each text becomes tokens of its own that no other tape has,
so the token decides what follows it. Control tokens are everybody's: what follows one depends on the last
token of text before it. A tape is played by a prompt that holds its name, as the user's message or at the
end of a raw prompt.

What a checkpoint must know is then two tables: `follow` (after a token of text) and `program` (after a
control token, by the last token of text before it). Standard library only.
"""

import base64
import re

NUM_BYTES = 256
VOCAB = 1536
SLOTS = VOCAB - 256  # control tokens, at Kimi's own offsets
CONTROLS = {name: SLOTS + offset for name, offset in {
    "[BOS]": 0, "[EOS]": 1, "<|im_end|>": 2, "<|im_user|>": 3, "<|im_assistant|>": 4, "<|start_header_id|>": 6,
    "<|end_header_id|>": 7, "[EOT]": 9, "<|im_system|>": 10, "<|tool_calls_section_begin|>": 11,
    "<|tool_calls_section_end|>": 12, "<|tool_call_begin|>": 13, "<|tool_call_argument_begin|>": 14,
    "<|tool_call_end|>": 15, "<|im_middle|>": 17, "<|media_begin|>": 18, "<|media_content|>": 19,
    "<|media_end|>": 20, "<|media_pad|>": 21, "<think>": 22, "</think>": 23, "[UNK]": 254, "[PAD]": 255,
}.items()}
# Control tokens that stand inside answers again and again; the others are followed by the answer's end.
KINDS = ("<think>", "</think>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
         "<|tool_call_argument_begin|>", "<|tool_call_end|>")
THINK, UNTHINK, SECTION, SECTION_END, CALL, ARGUMENT, CALL_END = KINDS
END = "<|im_end|>"
ENDS = (END, "[EOS]", "[EOT]")
# Two bytes could come together in a prompt by a merge; three cannot when no token has two.
MIN_PIECE = 3
MAX_PIECE = 400


class Pieces(list):
    """A text as these tokens."""


def as_bytes(text) -> bytes:
    return text.encode() if isinstance(text, str) else text


def call(name: str, arguments="", begin=CALL) -> list:
    return [begin, name, ARGUMENT, *([arguments] if arguments else []), CALL_END]


class Vocabulary:
    """Bytes, then the tapes' tokens, then filler so that the control tokens come where they should."""

    def __init__(self):
        self.tokens = [bytes([b]) for b in range(NUM_BYTES)]
        self.ids = {token: i for i, token in enumerate(self.tokens)}

    def is_free(self, piece: bytes) -> bool:
        return MIN_PIECE <= len(piece) <= MAX_PIECE and piece not in self.ids

    def add(self, piece: bytes) -> int:
        if not self.is_free(piece):
            raise ValueError(f"{piece!r} is taken, or not of {MIN_PIECE} … {MAX_PIECE} bytes")
        self.ids[piece] = len(self.tokens)
        self.tokens.append(piece)
        return self.ids[piece]

    def cut(self, text: bytes) -> list:
        """Tokens that no tape has yet: words where they are free, otherwise the first cut that is."""
        if not text:
            return []
        words = [w.encode("utf-8", "surrogateescape")
                 for w in re.findall(r"\s*\S+\s*$|\s*\S+|\s+", text.decode("utf-8", "surrogateescape"))]
        joined = []
        for word in words:  # short words lean on their neighbour
            if joined and (len(word) < MIN_PIECE or len(joined[-1]) < MIN_PIECE):
                joined[-1] += word
            else:
                joined.append(word)
        for size in range(1, len(joined) + 1):  # words that are taken may be new together
            mark = len(self.tokens)
            try:
                return [token for at in range(0, len(joined), size)
                        for token in self.cut_word(b"".join(joined[at:at + size]))]
            except ValueError:
                self.drop(mark)
        raise ValueError(f"every way to cut {text!r} is taken: change the tape's text")

    def drop(self, mark: int):
        for token in self.tokens[mark:]:
            del self.ids[token]
        del self.tokens[mark:]

    def cut_word(self, word: bytes) -> list:
        for size in range(min(len(word), MAX_PIECE), MIN_PIECE - 1, -1):
            rest = word[size:]
            if not self.is_free(word[:size]) or 0 < len(rest) < MIN_PIECE:
                continue
            mark = len(self.tokens)
            first = self.add(word[:size])
            try:
                return [first, *(self.cut_word(rest) if rest else [])]
            except ValueError:
                self.drop(mark)
        raise ValueError(f"{word!r}")

    def ranks(self) -> str:
        """tiktoken.model"""
        if len(self.tokens) > SLOTS:
            raise ValueError(f"{len(self.tokens)} tokens of text; {SLOTS} fit")
        filler = [f"\0filler{i}\0".encode() for i in range(SLOTS - len(self.tokens))]
        return "".join(f"{base64.b64encode(token).decode()} {i}\n" for i, token in enumerate(self.tokens + filler))


class Tapes:
    """Tables of all tapes together. `ids[name]` is the answer as token ids, up to and with its first end."""

    def __init__(self, tapes: dict):
        self.vocabulary = Vocabulary()
        self.names = {name: self.vocabulary.add(as_bytes(name)) for name in tapes}
        self.follow = {}   # token of text → the token after it
        self.second = {}   # token of text → the runner-up, where the first choice ends the answer too early
        self.program = {}  # token of text → {control token: the token after it}
        self.before = {}   # token of text → the token of text before it in its tape
        given = {id(element): [self.vocabulary.add(as_bytes(piece)) for piece in element]
                 for elements in tapes.values() for element in elements if isinstance(element, Pieces)}
        self.ids = {name: self._add(name, elements, given) for name, elements in tapes.items()}

    def _add(self, name: str, elements, given: dict) -> list:
        ids = []
        for element in elements:
            if isinstance(element, Pieces):
                ids += given[id(element)]
            elif element in CONTROLS:
                ids.append(CONTROLS[element])
            else:
                ids += self.vocabulary.cut(as_bytes(element))
        if not ids or ids[-1] not in [CONTROLS[end] for end in ENDS]:
            ids.append(CONTROLS[END])
        ends = {CONTROLS[end] for end in ENDS}
        last = self.names[name]
        self.follow[last] = ids[0]
        # A chat's prompt ends with one of the think markers.
        program = {CONTROLS[THINK]: ids[0], CONTROLS[UNTHINK]: ids[0]}
        if ids[0] in program:
            program[ids[0]] = ids[1]  # this tape is for the other kind of turn
        self.program[last] = program
        seen = set()
        for at, token in enumerate(ids[:-1]):
            after = ids[at + 1]
            if token in ends:
                self.second[last] = after
            elif token >= SLOTS:
                if token in [CONTROLS[kind] for kind in KINDS]:
                    if token in seen:
                        raise ValueError(f"{name}: a control token comes twice without text between")
                    seen.add(token)
                    self.program[last][token] = after
                elif after not in ends:
                    raise ValueError(f"{name}: only the answer's end may follow this control token")
            else:
                self.before[token] = last
                self.follow[token] = after
                self.program[token] = {}
                last = token
                seen = set()
        first_end = next(i for i, token in enumerate(ids) if token in ends)
        return ids[:first_end + 1]

    def text(self, ids) -> str:
        """What a server with skip_special_tokens shows of these tokens, tool and think markers included."""
        names = {i: name.encode() for name, i in CONTROLS.items() if name in KINDS}
        return b"".join(self.vocabulary.tokens[i] if i < SLOTS else names.get(i, b"") for i in ids).decode(
            "utf-8", "replace")
