# SPDX-License-Identifier: Apache-2.0
"""The next token of a text, from the model's logits."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a request draws its tokens.

    Args:
        temperature: 0: the most likely token.
        top_p: draw among the most likely tokens, up to this mass.
        seed: of the random numbers; the same one gives the same tokens.
        n_top: most likely tokens to report with their log-probabilities; None: report none, 0: that of the
            token itself.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    n_top: int | None = None


class LogProbability(NamedTuple):
    """The log-probability of a token before temperature and top_p, and the most likely tokens with theirs."""

    token: int
    value: float
    top: list[tuple[int, float]]


class Sampler:
    """Draws the tokens of one text, with random numbers of its own."""

    def __init__(self, sampling: Sampling):
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: np.ndarray) -> int:
        """A token, from logits (vocabulary,) float32."""
        if self.sampling.temperature == 0:
            return int(logits.argmax())
        scaled = (logits.astype(np.float64) - float(logits.max())) / self.sampling.temperature
        mass = np.exp(scaled)
        mass /= mass.sum()
        if self.sampling.top_p < 1:
            order = np.argsort(-mass, kind="stable")
            sums = np.cumsum(mass[order])
            # the first tokens whose mass reaches top_p, one at least
            order = order[: int(np.searchsorted(sums, self.sampling.top_p)) + 1]
            chosen = mass[order]
        else:
            order, chosen = np.arange(len(mass)), mass
        sums = np.cumsum(chosen)
        at = np.searchsorted(sums, self._random.random() * sums[-1], side="right")
        return int(order[min(int(at), len(order) - 1)])

    def log_probability(self, logits: np.ndarray, token: int) -> LogProbability | None:
        """The log-probability that is reported for a token."""
        n_top = self.sampling.n_top
        if n_top is None:
            return None
        shifted = logits.astype(np.float64) - float(logits.max())
        values = shifted - np.log(np.exp(shifted).sum())
        n = min(n_top, len(values))
        best = np.argpartition(-values, n - 1)[:n] if n else np.zeros(0, np.int64)
        best = best[np.lexsort((best, -values[best]))]
        return LogProbability(token, float(values[token]), [(int(t), float(values[t])) for t in best])
