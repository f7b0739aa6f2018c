# SPDX-License-Identifier: Apache-2.0
"""Parts of `sparq-ipu serve` that need no model: sampling, text and stop strings, the choice of a place."""

from __future__ import annotations

import asyncio
from typing import Any, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("transformers")

from sparq_ipu.kept_prefixes import BLOCK
from sparq_ipu.serve.engine import Engine, Request
from sparq_ipu.serve.guard import Guard
from sparq_ipu.serve.prefixes import Place, choose, common, longest
from sparq_ipu.serve.sampling import Sampler, Sampling
from sparq_ipu.serve.text import TextStream


class Bytes:
    """A tokenizer whose tokens are bytes; 256 is special."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        return bytes(token for token in tokens if token < 256).decode("utf-8", errors="replace")


def logits_of(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32) * 3


def test_greedy_takes_the_most_likely() -> None:
    logits = logits_of(100)
    assert Sampler(Sampling(0.0)).choose(logits) == int(logits.argmax())
    assert Sampler(Sampling(1e-6)).choose(logits) == int(logits.argmax())
    assert Sampler(Sampling(2.0, 1e-9)).choose(logits) == int(logits.argmax())


@pytest.mark.parametrize("size", [12, 1000])
@pytest.mark.parametrize("temperature, top_p", [(1.0, 1.0), (0.7, 1.0), (1.3, 0.8)])
def test_tokens_come_as_often_as_they_are_likely(temperature: float, top_p: float, size: int) -> None:
    logits = logits_of(size)
    mass = np.exp(logits.astype(np.float64) / temperature)
    mass /= mass.sum()
    order = np.argsort(-mass)
    kept = order[: int(np.sum(np.cumsum(mass[order]) < top_p)) + 1] if top_p < 1 else order
    expected = np.zeros(size)
    expected[kept] = mass[kept] / mass[kept].sum()
    sampler = Sampler(Sampling(temperature, top_p, seed=1))
    n = 20000
    counts = np.bincount([sampler.choose(logits) for _ in range(n)], minlength=size)
    assert (counts[expected == 0] == 0).all()
    assert np.abs(counts / n - expected).max() < 5 * np.sqrt(0.25 / n)


def frequencies(sampling: Sampling, logits: Any, n: int = 3000) -> Any:
    sampler = Sampler(sampling)
    return np.bincount([sampler.choose(logits) for _ in range(n)], minlength=len(logits)) / n


@pytest.mark.parametrize("fields", [{"top_k": 3}, {"min_p": 0.2}, {"top_k": 4, "min_p": 0.1, "top_p": 0.9}])
def test_only_likely_tokens_are_drawn(fields: dict) -> None:
    logits = logits_of(50)
    mass = np.exp(logits.astype(np.float64))
    mass /= mass.sum()
    kept = sorted(range(50), key=lambda token: -mass[token])[: fields.get("top_k", 50)]
    kept = [token for token in kept if mass[token] >= fields.get("min_p", 0) * mass.max()]
    share = np.cumsum(mass[kept]) / mass[kept].sum()
    kept = kept[: int(np.sum(share < fields.get("top_p", 1.0))) + 1]
    found = frequencies(Sampling(seed=1, **fields), logits)
    assert sorted(kept) == np.flatnonzero(found).tolist() and 1 < len(kept) < 20
    assert np.abs(found[kept] - mass[kept] / mass[kept].sum()).max() < 0.05


def test_of_as_likely_tokens_top_k_takes_no_more() -> None:
    assert np.count_nonzero(frequencies(Sampling(top_k=3), np.zeros(20, np.float32), 300)) == 3


def test_penalties() -> None:
    """Greedy, as their definition has them: presence once, frequency for each time, repetition as a factor,
    of tokens of the prompt too."""
    logits = np.array([3.0, 2.9, 2.5, -1.0], np.float32)

    def chosen(n: int = 6, prompt: Sequence[int] = (), **fields: Any) -> list[int]:
        sampler = Sampler(Sampling(0.0, **fields), prompt)
        return [sampler.choose(logits) for _ in range(n)]

    assert chosen() == [0] * 6
    assert chosen(presence=0.3) == [0, 1, 0, 0, 0, 0]
    assert chosen(frequency=0.22) == [0, 1, 0, 1, 0, 2]
    assert chosen(presence=-1, frequency=0.4) == [0, 0, 0, 1, 1, 1]
    assert chosen(repetition=1.1) == [0, 1, 0, 0, 0, 0]
    assert chosen(prompt=[0, 0, 1], repetition=1.5) == [2, 0, 0, 0, 0, 0]
    assert chosen(prompt=[0, 1], presence=2.0, n=2) == [0, 1]
    assert chosen(prompt=[1], repetition=1.05, presence=1.0, n=2) == [0, 1]
    assert chosen(bias=((3, 100.0), (0, -100.0)), n=2) == [3, 3]
    assert chosen(bias=((3, 5.0),), presence=2.0, n=3) == [3, 0, 1]
    assert logits.tolist() == np.array([3.0, 2.9, 2.5, -1.0], np.float32).tolist()
    assert Sampler(Sampling(0.0, repetition=2.0), [3]).choose(np.array([-3, -3, -3, -2], np.float32)) == 0
    sampler = Sampler(Sampling(1.0))
    allowed = np.array([2, 3])
    assert {sampler.choose(logits, allowed) for _ in range(100)} == {2, 3}


def test_the_same_seed_draws_the_same() -> None:
    def drawn(seed: int) -> list:
        sampler = Sampler(Sampling(1.0, 0.95, seed))
        return [sampler.choose(logits_of(500, i)) for i in range(20)]

    assert drawn(3) == drawn(3) != drawn(4)


def test_log_probabilities() -> None:
    logits = logits_of(50)
    expected = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    assert Sampler(Sampling()).log_probability(logits, 3) is None
    found = Sampler(Sampling(0.3, 0.5, n_top=5)).log_probability(logits, 3)
    assert found is not None and found.token == 3
    assert found.value == pytest.approx(expected[3])
    assert [token for token, _ in found.top] == np.argsort(-expected)[:5].tolist()
    assert [value for _, value in found.top] == pytest.approx(sorted(expected)[::-1][:5])
    none = Sampler(Sampling(n_top=0)).log_probability(logits, 3)
    assert none is not None and none.top == []


def streamed(text: bytes, stops: Sequence[str]) -> tuple[str, bool]:
    stream = TextStream(Bytes(), stops)
    parts = []
    for token in text:
        parts.append(stream.push(token))
        if stream.is_stopped:
            break
    return "".join(parts) + stream.finish(), stream.is_stopped


@given(st.text("abä\U0001f600", max_size=30), st.lists(st.text("abä", min_size=1, max_size=4), max_size=3))
def test_text_ends_at_the_first_stop_string(text: str, stops: list) -> None:
    at = min((found for found in (text.find(stop) for stop in stops) if found >= 0), default=None)
    got, is_stopped = streamed(text.encode(), stops)
    # A string that begins later may end first.
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert is_stopped == (at is not None)
    if at is None:
        assert got == text
    else:
        seen = text[: min(ends)]
        assert got == seen[: min(seen.find(stop) for stop in stops if stop in seen)]


def test_text_comes_as_soon_as_it_is_certain() -> None:
    stream = TextStream(Bytes(), ["end"])
    given_text = [stream.push(token) for token in "ä en!e".encode()]
    assert given_text == ["", "ä", " ", "", "", "en!", ""]
    assert stream.finish() == "e"


def test_special_tokens_and_broken_characters() -> None:
    stream = TextStream(Bytes())
    assert [stream.push(token) for token in (65, 256, 0xC3)] == ["A", "", ""]
    assert stream.finish() == "\ufffd"


def place(index: int, tokens: Sequence[int], used: int, is_free: bool = True) -> Place:
    made = Place(index)
    made.tokens, made.used, made.is_free = np.array(tokens, np.int64), used, is_free
    return made


def test_common() -> None:
    a, b = np.arange(5), np.array([0, 1, 7, 3])
    assert (common(a, b), common(a, a[:3]), common(a, a[:0]), common(a, a)) == (2, 3, 0, 5)


def test_the_longest_prefix_is_found_in_any_place() -> None:
    prompt = np.arange(40)
    places = [place(0, range(10), 1), place(1, range(25), 2, is_free=False), place(2, range(100, 130), 3)]
    assert longest(places, prompt, 4) == (places[1], 24)
    assert longest(places[:1], prompt, 4) == (places[0], 8)
    assert longest(places[2:], prompt, 4) == (None, 0)
    # after the last token the model is asked
    assert longest([place(0, range(40), 1)], prompt, 4)[1] == 36


def test_a_place_that_is_continued_is_taken_else_the_oldest() -> None:
    prompt = np.arange(40)
    continued, other, oldest = place(0, range(31), 9), place(1, range(50), 8), place(2, [7] * 9, 1)
    assert choose([continued, oldest], prompt, 4) is continued
    assert choose([other, oldest], prompt, 4) is oldest  # copied from `other`, which keeps its rest
    assert choose([other, place(2, [], 0), oldest], prompt, 4).used == 0  # type: ignore[union-attr]
    short = place(0, range(20, 28), 9)  # 4 of its tokens would be lost
    assert choose([short, oldest], np.array([*range(20, 24), 0, 0]), 1) is oldest
    assert choose([short, oldest], np.array([*range(20, 24), 0, 0]), 1, cheap=7) is short
    assert choose([short, oldest], np.array([*range(20, 23), 0, 0]), 1, cheap=7) is oldest  # 5, for 3
    assert choose([place(0, [], 0, is_free=False)], prompt, 4) is None


def test_of_places_that_hold_as_much_the_one_that_loses_least() -> None:
    prompt = np.arange(40)
    other = [place(at, [*range(24), *[7] * n], at) for at, n in enumerate((9, 2, 5))]
    for places in (other, other[::-1], other[1:] + other[:1]):
        assert longest(places, prompt, 4) == (other[1], 24)


def test_a_place_is_taken_as_long_as_less_than_a_block_is_lost() -> None:
    prompt = np.arange(40)
    oldest = place(2, [7] * 9, 1)
    for n_more, is_taken in ((0, True), (3, True), (4, False), (5, False)):
        held = place(0, [*range(24), *[7] * n_more], 9)
        assert (choose([held, oldest], prompt, 4) is held) == is_taken


def asked(tokens: Any, came: float, n_read: int) -> Request:
    made = Request(np.array(tokens, np.int64), 1, Sampling(), lambda event: None)
    made.came, made.n_read = came, n_read
    return made


def test_of_equal_prompts_the_first_is_read_and_the_others_wait() -> None:
    n = 3 * BLOCK
    waits = Engine._reads_the_same
    first, second = asked(range(n + 9), 1.0, 0), asked(range(n + 9), 2.0, 0)
    assert waits(first, second) and not waits(second, first) and not waits(first, first)
    assert not waits(
        first, asked(range(n + 9), 1.0, 0)
    )  # of two that came at once, neither waits for the other
    for n_read, does in ((n - BLOCK, True), (n - 1, True), (n, False), (n + 9, False)):
        assert waits(asked(range(n + 9), 1.0, n_read), second) == does
    assert not waits(first, asked(range(n + 9), 2.0, BLOCK))  # who has read more does not wait
    assert not waits(first, asked(range(BLOCK - 1), 2.0, 0))  # too little is shared


def guarded(n_bytes: int, length: int | None = None, most: int = 100) -> int:
    """The status of a request with a body of so many bytes, in pieces of 10."""
    left = [10] * (n_bytes // 10) + [n_bytes % 10]

    async def receive() -> Any:
        return {"type": "http.request", "body": b" " * left.pop(), "more_body": bool(left)}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})

    statuses: list[int] = []

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    headers = [] if length is None else [(b"content-length", b"%d" % length)]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
    asyncio.run(Guard(app, None, most)(scope, receive, send))
    (status,) = statuses
    return status


def test_a_body_has_at_most_so_many_bytes() -> None:
    assert [guarded(n) for n in (0, 99, 100, 101, 1000)] == [200, 200, 200, 413, 413]
    assert [guarded(n, n) for n in (99, 100, 101)] == [200, 200, 413]
    assert guarded(101, 100) == 413  # whatever it says
