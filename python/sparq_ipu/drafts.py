# SPDX-License-Identifier: Apache-2.0
"""Drafts of the next tokens of a text, from the text itself: what followed its last tokens where they came
before, as in quotations and edits. A model checks a draft in one pass, with a row for each token.

A pass of several rows takes longer than one of a single row. Whether it pays depends on text, model and
machine. So `Pace` measures passes and `Drafts` counts what was right; a draft has the length at which most
tokens a second are expected, often 0.
"""

from __future__ import annotations

import collections
from typing import Sequence

import numpy as np

#: tokens that must have come before
_NGRAM = 3
#: lengths of drafts
_LENGTHS = (0, 1, 2, 4, 8, 15)
#: most tokens of a draft
MOST = _LENGTHS[-1]
#: chance that a drafted token is right, before any was checked
_CHANCE = 0.6
#: weight of a checked token in that chance; of _CHANCE itself where none is drafted, so it is tried again
_LEARNS, _FORGETS = 0.1, 0.01


class Pace:
    """Seconds of passes by their number of rows."""

    def __init__(self) -> None:
        self._times: dict[int, collections.deque[float]] = {}

    def took(self, n_rows: int, seconds: float) -> None:
        """A pass was made. The first of its number of rows does not count: it sets up what later ones use."""
        if n_rows in self._times:
            self._times[n_rows].append(seconds)
        else:
            self._times[n_rows] = collections.deque(maxlen=5)

    def __bool__(self) -> bool:
        return any(self._times.values())

    def seconds(self, n_rows: int) -> float:
        """Of a pass, between those that were measured. More rows than that are expected to cost nothing, so
        they are tried."""
        known = sorted(n for n, times in self._times.items() if times)
        # one that was slow by chance counts nothing
        return float(np.interp(n_rows, known, [min(self._times[n]) for n in known]))


class Drafts:
    """Drafts of one text, `tokens` so far; `pace` is that of the model's passes."""

    def __init__(self, tokens: Sequence[int], pace: Pace):
        self._pace = pace
        self._text = list(tokens)
        #: by the tokens before it, the last place of the token after them; of the places below `_indexed`
        self._after: dict[tuple[int, ...], int] = {}
        self._indexed = _NGRAM
        self._chance = _CHANCE
        #: drafted tokens that were checked, and those that were right
        self.n_drafted = self.n_accepted = 0

    def push(self, token: int) -> None:
        """The next token of the text."""
        self._text.append(token)

    def draft(self, most: int, n_rows: int = 1) -> list[int]:
        """At most `most` tokens that may come next; none where a pass of n_rows, without them, is expected to
        be faster."""
        if not self._pace:  # the first token of a long prompt does not wait for the index
            return []
        text, end = self._text[self._indexed - _NGRAM :], len(self._text)
        grams = zip(*(text[i:] for i in range(_NGRAM)))
        self._after.update(zip(grams, range(self._indexed, end)))
        self._indexed = max(self._indexed, end)
        at = self._after.get(tuple(self._text[-_NGRAM:]))
        if at is None:
            return []
        found = self._text[at : at + max(min(most, MOST), 0)]

        def rate(n: int) -> float:
            right = sum(self._chance**i for i in range(1, n + 1))
            return (n_rows + right) / self._pace.seconds(n_rows + n)

        n = max((n for n in {*_LENGTHS, len(found)} if n <= len(found)), key=rate)
        if n == 0:
            self._chance += _FORGETS * (_CHANCE - self._chance)
        return found[:n]

    def took(self, n_drafted: int, n_accepted: int) -> None:
        """A draft of this length was checked; its first tokens were right."""
        self.n_drafted += n_drafted
        self.n_accepted += n_accepted
        for is_right in [1.0] * n_accepted + [0.0] * (n_accepted < n_drafted):
            self._chance += _LEARNS * (is_right - self._chance)
