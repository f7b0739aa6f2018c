# SPDX-License-Identifier: Apache-2.0
"""hot_attention.cpp: attention over rows where they are in the buffer of hot rows (contract E6.4)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import KINDS, tensors
from vertex import POISON, assert_bits, floats, run, word

from sparq_reference import numerics

LAYER, N_LAYERS = 1, 2
LOWEST = np.finfo(np.float32).min


class Problem(NamedTuple):
    """Rows of a list, and where they are."""

    query: np.ndarray  # (group, head_dim) float16
    keys: np.ndarray  # (n, head_dim) float16: of the entries in use
    places: np.ndarray  # (top_k,) uint32: place + 1
    filled: int
    n_sets: int

    @property
    def top_k(self) -> int:
        return len(self.places)

    def lane_sums(self) -> np.ndarray:
        """(n_sets, 4, top_k, group, 2): what LaneSums of every part write, POISON where it is not theirs."""
        group, head_dim = self.query.shape
        n_rows, shift = self.top_k + 3, self.n_sets.bit_length() - 1
        sums = floats(self.n_sets, 4, self.top_k, group, 2)
        for of_set in range(self.n_sets):
            for pair in range(4):
                lanes = np.arange(head_dim).reshape(-1, 8)[:, 2 * pair : 2 * pair + 2].ravel()
                rows = np.full((N_LAYERS, n_rows, head_dim // 4), np.nan, np.float16)
                for key, place in zip(self.keys, self.places):
                    if (place - 1) % self.n_sets == of_set:
                        rows[LAYER, (place - 1) // self.n_sets] = key[lanes]
                sums[of_set, pair] = run(
                    "LaneSums",
                    dict(
                        filled=word(self.filled),
                        layer=word(LAYER),
                        places=self.places,
                        query=self.query,
                        keys=rows,
                        sums=floats(self.top_k, group, 2),
                    ),
                    groupSize=group,
                    headDim=head_dim,
                    topK=self.top_k,
                    nRows=n_rows,
                    pair=pair,
                    set=of_set,
                    setShift=shift,
                    each=-(-self.top_k // 6),
                )["sums"]
        return sums


def make_problem(
    kind: str, group: int, head_dim: int, top_k: int, filled: int, n_sets: int, seed: int
) -> Problem:
    rng = np.random.default_rng(seed)
    n = min(top_k, filled)
    places = rng.integers(0, 99, top_k).astype(np.uint32)  # whatever behind those in use
    places[:n] = rng.permutation((top_k + 3) * n_sets)[:n] + 1
    return Problem(
        tensors(kind, (group, head_dim), rng), tensors(kind, (n, head_dim), rng), places, filled, n_sets
    )


@pytest.mark.parametrize("n_sets", [1, 2, 4])
@given(
    kind=st.sampled_from(KINDS),
    group=st.sampled_from((1, 3, 4)),
    head_dim=st.sampled_from((8, 40, 48)),
    top_k=st.sampled_from((1, 6, 13)),
    filled=st.sampled_from((100, 13, 6, 5, 0)),
    seed=st.integers(0, 2**32 - 1),
)
def test_scores(
    n_sets: int, kind: str, group: int, head_dim: int, top_k: int, filled: int, seed: int
) -> None:
    """Lane by lane, wherever a key is, the bits of a dot product; nothing of other rows or layers."""
    x = make_problem(kind, group, head_dim, top_k, filled, n_sets, seed)
    n, scale = len(x.keys), numerics.scale(head_dim)
    sums = x.lane_sums()
    its_set = (x.places[:n].astype(int) - 1) % n_sets
    for of_set in range(n_sets):
        assert_bits(sums[of_set][:, :n][:, its_set != of_set], floats(4, (its_set != of_set).sum(), group, 2))
        assert_bits(sums[of_set][:, n:], floats(4, top_k - n, group, 2))
    expected = np.full((group, top_k), LOWEST, np.float32)
    expected[:, :n] = (
        numerics.dot(x.query[:, None].astype(np.float32), x.keys[None].astype(np.float32)) * scale
    )
    first = min(5, top_k - 1)
    for begin, end in ((0, first), (first, top_k)):
        if begin == end:
            continue
        out = run(
            "LaneScores",
            dict(
                filled=word(filled),
                places=x.places[begin:end],
                sums=sums[:, :, begin:end],
                scores=floats(group, end - begin),
                maxima=floats(6, group),
            ),
            groupSize=group,
            nRows=end - begin,
            firstRow=begin,
            setShift=n_sets.bit_length() - 1,
            scale=float(scale),
        )
        assert_bits(out["scores"], expected[:, begin:end])
        largest = expected[:, begin : max(begin, min(end, n))].max(axis=1, initial=LOWEST)
        np.testing.assert_array_equal(out["maxima"].max(axis=0), largest)
        assert (out["maxima"] >= LOWEST).all() and not (out["maxima"] == POISON).any()


@given(
    kind=st.sampled_from(KINDS),
    group=st.sampled_from((1, 3, 4, 7)),
    width=st.sampled_from((4, 8, 12, 16)),
    top_k=st.sampled_from((1, 64, 70, 130)),
    first=st.sampled_from((0, 64)),
    filled=st.sampled_from((1000, 129, 64, 63, 1, 0)),
    seed=st.integers(0, 2**32 - 1),
)
def test_hot_values(
    kind: str, group: int, width: int, top_k: int, first: int, filled: int, seed: int
) -> None:
    """Blocks of 64 entries, each row by row from +0; a block without rows is 0."""
    rng = np.random.default_rng(seed)
    n, n_blocks, n_rows = min(top_k, max(filled - first, 0)), -(-top_k // 64), top_k + 2
    values = tensors(kind, (N_LAYERS, n_rows, width), rng)
    places = rng.integers(0, 2**32, top_k, np.uint32)
    places[:n] = rng.permutation(n_rows)[:n] + 1
    weights = rng.random((group, top_k)).astype(np.float32)
    out = run(
        "HotValues",
        dict(
            filled=word(filled),
            layer=word(LAYER),
            places=places,
            weights=weights,
            values=values,
            partials=floats(n_blocks, group, width),
        ),
        groupSize=group,
        topK=top_k,
        firstEntry=first,
        nRows=n_rows,
        width=width,
    )
    expected = np.zeros((n_blocks, group, width), np.float32)
    for entry in range(n):
        row = values[LAYER, places[entry] - 1].astype(np.float32)
        expected[entry // 64] += weights[:, entry, None] * row
    assert_bits(out["partials"], expected)
