# SPDX-License-Identifier: Apache-2.0
"""Calls of tools in a model's text: how families of models write them, a grammar of them, and a parser."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any, Callable, Iterable, NamedTuple

from sparq_ipu.serve.text import overlap


class Style(NamedTuple):
    """How a family writes calls: texts around each name and its arguments.

    Args:
        mark: begins calls; empty if an answer is either text or a call.
        first: after it, before the first call. last: after the last call.
        name, arguments, end: before the name, before the arguments, and after them.
        between: of two calls; None: an answer contains one.
    """

    mark: str
    first: str
    name: str
    arguments: str
    end: str
    between: str | None
    last: str


_NAME = '{"name": "'
_ARGUMENTS = '", "arguments": '
_HERMES = Style(
    "<tool_call>", "\n", _NAME, _ARGUMENTS, "}\n</tool_call>", "\n<tool_call>\n", ""
)  # Qwen 2.5 and 3 too
_MISTRAL = Style("[TOOL_CALLS]", "[", _NAME, _ARGUMENTS, "}", ", ", "]")
_MISTRAL_SPACED = _MISTRAL._replace(first=" [")  # templates for SentencePiece
_MISTRAL_ARGS = Style("[TOOL_CALLS]", "", "", "[ARGS]", "", "[TOOL_CALLS]", "")
_GRANITE = Style("<|tool_call|>", "[", _NAME, _ARGUMENTS, "}", ", ", "]")
_PHI = _GRANITE._replace(last="]<|/tool_call|>")
_LLAMA = Style("", "", _NAME, '", "parameters": ', "}", None, "")
#: by what a template contains, the first that does; None: calls in another form
_STYLES: list[tuple[str, Style | None]] = [
    ("<function=", None),
    ("[ARGS]", _MISTRAL_ARGS),
    ("[TOOL_CALLS] [", _MISTRAL_SPACED),
    ("[TOOL_CALLS]", _MISTRAL),
    ("<tool_call>", _HERMES),
    ("<|tool_call|>", _GRANITE),
    ("<|tool|>", _PHI),
    ("<|python_tag|>", _LLAMA),
    ("dictionary of argument name and its value", _LLAMA),
]
#: may be single tokens of a model
_MARKS = re.compile(r"(<\|?/?tool_call\|?>|\[TOOL_CALLS\]|\[ARGS\])")


def style_of(template: str) -> Style | None:
    """How the model of a chat template writes calls; None: not in a way that is known."""
    if "tools" not in template:
        return None
    return next((style for text, style in _STYLES if text in template), None)


def grammar(
    style: Style | None,
    tools: dict[str, Any],
    answer: Any,
    needs_call: bool,
    is_one: bool,
    special: Callable[[str], int | None],
) -> str:
    """An answer as a grammar of llguidance.

    Args:
        tools: of each name, the JSON schema of its arguments.
        answer: the JSON schema of an answer that is no call; None: any text.
        needs_call: an answer is a call. is_one: of one tool.
        special: the token of a text that is a special token; None: it is none.
    """

    def lark(text: str) -> str:
        parts = [(part, special(part)) for part in _MARKS.split(text) if part]
        return " ".join(json.dumps(part) if token is None else f"<[{token}]>" for part, token in parts)

    rules = ["%llguidance {}"]
    starts = [] if needs_call else ["TEXT" if answer is None else "answer"]
    if answer is not None:
        rules.append(f"answer: %json {json.dumps(answer)}")
    if style is not None:
        more = "" if is_one or style.between is None else f"({lark(style.between)} call)*"
        begin, first = lark(style.mark), style.first
        if not needs_call and answer is None and style.mark:
            begin = "head"
            lazy = "" if special(style.mark) is not None else "[lazy]"
            rules.append(f"head{lazy}: TEXT {lark(style.mark)}")
        starts.append(f"{begin} {lark(first)} call {more} {lark(style.last)}")
        rules.append("call: " + " | ".join(f"call_{at}" for at in range(len(tools))))
        for at, (name, schema) in enumerate(tools.items()):
            call = f"call_{at}: {lark(style.name + name + style.arguments)} args_{at} {lark(style.end)}"
            rules += [f"args_{at}: %json {json.dumps(schema)}", call]
    # where a call begins with a brace, no text does
    text = r"[^{](.|\n)*|" if style is not None and not style.mark else r"(.|\n)*"
    return "\n".join([*rules, f"TEXT: /{text}/", "start: " + " | ".join(starts)])


class Calls:
    """The calls in one answer, as its text comes.

    Args:
        tools: their names.
    """

    def __init__(self, style: Style, tools: Iterable[str]):
        self._style = style
        self._begins = [style.name + name + style.arguments for name in tools]
        self._begin = re.compile("|".join(map(re.escape, self._begins)))
        self._state = "text"
        self._held = ""
        #: of the arguments that come: open brackets, inside of a string, behind a backslash
        self._depth, self._is_string, self._is_escaped = 0, False, False
        #: calls so far
        self.n = 0

    def push(self, text: str, is_last: bool = False) -> dict[str, Any]:
        """What more text adds to a message: `content`, and `tool_calls` in pieces with their `index`."""
        self._held += text
        content = ""
        calls: list[dict[str, Any]] = []
        if self._state == "text":
            content = self._text(is_last)
        while self._state != "text" and self._held:
            if self._state == "call":
                found = self._begin.search(self._held)
                if found is None:
                    break
                self._held, self._state = self._held[found.end() :], "arguments"
                name = found[0][len(self._style.name) : -len(self._style.arguments)]
                of_call = {"index": self.n, "id": uuid.uuid4().hex[:9], "type": "function"}
                calls.append({**of_call, "function": {"name": name, "arguments": ""}})
                self.n += 1
            else:
                if not calls:
                    calls.append({"index": self.n - 1, "function": {"arguments": ""}})
                calls[-1]["function"]["arguments"] += self._arguments()
        return {**({"content": content} if content else {}), **({"tool_calls": calls} if calls else {})}

    def _text(self, is_last: bool) -> str:
        """Text before the first call that is certain."""
        mark, held = self._style.mark, self._held
        if mark:
            at = held.find(mark)
            cut = at if at >= 0 else len(held) - (0 if is_last else overlap(held, mark))
            is_call = at >= 0
        else:
            is_call = any(held.startswith(begin) for begin in self._begins) and self.n == 0
            waits = not is_last and any(begin.startswith(held) for begin in self._begins)
            cut = 0 if is_call or waits else len(held)
            if cut:  # text does not become a call later
                self._begins = []
        text, self._held = held[:cut], held[cut:]
        if is_call:
            self._state = "call"
        return text

    def _arguments(self) -> str:
        """The arguments that are held, up to their end."""
        for at, character in enumerate(self._held):
            if self._is_escaped:
                self._is_escaped = False
            elif self._is_string:
                self._is_escaped, self._is_string = character == "\\", character != '"'
            else:
                self._is_string = character == '"'
                self._depth += (character in "{[") - (character in "}]")
                if self._depth == 0:
                    self._state = "call"
                    text, self._held = self._held[: at + 1], self._held[at + 1 :]
                    return text
        text, self._held = self._held, ""
        return text
