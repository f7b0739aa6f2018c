# SPDX-License-Identifier: Apache-2.0
"""Random chains of view operations against NumPy: elements read through a view, and written through it."""

from __future__ import annotations

import json
import subprocess
from typing import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

OTHER = np.arange(100000, 104096)
MAX_ELEMENTS = 1500


class Driver:
    """One process that answers chain after chain."""

    def __init__(self, path: str) -> None:
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: str) -> dict:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the driver died on: {line}"
        return json.loads(answer)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@pytest.fixture(scope="module")
def driver(programs):
    d = Driver(programs.path("views"))
    yield d
    d.close()


def sizes(values) -> str:
    values = list(values)
    return " ".join(map(str, [len(values), *values]))


@st.composite
def chains(draw):
    """(text for the driver, base shape, the chain as a NumPy function)."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    text = [sizes(shape)]
    steps: list[Callable[[np.ndarray], np.ndarray]] = []
    a = np.zeros(shape)  # only its shape matters

    def step(words: str, f: Callable[[np.ndarray], np.ndarray]) -> None:
        nonlocal a
        text.append(words)
        steps.append(f)
        a = f(a)

    for _ in range(draw(st.integers(1, 7))):
        kinds = ["flatten", "expand"]
        if a.ndim:
            kinds += ["slice", "index", "dimShuffle", "dimRoll", "subSample", "reverse", "slices", "reshape"]
            if a.size * 3 <= MAX_ELEMENTS:
                kinds += ["upsample", "broadcast", "concatSelf", "concatFront", "concatOther"]
            if 1 in a.shape:
                kinds.append("squeeze")
        kind = draw(st.sampled_from(kinds))
        d = draw(st.integers(0, a.ndim - 1)) if a.ndim else 0
        n = a.shape[d] if a.ndim else 1
        if kind == "flatten":
            step("flatten", lambda x: x.reshape(-1))
        elif kind == "expand":
            at = draw(st.integers(0, a.ndim))
            step(f"expand {at}", lambda x, at=at: np.expand_dims(x, at))
        elif kind == "slice":
            lo = draw(st.integers(0, n - 1))
            hi = draw(st.integers(lo + 1, n))
            step(f"slice {lo} {hi} {d}", lambda x, d=d, lo=lo, hi=hi: np.take(x, range(lo, hi), d))
        elif kind == "index":
            i = draw(st.integers(0, a.shape[0] - 1))
            step(f"index {i}", lambda x, i=i: x[i])
        elif kind == "dimShuffle":
            p = draw(st.permutations(range(a.ndim)))
            step("dimShuffle " + sizes(p), lambda x, p=p: x.transpose(p))
        elif kind == "dimRoll":
            to = draw(st.integers(0, a.ndim - 1))
            step(f"dimRoll {d} {to}", lambda x, d=d, to=to: np.moveaxis(x, d, to))
        elif kind == "subSample":
            s = draw(st.integers(1, 3))
            step(f"subSample {s} {d}", lambda x, d=d, s=s: np.take(x, range(0, x.shape[d], s), d))
        elif kind == "reverse":
            step(f"reverse {d}", lambda x, d=d: np.flip(x, d))
        elif kind == "slices":
            h = n // 2
            step(f"slices {d}", lambda x, d=d, h=h: np.roll(x, -h, d))
        elif kind == "upsample":
            s = draw(st.integers(1, 3))
            step(f"upsample {s} {d}", lambda x, d=d, s=s: np.repeat(x, s, d))
        elif kind == "broadcast":
            s = draw(st.integers(1, 3))
            step(f"broadcast {s} {d}", lambda x, d=d, s=s: np.concatenate([x] * s, d))
        elif kind == "concatSelf":
            step(f"concatSelf {d}", lambda x, d=d: np.concatenate([x, x], d))
        elif kind == "concatFront":
            h = (n + 1) // 2
            step(f"concatFront {d}", lambda x, d=d, h=h: np.concatenate([np.take(x, range(h), d), x], d))
        elif kind == "concatOther":
            step(f"concatOther {d}", lambda x, d=d: np.concatenate([x, OTHER[: x.size].reshape(x.shape)], d))
        elif kind == "squeeze":
            at = draw(st.sampled_from([i for i, s in enumerate(a.shape) if s == 1]))
            step(f"squeeze {at}", lambda x, at=at: np.squeeze(x, at))
        elif kind == "reshape":
            factors = [f for f in range(1, a.size + 1) if a.size % f == 0]
            first = draw(st.sampled_from(factors))
            to = (first, a.size // first)
            step("reshape " + sizes(to), lambda x, to=to: x.reshape(to))
    return " ".join(text), shape, steps


def check_clones(got: dict, flat: np.ndarray) -> None:
    """Of each element of a clone, its place in the new variable; `flat` orders the originals by address."""
    assert got["likewise"]  # type, shape, tiles
    distinct, by_address = np.unique(flat, return_inverse=True)
    in_turn = np.arange(flat.size)
    assert got["new"] == in_turn.tolist()
    assert got["all"] == by_address.tolist()
    assert got["order"] == (by_address if distinct.size == flat.size else in_turn).tolist()
    if flat.size == 0:
        return
    tiles, place = np.unique(np.stack([got["tiles"], by_address]), axis=1, return_inverse=True)
    place = place.reshape(-1)
    assert got["gather"] == place.tolist()
    # Two clones: a tile's elements of the first, then those of the second.
    begin = np.searchsorted(tiles[0], tiles[0])[place]
    run = np.bincount(tiles[0].astype(int))[got["tiles"]]
    assert got["two0"] == (place + begin).tolist()
    assert got["two1"] == (place + begin + run).tolist()


@settings(max_examples=max(400, settings().max_examples))
@given(chains())
def test_views_agree_with_numpy(driver, chain):
    text, shape, steps = chain
    base = np.arange(np.prod(shape)).reshape(shape)
    want = base
    for f in steps:
        want = f(want)
    got = driver.ask(text)
    assert "error" not in got, got
    assert got["shape"] == list(want.shape)
    flat = want.reshape(-1)
    assert got["copied"] == flat.tolist()
    assert got["read"] == flat.tolist()
    assert got["mapped"] == flat.size
    assert got["sorted"] == flat.size
    assert len(got["bounds"]) == 2 * len(got["aliases"])
    stands = np.full(flat.size, -1)  # of each element of the view, which one stands for it
    for i, alias in enumerate(got["aliases"]):
        begin, end = got["bounds"][2 * i : 2 * i + 2]
        stands[begin:end] = np.arange(alias, alias + end - begin)
    assert flat[stands].tolist() == flat.tolist()
    assert np.unique(stands).size == np.unique(flat).size
    check_clones(got, flat)
    assert got["writeable"] == (np.unique(flat).size == flat.size)
    if flat.size:
        breaks = np.count_nonzero(np.diff(flat) != 1) + 1
        assert got["regions"] == breaks
    if got["writeable"]:
        after = base.reshape(-1).copy()
        own = flat < after.size  # the rest are elements of the other variable
        after[flat[own]] = -1 - np.arange(flat.size)[own]
        assert got["base"] == after.tolist()


BASE = np.arange(24).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("words", "want"),
    [
        ("slice 1 3 1", BASE[:, 1:3]),
        ("index 1", BASE[1]),
        ("flatten", BASE.reshape(-1)),
        ("reshape 2 4 6", BASE.reshape(4, 6)),
        ("dimShuffle 3 2 0 1", BASE.transpose(2, 0, 1)),
        ("dimShuffle 3 2 0 1 reshape 2 8 3", BASE.transpose(2, 0, 1).reshape(8, 3)),
        ("dimShuffle 3 0 2 1 reshape 2 6 4 dimRoll 1 0", BASE.transpose(0, 2, 1).reshape(6, 4).T),
        ("dimRoll 2 0", np.moveaxis(BASE, 2, 0)),
        ("expand 1", BASE[:, None]),
        ("slice 0 1 0 squeeze 0", BASE[0]),
        ("subSample 2 1", BASE[:, ::2]),
        ("subSample 3 2", BASE[:, :, ::3]),
        ("upsample 2 1", BASE.repeat(2, 1)),
        ("broadcast 3 1", np.concatenate([BASE] * 3, 1)),
        ("broadcast 2 0 reverse 0", np.concatenate([BASE] * 2, 0)[::-1]),
        ("reverse 2", BASE[:, :, ::-1]),
        ("concatSelf 1", np.concatenate([BASE, BASE], 1)),
        ("concatFront 2", np.concatenate([BASE[:, :, :2], BASE], 2)),
        ("concatOther 0", np.concatenate([BASE, OTHER[:24].reshape(BASE.shape)], 0)),
        ("slices 1", np.roll(BASE, -1, 1)),
        (
            "concatFront 1 subSample 2 1 dimShuffle 3 1 2 0 reverse 0",
            np.concatenate([BASE[:, :2], BASE], 1)[:, ::2].transpose(1, 2, 0)[::-1],
        ),
    ],
)
def test_each_operation(driver, words, want):
    got = driver.ask("3 2 3 4 " + words)
    assert got["shape"] == list(want.shape)
    assert got["copied"] == got["read"] == want.reshape(-1).tolist()


def test_a_wrong_oracle_is_noticed(driver):
    """Control: the same comparison with another view fails."""
    got = driver.ask("2 3 4 dimShuffle 2 1 0")
    assert got["copied"] == np.arange(12).reshape(3, 4).T.reshape(-1).tolist()
    assert got["copied"] != np.arange(12).tolist()


def test_large_views_stay_compact(driver):
    """A transposed, reshaped and concatenated view of 4000 elements, through both kinds of base."""
    got = driver.ask(
        "2 40 25 dimShuffle 2 1 0 concatSelf 0 reshape 2 100 20 dimRoll 1 0 slice 3 17 0 flatten"
    )
    a = np.arange(1000).reshape(40, 25).T
    want = np.moveaxis(np.concatenate([a, a]).reshape(100, 20), 1, 0)[3:17].reshape(-1)
    assert got["copied"] == want.tolist()


@settings(max_examples=max(200, settings().max_examples))
@given(
    st.integers(1, 20).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n), st.integers(0, n), st.integers(0, 3)), max_size=12),
        )
    )
)
def test_later_mappings_replace_earlier_ones(driver, case):
    n, ranges = case
    want = np.full(n, -1)
    words = [str(n)]
    for a, b, tile in ranges:
        begin, end = min(a, b), max(a, b)
        want[begin:end] = tile
        words.append(f"{begin} {end} {tile}")
    got = driver.ask("map " + " ".join(words))
    assert got["tiles"] == want.tolist()
    assert got["complete"] == (want >= 0).all()
    starts = np.flatnonzero(np.diff(want, prepend=-2))  # neighbours on one tile are one interval
    assert got["intervals"] == np.count_nonzero(want[starts] >= 0)
