# SPDX-License-Identifier: Apache-2.0
"""Tokens of which the last ones are decoded for a trace: running text, a repetition, answers."""

from __future__ import annotations

from .tasks import Tokenizer, Words
from .tasks.item import insert
from .tasks.retrieval import CITIES, needle

#: where the passage begins that a repetition repeats, as a fraction of what stands before the first step
PASSAGE_AT = 0.25
#: the facts that are asked for stand in this part of what stands before the first step
DEEPEST = 0.95


def trace_tokens(
    tokenizer: Tokenizer, text: str, kind: str, *, n_tokens: int, n_steps: int, seed: int = 0
) -> list[int]:
    """`n_tokens` tokens, of which the last `n_steps` are to be decoded.

    kind: what these are. "prose", "code": the text goes on. "repetition": the text breaks off, and a passage
        from its first half stands there again. "retrieval": a number was told of each of thirty cities; city
        by city the number is told again, in another order each time.
    seed: of the numbers and the orders.

    Raises: ValueError if the text is too short, or the part before the first step for the numbers.
    """
    words = Words(tokenizer, f"trace {seed}")
    before = n_tokens - n_steps
    if kind in ("prose", "code"):
        return _first(words, text, n_tokens)
    if kind == "repetition":
        context = _first(words, text, before)
        passage = context[int(PASSAGE_AT * before) :]
        again = words.encode("\n\n") + passage
        while len(again) < n_steps:  # a long one is repeated once more
            again += words.encode("\n\n") + passage
        return context + again[:n_steps]
    numbers = {city: words.digits() for city in CITIES}
    told = [needle(words, city, number) for city, number in numbers.items()]
    room = before - sum(map(len, told))
    if room < 1:
        message = f"capture: n_tokens must leave room for what is asked, got {room - 1} tokens too few"
        raise ValueError(message)
    places = [DEEPEST * i / len(told) for i in range(len(told))]
    context, _ = insert(_first(words, text, room), list(zip(places, told)))
    answers: list[int] = []
    while len(answers) < n_steps:
        for city in words.random.sample(CITIES, len(CITIES)):
            answers += words.encode(f"\n\nThe secret number of {city} is {numbers[city]}.")
    return context + answers[:n_steps]


def _first(words: Words, text: str, n_tokens: int) -> list[int]:
    tokens = words.encode(text)
    if len(tokens) < n_tokens:
        raise ValueError(f"capture: n_tokens must be at most the {len(tokens)} of the text, got {n_tokens}")
    return tokens[:n_tokens]
