# SPDX-License-Identifier: Apache-2.0
"""Text from tokens as they come, up to a stop string."""

from __future__ import annotations

import re
from typing import Any, Sequence

from transformers.convert_slow_tokenizer import bytes_to_unicode

#: the text of a tokenizer for bytes that are no character yet
_NO_CHARACTER = "\ufffd"


#: characters that vocabularies of bytes write for them (GPT-2)
_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]


class TokenNames:
    """The text of single tokens, also of those that are a part of a character.

    Args:
        tokenizer: of transformers.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self._known: dict[int, tuple[str, bytes]] = {}

    def of(self, token: int) -> tuple[str, bytes]:
        """Its name, with "\\x.." for bytes that are no text alone, and its bytes."""
        if token not in self._known:
            content = self._bytes(token)
            try:
                name = content.decode()
            except UnicodeDecodeError:
                name = "".join(f"\\x{byte:02x}" for byte in content)
            self._known[token] = name, content
        return self._known[token]

    def _bytes(self, token: int) -> bytes:
        text: str = self.tokenizer.decode([token])
        piece: str | None = self.tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return text.encode()
        if re.fullmatch("<0x[0-9A-F]{2}>", piece) and text != piece:  # of SentencePiece
            return bytes([int(piece[3:5], 16)])
        if all(character in _BYTES for character in piece):
            content = bytes(_BYTES[character] for character in piece)
            if content.decode(errors="replace") == text:
                return content
        return (piece.replace("\u2581", " ") if text.lstrip() == piece.lstrip("\u2581") else text).encode()


class TextStream:
    """The text of one answer.

    A token can be a part of a character, and a stop string can begin in one token and end in another. So text
    is held back until it is certain.

    Args:
        tokenizer: of transformers.
        stops: strings that end the text; they are not part of it.
        before: tokens that the text continues; a tokenizer may join both with a space.
        skips_special: special tokens are no text.
    """

    def __init__(
        self,
        tokenizer: Any,
        stops: Sequence[str] = (),
        before: Sequence[int] = (),
        skips_special: bool = True,
    ):
        self._tokenizer = tokenizer
        self._skips_special = skips_special
        self._stops = [stop for stop in stops if stop]
        self._tokens = list(before)
        #: tokens before `_begin` are text for good; those before `_end` are in `_held` or were given
        self._begin, self._end = 0, len(before)
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
        tokens = self._tokens[begin:end]
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=self._skips_special)
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
        n_back = 0 if is_last else max((overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - n_back
        text, self._held = self._held[:cut], self._held[cut:]
        return text


def overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` that `stop` begins with."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
