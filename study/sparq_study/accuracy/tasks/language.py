# SPDX-License-Identifier: Apache-2.0
"""Language modelling and repetition of a passage."""

from __future__ import annotations

import math

import torch

from .item import Item, Metric, Probe, Task, Tokenizer, Words

LN2 = math.log(2)


def build_lm(
    tokenizer: Tokenizer, index: int, seed: int, *, length: int = 3584, span: int = 96, texts: str = "study"
) -> Item:
    """`length` tokens of text, then `span` more to predict.

    The last token of the text is the prompt, so that the method decodes every prediction.
    """
    words = Words(tokenizer, f"lm {seed} {index}")
    tokens = words.filler(index, length + span, texts)
    return Item(
        "lm", index, tokens[: length - 1], [Probe([tokens[length - 1]], tokens[length:], [True] * span)]
    )


def score_lm(
    probe: Probe, log_probs: torch.Tensor, dense: torch.Tensor | None, words: Words
) -> dict[str, float]:
    """Sums over tokens: bits, characters, KL(dense || method) in nats, agreement of the most likely token."""
    assert dense is not None
    target = torch.tensor(probe.target)[:, None]
    return {
        "n": len(probe.target),
        "bits": -log_probs.gather(1, target).sum().item() / LN2,
        "chars": sum(words.chars(token) for token in probe.target),
        "kl": (dense.exp() * (dense - log_probs)).sum().item(),
        "same": (dense.argmax(1) == log_probs.argmax(1)).sum().item(),
    }


def build_repetition(
    tokenizer: Tokenizer,
    index: int,
    seed: int,
    *,
    length: int = 2800,
    passages: int = 2,
    cue: int = 64,
    span: int = 64,
    texts: str = "study",
) -> Item:
    """A text, then the beginning (`cue` tokens) of passages of it, to be continued for `span` tokens.

    The passages stand at 10 to 50 % of the text.
    """
    words = Words(tokenizer, f"repetition {seed} {index}")
    context = words.filler(index, length, texts)
    probes = []
    for i in range(passages):
        # One in each equal part of the range, so that passages do not overlap by chance.
        depth = 0.1 + 0.4 * (i + words.random.random()) / passages
        start = int(depth * length)
        prompt = words.encode("\n\n") + context[start : start + cue]
        target = context[start + cue : start + cue + span]
        probes.append(Probe(prompt, target, [True] * span, {"depth": round(depth, 3)}))
    return Item("repetition", index, context, probes, length - (start + cue + span))


def score_repetition(
    probe: Probe, log_probs: torch.Tensor, dense: torch.Tensor | None, words: Words
) -> dict[str, float]:
    """Correct next tokens, bits, and characters matched before the first miss.

    The last is a mean over starts in the first half of the span.
    """
    target = torch.tensor(probe.target)
    hits = (log_probs.argmax(1) == target).tolist()
    lengths = [words.chars(token) for token in probe.target]
    starts = range(len(hits) // 2)
    run = 0.0
    for start in starts:
        for hit, length in zip(hits[start:], lengths[start:]):
            if not hit:
                break
            run += length
    return {
        "n": len(hits),
        "hits": sum(hits),
        "bits": -log_probs.gather(1, target[:, None]).sum().item() / LN2,
        "chars": sum(lengths),
        "run_chars": run / len(starts),
        "probes": 1,
    }


LM = Task(
    "lm",
    "language modelling: bits per character, KL from dense, agreement of the most likely token",
    build_lm,
    score_lm,
    (
        Metric("KL", "kl", "n", "low", 4, "mean KL(dense || method) of the next token, nats", True),
        Metric("BPC", "bits", "chars", "low", 4, "bits per character of the text"),
        Metric(
            "top-1",
            "same",
            "n",
            "high",
            3,
            "share of positions whose most likely token is dense attention's",
            most=1.0,
        ),
    ),
    ("sparse",),
    needs_dense=True,
)
REPETITION = Task(
    "repetition",
    "continue a passage that stands earlier in the context (its beginning is given, processed densely)",
    build_repetition,
    score_repetition,
    (
        Metric("accuracy", "hits", "n", "high", 3, "next-token accuracy, teacher-forced", most=1.0),
        Metric("run", "run_chars", "probes", "high", 1, "characters before divergence"),
        Metric("BPC", "bits", "chars", "low", 3, "bits per character of the repeated text"),
    ),
    ("dense",),
)
