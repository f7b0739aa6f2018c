# SPDX-License-Identifier: Apache-2.0
"""What a task hands out: items (one context each) with probes (what is asked of it), and their scores."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any, Callable, Dict, Mapping, Optional, Protocol

import torch

from ..text import excerpts

QUESTIONS = ("dense", "sparse")


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, list[int]]:
        """`input_ids`: the tokens of a text."""
        ...

    def decode(self, ids: list[int]) -> str:
        """The text of tokens."""
        ...


@dataclasses.dataclass(frozen=True)
class Probe:
    """What is asked of a context.

    prompt: tokens after the context. target: the tokens that should follow; they are fed back even where the
        model predicts others (teacher forcing). scored: which target tokens count. labels: copied into the
        result.
    """

    prompt: list[int]
    target: list[int]
    scored: list[bool]
    labels: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Item:
    """One context with its probes.

    seq_len: length at the first scored token, at which transfers are compared.
    distance: tokens between the end of the context and the nearest thing to be found, at least; None if
        nothing is to be found.
    """

    task: str
    index: int
    context: list[int]
    probes: list[Probe]
    distance: int | None = None

    @property
    def seq_len(self) -> int:
        return len(self.context) + max(len(probe.prompt) for probe in self.probes)


class Words:
    """The tokenizer and the seeded randomness of one item.

    Pieces are tokenised one by one and concatenated, so that token counts are exact; no special tokens are
    added.
    """

    def __init__(self, tokenizer: Tokenizer, seed: str) -> None:
        self.tokenizer = tokenizer
        self.random = random.Random(seed)  # seeded by text: the same on every platform and Python version

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def chars(self, token: int) -> int:
        return len(self.tokenizer.decode([token]))

    def digits(self, n: int = 5) -> str:
        return "".join(self.random.choice("0123456789") for _ in range(n))

    def is_number(self, token: int) -> bool:
        return self.tokenizer.decode([token]).strip().isdigit()

    def filler(self, index: int, n_tokens: int, texts: str = "study") -> list[int]:
        """n_tokens of the index-th excerpt of a set of texts, from a seeded start.

        Where an excerpt is too short, as many of those before it as are needed come first.
        """
        found = excerpts(texts)
        tokens: list[int] = []
        for i in range(len(found)):
            tokens = self.encode(found[(index - i) % len(found)][1]) + tokens
            if n_tokens <= len(tokens):
                break
        else:
            raise ValueError(f"accuracy: length must be at most {len(tokens)} tokens of text, got {n_tokens}")
        start = self.random.randrange(len(tokens) - n_tokens + 1)
        return tokens[start : start + n_tokens]


def insert(filler: list[int], pieces: list[tuple[float, list[int]]]) -> tuple[list[int], int]:
    """(`filler` with each (depth, tokens) put in at that fraction of it, tokens after the last piece)."""
    out: list[int] = []
    at = 0
    for depth, tokens in sorted(pieces, key=lambda piece: piece[0]):
        stop = int(depth * len(filler))
        out += filler[at:stop] + tokens
        at = stop
    return out + filler[at:], len(filler) - at


# (probe, log_probs (n_target, vocab), log_probs of dense or None, words) -> sums, to be added over probes.
Scorer = Callable[[Probe, torch.Tensor, Optional[torch.Tensor], Words], Dict[str, float]]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A ratio of two sums of a scorer, e.g. hits / n; `better`: "high" or "low"; `digits` printed.

    most: the largest possible value; the least is 0.
    from_dense: it is a distance from dense attention already, so nothing is gained by subtracting dense's 0.
    """

    name: str
    over: str
    under: str
    better: str
    digits: int = 3
    text: str = ""
    from_dense: bool = False
    most: float = math.inf


@dataclasses.dataclass(frozen=True)
class Task:
    """name; build(tokenizer, index, seed, **sizes) -> Item; score; metrics, the first the main one.

    The sizes of a task on running text have `texts`, the set that it is from (`text.TEXTS`).
    questions: ways to process the prompt: "dense" (prefilled, only the answer is sparse) and/or "sparse"
        (decoded by the method).
    needs_dense: the scorer wants dense log-probabilities too.
    """

    name: str
    summary: str
    build: Callable[..., Item]
    score: Scorer
    metrics: tuple[Metric, ...]
    questions: tuple[str, ...]
    needs_dense: bool = False
