# SPDX-License-Identifier: Apache-2.0
"""Which place a request gets, and what of its prompt is held somewhere already.

A place keeps the prompt of its last request. Of the answer it keeps nothing: its tokens came with SparQ
attention, and in a later prompt they are read densely, as every prompt is. So an answer does not depend on
what was asked before. What was used longest ago is forgotten first, as a whole, and only when its place is
needed.
"""

from __future__ import annotations

from typing import Callable, Sequence

import numpy as np


class Place:
    """Room for one text.

    Attributes:
        tokens: the tokens of a prompt with keys and values in this place.
        used: when a request had it last, by a counter; 0: never.
        is_free: no request has it.
    """

    def __init__(self, index: int):
        self.index = index
        self.tokens = np.zeros(0, np.int64)
        self.used = 0
        self.is_free = True


def common(one: np.ndarray, other: np.ndarray) -> int:
    """How many tokens two texts begin with in common."""
    n = min(len(one), len(other))
    different = np.flatnonzero(one[:n] != other[:n])
    return int(different[0]) if len(different) else n


def longest(
    places: Sequence[Place],
    tokens: np.ndarray,
    multiple_of: int,
    shortest: Callable[[int], int] = lambda _: 0,
) -> tuple[Place | None, int]:
    """The place that holds most of the beginning of a prompt, and how much of it can be used: a multiple of
    `multiple_of`, at least the `shortest` of the place, and not the last token, after which the model is
    asked."""
    best: Place | None = None
    most = 0
    for place in places:
        usable = min(common(place.tokens, tokens), len(tokens) - 1) // multiple_of * multiple_of
        if usable < shortest(place.index):
            continue
        # of two that hold as much, the one that loses least by it
        if usable > most or (best is not None and usable == most and len(place.tokens) < len(best.tokens)):
            best, most = place, usable
    return best, most


def choose(
    places: Sequence[Place],
    tokens: np.ndarray,
    multiple_of: int,
    shortest: Callable[[int], int] = lambda _: 0,
    cheap: int | None = None,
) -> Place | None:
    """The place for a new prompt: the one with the text that it continues, if fewer than multiple_of tokens
    of it are lost by that, or fewer than `cheap` and no more than are reused; else the least recently used.
    None if no place is free."""
    free = [place for place in places if place.is_free]
    if not free:
        return None
    best, most = longest(free, tokens, multiple_of, shortest)
    if best is not None:
        lost = len(best.tokens) - most
        if lost < multiple_of or (lost < (cheap or 0) and lost <= most):
            return best
    return min(free, key=lambda place: (place.used, place.index))
