# SPDX-License-Identifier: Apache-2.0
"""The next token of a text, from the model's logits."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Sequence

import numpy as np

#: tokens whose mass is added before one of them is drawn: sums one after the other take long
_BLOCK = 256


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a request draws its tokens.

    Args:
        temperature: 0: the most likely token.
        top_p: draw among the most likely tokens, up to this mass.
        seed: of the random numbers; the same one gives the same tokens.
        n_top: most likely tokens to report with their log-probabilities; None: report none, 0: that of the
            token itself.
        top_k: draw among this many of the most likely tokens; 0: of all.
        min_p: draw among tokens at least this fraction as likely as the most likely one.
        presence: subtracted from the logits of tokens in the answer. frequency: the same, for each time.
        repetition: divides positive logits of tokens in the prompt and the answer, multiplies negative ones.
        bias: by token, the number added to its logit.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    n_top: int | None = None
    top_k: int = 0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: tuple[tuple[int, float], ...] = ()


class LogProbability(NamedTuple):
    """The log-probability that the model gives a token, and the most likely tokens with theirs. The first
    token of a prompt has none."""

    token: int
    value: float | None
    top: list[tuple[int, float]]


class Sampler:
    """Draws the tokens of one text, with random numbers of its own.

    Args:
        prompt: tokens before the answer.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int] | np.ndarray = ()):
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)
        self._repeats = sampling.repetition != 1
        self._penalises = self._repeats or bool(sampling.presence or sampling.frequency)
        #: tokens that are penalised, and how often the answer contains them
        self._counts = dict.fromkeys(np.unique(prompt).tolist(), 0) if self._repeats else {}
        self._bias = tuple(np.array(part) for part in zip(*sampling.bias))

    def choose(self, logits: np.ndarray, allowed: np.ndarray | None = None) -> int:
        """The next token, from logits (vocabulary,) float32.

        Args:
            allowed: the tokens that may be chosen, ascending; None: all.
        """
        logits = self._adjusted(logits)
        token = self._draw(logits) if allowed is None else int(allowed[self._draw(logits[allowed])])
        if self._penalises:
            self._counts[token] = self._counts.get(token, 0) + 1
        return token

    def _adjusted(self, logits: np.ndarray) -> np.ndarray:
        if not (self._counts or self._bias):
            return logits
        logits = logits.copy()
        if self._bias:
            logits[self._bias[0]] += self._bias[1]
        if self._counts:
            tokens = np.fromiter(self._counts, np.int64)
            counts = np.fromiter(self._counts.values(), np.int64)
            values, factor = logits[tokens], self.sampling.repetition
            values = np.where(values > 0, values / factor, values * factor)
            values -= self.sampling.presence * (counts > 0) + self.sampling.frequency * counts
            logits[tokens] = values
        return logits

    def _draw(self, logits: np.ndarray) -> int:
        of = self.sampling
        if of.temperature == 0:
            return int(logits.argmax())
        mass = logits.astype(np.float64)  # of the most likely one: 1
        mass -= mass.max()
        mass /= of.temperature
        np.exp(mass, out=mass)
        if of.min_p:
            mass[mass < of.min_p] = 0
        if 0 < of.top_k < len(mass):
            mass[np.argpartition(-mass, of.top_k - 1)[of.top_k :]] = 0
        if of.top_p < 1:
            total = mass.sum()
            # all others together have less than the rest
            order = np.flatnonzero(mass >= (1 - of.top_p) * total / len(mass))
            order = order[np.argsort(-mass[order], kind="stable")]
            # the first tokens that reach a mass of top_p, one at least
            order = order[: int(np.searchsorted(np.cumsum(mass[order]), of.top_p * total)) + 1]
            mass, every = np.zeros_like(mass), mass
            mass[order] = every[order]
        blocks = np.add.reduceat(mass, np.arange(0, len(mass), _BLOCK))
        block, rest = _reached(blocks, self._random.random() * float(blocks.sum()))
        begin = block * _BLOCK
        return begin + _reached(mass[begin : begin + _BLOCK], rest)[0]

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


def _reached(mass: np.ndarray, sought: float) -> tuple[int, float]:
    """Where sums of mass exceed a number, at the latest where the last one does, and what is left of it."""
    sums = np.cumsum(mass)
    at = int(np.searchsorted(sums, min(sought, np.nextafter(sums[-1], 0)), side="right"))
    return at, sought - (float(sums[at - 1]) if at else 0.0)
