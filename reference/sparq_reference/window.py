# SPDX-License-Identifier: Apache-2.0
"""The history of attention weights, by which window attention (ALISA, arXiv:2403.17312) selects.

The rules are those of docs/exactness.md, E11. Both twins share this module: `exact` keeps shares of attention
as integers, `ideal` as float64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparq_reference import checks
from sparq_reference.settings import Settings, WindowSettings

#: units of a share of attention: the attention of one head adds up to UNITS (E11)
UNITS = 1 << 16


class WindowSteps(NamedTuple):
    """Every intermediate of one window attention call."""

    positions: np.ndarray  #: (batch, min(top_k, seq_len)) int64, ascending, padded with -1
    counts: np.ndarray  #: (batch,) int64, positions that are not padding
    shares: np.ndarray  #: (batch, seq_len) of this step, over all heads; uint32 (exact), float64 (ideal)
    output: np.ndarray  #: (batch, n_heads, head_dim); float16 (exact), float64 (ideal)


class WindowHistory:
    """Shares of attention that positions got in the last `n_recent` steps (at least 1) of one layer. exact:
    integers, else float64."""

    def __init__(self, batch: int, n_recent: int, *, exact: bool = True) -> None:
        self.n_recent = n_recent
        self._dtype = np.uint32 if exact else np.float64
        #: of each batch element: the length at which a step was taken, and its shares; the newest last
        self._steps: list[list[tuple[int, np.ndarray]]] = [[] for _ in range(batch)]

    @property
    def n_steps(self) -> np.ndarray:
        """(batch,) int64: steps remembered."""
        return np.array([len(steps) for steps in self._steps], np.int64)

    def steps(self, element: int) -> list[np.ndarray]:
        """Shares of the steps remembered of an element, the oldest first: each (length at that step,)."""
        return [shares.copy() for _, shares in self._steps[element]]

    def sums(self, seq_len: int) -> np.ndarray:
        """(batch, seq_len): of the steps remembered, by position."""
        total = np.zeros((len(self._steps), seq_len), self._dtype)
        for b, steps in enumerate(self._steps):
            for length, shares in steps:
                total[b, :length] += shares
        return total

    def add(self, element: int, shares: np.ndarray) -> None:
        """One step of a batch element: shares (length,)."""
        steps = self._steps[element]
        steps.append((len(shares), np.array(shares, self._dtype)))
        del steps[: -self.n_recent]

    def truncate(self, lengths: np.ndarray) -> None:
        """Forget the steps that were taken at more than lengths[b] positions."""
        self._steps = [[s for s in steps if s[0] <= n] for steps, n in zip(self._steps, lengths)]

    def reorder(self, index: np.ndarray) -> None:
        """Batch element i becomes what element index[i] was."""
        self._steps = [list(self._steps[i]) for i in index]


def select_positions(
    sums: np.ndarray, settings: WindowSettings, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The last n_local positions and, of the others, those with the largest sums (batch, seq_len), equal sums
    by lower index; with n_recent 0, every n-th of the others, back from the last of them.

    Returns:
        positions (batch, min(top_k, seq_len)) int64, ascending, padded with -1, one set for all heads; and
        counts (batch,) int64, how many are not padding.
    """
    batch, seq_len = sums.shape
    positions = np.full((batch, min(settings.top_k, seq_len)), -1, np.int64)
    counts = np.zeros(batch, np.int64)
    for b, length in enumerate(lengths):
        most = min(settings.top_k, length)
        first_local = length - min(settings.n_local, most)
        n_best = most - (length - first_local)
        others = np.zeros(0, np.int64)
        if n_best and settings.n_recent:
            others = np.argsort(-sums[b, :first_local].astype(np.float64), kind="stable")[:n_best]
        elif n_best:
            stride = -(-first_local // n_best)
            others = np.arange(first_local - 1, -1, -stride)
        chosen = np.concatenate([np.sort(others), np.arange(first_local, length)])
        counts[b] = len(chosen)
        positions[b, : len(chosen)] = chosen
    return positions, counts


def check_history(op: str, history: WindowHistory | None, settings: WindowSettings, n_heads: int) -> None:
    """Raise ValueError unless n_heads heads can be counted and the history fits these settings."""
    if not settings.remembers:
        return
    settings.check_heads(op, n_heads)
    check_recent(op, 0 if history is None else history.n_recent, settings)


def check_recent(op: str, held: int, settings: Settings) -> None:
    """Raise ValueError unless a cache that remembers `held` steps, 0 if none came yet, is for these."""
    n_recent = 0 if settings is None else settings.n_remembered
    if n_recent and held not in (0, n_recent):
        checks.fail(op, "n_recent", f"be the n_recent={held} of the steps so far", n_recent)
