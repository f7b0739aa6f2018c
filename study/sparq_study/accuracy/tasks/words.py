# SPDX-License-Identifier: Apache-2.0
"""Aggregation: which words of a long list are the common ones (common words, frequent coded words).

A small model hardly answers such a question in words, so its next-token logits are ranked: does a common word
stand above a rare one?
"""

from __future__ import annotations

import torch

from .item import QUESTIONS, Item, Metric, Probe, Task, Tokenizer, Words

QUESTION = (
    "\n\nQuestion: which {kind} appear most often in the list?"
    "\nAnswer: the most frequent words in the list are"
)
NOUNS = (
    "apple arrow basket beach bell bird boat book bottle box bread bridge brush butter button cake "
    "camera candle carpet castle chair chalk cheese church clock cloud coat coffee coin corn cotton cow "
    "cup desk diamond dog door dress drum duck eagle egg engine farm feather fence field fire fish flag "
    "flower forest fork fox frog garden gate ghost glass glove goat gold grape grass guitar hammer hat "
    "hill honey horse house ice iron island jacket jar kettle key king knife lake lamp leaf lemon "
    "letter lion map market milk mirror moon mountain needle nest net ocean onion orange paint paper "
    "pearl pen pencil pepper piano pig pillow plate pocket potato queen rabbit rain ribbon ring river "
    "road rope rose salt sand school sheep shell ship shirt shoe silver snow soap sock spoon star stone "
    "storm sugar sun table tent tiger tower train tree truck umbrella valley violin wagon wall watch "
    "wheel window wine wolf wool"
).split()


def _distinct(words: Words, candidates: list[str], n: int) -> list[tuple[str, int]]:
    """The first n candidates whose first tokens all differ, each with that token."""
    chosen: dict[int, str] = {}
    for word in candidates:
        chosen.setdefault(words.encode(f" {word}")[0], word)
        if len(chosen) == n:
            return [(word, token) for token, word in chosen.items()]
    raise ValueError(f"accuracy: rare must leave enough distinct words, got {n} of {len(candidates)} wanted")


def _item(
    words: Words, task: str, index: int, counts: dict[str, int], tokens: dict[str, int], top: int, prompt: str
) -> Item:
    listing = [word for word, count in counts.items() for _ in range(count)]
    words.random.shuffle(listing)
    context = words.encode("Here is a list of words:")
    for i, word in enumerate(listing, 1):
        context += words.encode(f"\n{i}. {word}")
    ranked = sorted(counts, key=lambda word: -counts[word])
    labels = {"common": [tokens[w] for w in ranked[:top]], "rare": [tokens[w] for w in ranked[top:]]}
    # Only the token after the prompt is scored; the target is the commonest word.
    return Item(task, index, context, [Probe(words.encode(prompt), [tokens[ranked[0]]], [True], labels)])


def build_common(
    tokenizer: Tokenizer,
    index: int,
    seed: int,
    *,
    common: int = 5,
    common_count: int = 30,
    rare: int = 75,
    rare_count: int = 3,
) -> Item:
    """A shuffled numbered list: `common` words `common_count` times each, `rare` words `rare_count` times."""
    words = Words(tokenizer, f"common {seed} {index}")
    chosen = _distinct(words, words.random.sample(NOUNS, len(NOUNS)), common + rare)
    counts = {word: common_count if i < common else rare_count for i, (word, _) in enumerate(chosen)}
    prompt = QUESTION.format(kind="words")
    return _item(words, "common", index, counts, dict(chosen), common, prompt)


def build_frequent(
    tokenizer: Tokenizer,
    index: int,
    seed: int,
    *,
    vocabulary: int = 60,
    length: int = 240,
    exponent: float = 1.0,
) -> Item:
    """Invented words, the i-th commonest in proportion to 1 / i^exponent, about `length` in all.

    The first three count as common.
    """
    words = Words(tokenizer, f"frequent {seed} {index}")
    letters = "abcdefghijklmnoprstuvwz"
    made = ["".join(words.random.choice(letters) for _ in range(6)) for _ in range(30 * vocabulary)]
    chosen = _distinct(words, made, vocabulary)
    total = sum(i**-exponent for i in range(1, vocabulary + 1))
    counts = {
        word: max(1, round(length * i**-exponent / total)) for i, (word, _) in enumerate(chosen, start=1)
    }
    prompt = QUESTION.format(kind="coded words")
    return _item(words, "frequent", index, counts, dict(chosen), 3, prompt)


def score_ranking(
    probe: Probe, log_probs: torch.Tensor, dense: torch.Tensor | None, words: Words
) -> dict[str, float]:
    """Share of (common, rare) pairs ranked rightly, and whether the best candidate is a common word."""
    row = log_probs[0]
    common, rare = row[probe.labels["common"]], row[probe.labels["rare"]]
    pairs = (common[:, None] > rare[None, :]).float() + 0.5 * (common[:, None] == rare[None, :]).float()
    return {"auc": pairs.mean().item(), "top": float((common.max() > rare.max()).item()), "probes": 1}


_METRICS = (
    Metric(
        "ranking",
        "auc",
        "probes",
        "high",
        3,
        "pairs of a common and a rare word ranked rightly; chance 0.5",
        most=1.0,
    ),
    Metric("best", "top", "probes", "high", 2, "lists whose likeliest listed word is a common one", most=1.0),
)
COMMON = Task("common", "which words of a list are common", build_common, score_ranking, _METRICS, QUESTIONS)
FREQUENT = Task(
    "frequent", "which invented words are frequent", build_frequent, score_ranking, _METRICS, QUESTIONS
)
