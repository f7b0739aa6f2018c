# SPDX-License-Identifier: Apache-2.0
"""Text from tokens as they come, up to a stop string."""

from __future__ import annotations

from typing import Any, Sequence

#: what a tokenizer says of bytes that are no character yet
_NO_CHARACTER = "\ufffd"


class TextStream:
    """The text of one answer.

    A token can be a part of a character, and a stop string can begin in one token and end in another. So text
    is held back until it is certain.

    Args:
        tokenizer: of transformers.
        stops: strings that end the text; they are not part of it.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()):
        self._tokenizer = tokenizer
        self._stops = [stop for stop in stops if stop]
        self._tokens: list[int] = []
        #: tokens before `_begin` are text for good; those before `_end` are in `_held` or were given
        self._begin = self._end = 0
        self._held = ""
        #: a stop string came
        self.is_stopped = False

    def push(self, token: int) -> str:
        """Text that is certain with one more token."""
        self._tokens.append(token)
        return self._take(self._new_text(is_last=False), is_last=False)

    def finish(self) -> str:
        """The rest; no more tokens come."""
        return "" if self.is_stopped else self._take(self._new_text(is_last=True), is_last=True)

    def _decode(self, begin: int, end: int) -> str:
        text: str = self._tokenizer.decode(self._tokens[begin:end], skip_special_tokens=True)
        return text

    def _new_text(self, is_last: bool) -> str:
        # Decoded with a few tokens before them, for a tokenizer may join tokens with spaces.
        before = self._decode(self._begin, self._end)
        text = self._decode(self._begin, len(self._tokens))
        if not is_last and (len(text) <= len(before) or text.endswith(_NO_CHARACTER)):
            return ""
        self._begin, self._end = self._end, len(self._tokens)
        return text[len(before) :]

    def _take(self, new: str, is_last: bool) -> str:
        self._held += new
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.is_stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        n_back = 0 if is_last else max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - n_back
        text, self._held = self._held[:cut], self._held[cut:]
        return text


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` that `stop` begins with."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
