# SPDX-License-Identifier: Apache-2.0
"""Progress of a long command, on stderr."""

from __future__ import annotations

import sys
import time

#: seconds between two lines about a prompt
EVERY = 5.0


class PromptProgress:
    """How far a prompt of `n_tokens` is read, `n_held` of which are not read again."""

    def __init__(self, n_tokens: int, n_held: int = 0):
        self.n_tokens, self.n_held = n_tokens, n_held
        self.n_read = 0.0
        self._start = self._said = time.perf_counter()

    @property
    def is_done(self) -> bool:
        """All of it is read, but for rounding."""
        return self.n_held + self.n_read > self.n_tokens - 1e-3

    def is_due(self, every: float) -> bool:
        """Whether the last line is that many seconds old; if so, this one counts as the last."""
        now = time.perf_counter()
        if now - self._said < every:
            return False
        self._said = now
        return True

    def __str__(self) -> str:
        seconds = max(time.perf_counter() - self._start, 1e-9)
        rate = self.n_read / seconds
        done = self.n_held + self.n_read
        left = "" if self.is_done else f", about {(self.n_tokens - done) / max(rate, 1e-9):.0f} s left"
        return f"prompt: {done:.0f} of {self.n_tokens} tokens, {rate:.0f} tokens/s{left}"


class Progress:
    """Lines on stderr: which step, how long it took."""

    def __init__(self) -> None:
        self._begin = self._start = time.perf_counter()
        self._step: str | None = None

    def step(self, text: str | None) -> None:
        """The step before this one is over. None: nothing follows for now."""
        now = time.perf_counter()
        if self._step is not None:
            print(f"\r{self._step} {now - self._start:.1f} s", file=sys.stderr, flush=True)
        self._step, self._start = text, now
        if text is not None:
            print(f"{text} ...", end="", file=sys.stderr, flush=True)

    def line(self, text: str) -> None:
        """Something else to say."""
        self.step(None)
        print(text, file=sys.stderr, flush=True)

    def count(self, done: int, total: int) -> None:
        """So many of many steps of one kind: how long the others may take."""
        passed = time.perf_counter() - self._begin
        left = passed / max(done, 1) * (total - done)
        text = f"\r{done}/{total}, {passed:.0f} s, about {left:.0f} s left "
        print(text, end="\n" if done == total else "", file=sys.stderr, flush=True)
