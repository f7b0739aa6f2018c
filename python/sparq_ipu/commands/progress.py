# SPDX-License-Identifier: Apache-2.0
"""Progress of a long command, on stderr."""

from __future__ import annotations

import sys
import time


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
