# SPDX-License-Identifier: Apache-2.0
"""Needles in a haystack (one, many keys, many values) and variable tracking, with five-digit answers.

Everything to be found stands in the first 55 % of the context: outside the window of every method that reads
at most 45 % of it.
"""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import torch

from .item import QUESTIONS, Item, Metric, Probe, Task, Tokenizer, Words, insert

DEEPEST = 0.55
CITIES = (
    "Paris Rome Madrid Lisbon Vienna Berlin Oslo Dublin Athens Cairo Lima Havana Tokyo Seoul Delhi Moscow "
    "London Geneva Boston Chicago Dallas Denver Miami Toronto Sydney Naples Venice Prague Warsaw Munich"
).split()


def _answer(words: Words, prompt: str, answer: str, **labels: Any) -> Probe:
    target = words.encode(answer)
    return Probe(words.encode(prompt), target, [words.is_number(token) for token in target], labels)


def needle(words: Words, city: str, number: str) -> list[int]:
    """The sentences that tell of a city's number, as tokens."""
    return words.encode(
        f"\nThe secret number of {city} is {number}. Remember it: the secret number of {city} is {number}.\n"
    )


def build_needle(
    tokenizer: Tokenizer,
    index: int,
    seed: int,
    *,
    lengths: tuple[int, ...] = (1536, 2304, 3072),
    depths: tuple[float, ...] = (0.05, 0.2, 0.35, 0.5),
    texts: str = "study",
) -> Item:
    """One needle; item `index` takes length index % len(lengths) and then the depths in turn."""
    words = Words(tokenizer, f"needle {seed} {index}")
    length = lengths[index % len(lengths)]
    depth = depths[index // len(lengths) % len(depths)]
    city, number = words.random.choice(CITIES), words.digits()
    told = needle(words, city, number)
    context, distance = insert(words.filler(index, length - len(told), texts), [(depth, told)])
    probe = _answer(words, f"\n\nThe secret number of {city} is", f" {number}", depth=depth, length=length)
    return Item("needle", index, context, [probe], distance)


#: places, as fractions of the text, and the tokens that are put in there
Pieces = List[Tuple[float, List[int]]]


def _depth(place: float, n: int) -> float:
    """Of place 0 to n, evenly over the part of the context that has something to be found."""
    return 0.03 + (DEEPEST - 0.03) * place / n


def _item(
    task: str, index: int, words: Words, length: int, texts: str, told: Pieces, asked: list[Probe]
) -> Item:
    """A text of `length` tokens, with what is told in it."""
    filler = words.filler(index, length - sum(len(tokens) for _, tokens in told), texts)
    context, distance = insert(filler, told)
    return Item(task, index, context, asked, distance)


def _keys(words: Words, length: int, cities: Sequence[str]) -> tuple[Pieces, list[Probe]]:
    """A needle of each city, each asked for."""
    keys = len(cities)
    numbers = [words.digits() for _ in cities]
    depths = [_depth(i, keys) for i in range(keys)]
    told = [(depth, needle(words, city, number)) for depth, city, number in zip(depths, cities, numbers)]
    asked = [
        _answer(
            words, f"\n\nThe secret number of {city} is", f" {number}", depth=round(depth, 3), length=length
        )
        for city, number, depth in zip(cities, numbers, depths)
    ]
    return told, asked


def _values(words: Words, length: int, cities: Sequence[str], values: int) -> tuple[Pieces, list[Probe]]:
    """`values` needles for each city, far apart; all values of a city are asked for."""
    keys = len(cities)
    numbers = {city: [words.digits() for _ in range(values)] for city in cities}
    told = []
    for i in range(values):
        for j, city in enumerate(cities):
            depth = _depth(i * keys + j, keys * values)
            told.append((depth, words.encode(f"\nA secret number of {city} is {numbers[city][i]}.\n")))
    asked = []
    for city in cities:
        sentence = f"A secret number of {city} is"
        answer = f". {sentence} ".join(numbers[city])
        asked.append(_answer(words, f"\n\n{sentence}", f" {answer}", length=length))
    return told, asked


def _chains(words: Words, length: int, chains: int, hops: int) -> tuple[Pieces, list[Probe]]:
    """Variables set to a number, then copied `hops` times to other variables.

    The way back from the last variable is asked for. The answer is the chain itself, "the value of variable
    B. The value of variable B is 51342". The names looked up and the digits are scored.
    """
    # no A, I, O: they are words of the text
    letters = words.random.sample("BCDEFGHJKLMNPQRSTUVWXYZ", chains * (hops + 1))
    told, asked = [], []
    for chain in range(chains):
        names = letters[chain * (hops + 1) : (chain + 1) * (hops + 1)]
        number = words.digits()
        for hop, name in enumerate(names):
            depth = _depth(hop * chains + chain, chains * (hops + 1))
            held = f"the value of variable {names[hop - 1]}" if hop else number
            told.append((depth, words.encode(f"\nThe value of variable {name} is {held}.\n")))
        prompt = words.encode(f"\n\nThe value of variable {names[-1]} is")
        target, scored = [], []
        for before in reversed(names[:-1]):
            for text, counts in (
                (" the value of variable", False),
                (f" {before}", True),
                (f". The value of variable {before} is", False),
            ):
                tokens = words.encode(text)
                target += tokens
                scored += [counts] * len(tokens)
        digits = words.encode(f" {number}")
        target += digits
        scored += [words.is_number(token) for token in digits]
        asked.append(Probe(prompt, target, scored, {"length": length}))
    return told, asked


def build_multikey(
    tokenizer: Tokenizer, index: int, seed: int, *, length: int = 2560, keys: int = 6, texts: str = "study"
) -> Item:
    """`keys` needles of different cities, each asked for."""
    words = Words(tokenizer, f"multikey {seed} {index}")
    return _item(
        "multikey", index, words, length, texts, *_keys(words, length, words.random.sample(CITIES, keys))
    )


def build_multivalue(
    tokenizer: Tokenizer,
    index: int,
    seed: int,
    *,
    length: int = 2560,
    keys: int = 2,
    values: int = 3,
    texts: str = "study",
) -> Item:
    """`values` needles for each of `keys` cities, far apart.

    All values of a city are asked for, in order of appearance.
    """
    words = Words(tokenizer, f"multivalue {seed} {index}")
    told = _values(words, length, words.random.sample(CITIES, keys), values)
    return _item("multivalue", index, words, length, texts, *told)


def build_tracking(
    tokenizer: Tokenizer,
    index: int,
    seed: int,
    *,
    length: int = 2560,
    chains: int = 3,
    hops: int = 1,
    texts: str = "study",
) -> Item:
    """Variables set to a number, then copied `hops` times to other variables; see `_chains`."""
    words = Words(tokenizer, f"tracking {seed} {index}")
    return _item("tracking", index, words, length, texts, *_chains(words, length, chains, hops))


def build_retrieval(
    tokenizer: Tokenizer, index: int, seed: int, *, length: int = 2560, texts: str = "study"
) -> Item:
    """What the three tasks above tell and ask, in one text: a long one is read once for all of them."""
    words = Words(tokenizer, f"retrieval {seed} {index}")
    cities = words.random.sample(CITIES, 8)
    kinds = (
        _keys(words, length, cities[:6]),
        _values(words, length, cities[6:], 3),
        _chains(words, length, 3, 1),
    )
    told = []
    for kind, (pieces, _) in enumerate(kinds):  # six pieces each, in turns
        told += [(depth + _depth(kind / len(kinds), 6) - _depth(0, 6), tokens) for depth, tokens in pieces]
    asked = [probe for _, probes in kinds for probe in probes]
    return _item("retrieval", index, words, length, texts, told, asked)


def score_digits(
    probe: Probe, log_probs: torch.Tensor, dense: torch.Tensor | None, words: Words
) -> dict[str, float]:
    """Digits predicted, and whether all were."""
    scored = torch.tensor(probe.scored)
    hits = (log_probs.argmax(1) == torch.tensor(probe.target))[scored]
    return {"n": len(hits), "hits": hits.sum().item(), "exact": float(hits.all().item()), "probes": 1}


_METRICS = (
    Metric(
        "digits",
        "hits",
        "n",
        "high",
        3,
        "digits (and names) of the answer predicted, teacher-forced; chance 0.1",
        most=1.0,
    ),
    Metric("exact", "exact", "probes", "high", 3, "answers with every digit right", most=1.0),
)
NEEDLE = Task("needle", "one needle in a haystack", build_needle, score_digits, _METRICS, QUESTIONS)
MULTIKEY = Task(
    "multikey",
    "needles with different keys, one asked for",
    build_multikey,
    score_digits,
    _METRICS,
    QUESTIONS,
)
MULTIVALUE = Task(
    "multivalue",
    "needles with the same key, all asked for",
    build_multivalue,
    score_digits,
    _METRICS,
    QUESTIONS,
)
TRACKING = Task(
    "tracking",
    "variables set from variables: the number at the end of the chain",
    build_tracking,
    score_digits,
    _METRICS,
    QUESTIONS,
)
RETRIEVAL = Task(
    "retrieval",
    "different keys, several values of a key, and variables, all in one text",
    build_retrieval,
    score_digits,
    _METRICS,
    QUESTIONS,
)
