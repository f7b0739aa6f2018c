# SPDX-License-Identifier: Apache-2.0
"""Window attention: shares, the ring of steps, and the positions that need no history (contract E11)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vertex import run, word, words

from sparq_reference import WindowSettings, window

LAYER, LAYERS = 1, 3


@pytest.mark.parametrize("n_rows", [1, 5, 6, 13])
def test_shares_of_a_list(n_rows: int) -> None:
    """Rounded to nearest, ties to even, head by head; then summed over KV heads."""
    rng = np.random.default_rng(n_rows)
    weights = rng.random((3, n_rows)).astype(np.float32)
    weights[0] = np.arange(n_rows) * np.float32(2.0**-17)  # ties
    sums = np.array([1.0, 7.7, 3.0], np.float32)
    weights[1, 0], weights[2, -1] = 7.7, 0
    out = run("ListShares", dict(weights=weights, sums=sums, shares=words(n_rows)), groupSize=3, nRows=n_rows)
    of_heads = np.rint(weights / sums[:, None] * np.float32(2**16)).astype(np.uint32)
    assert out["shares"].tolist() == of_heads.sum(axis=0).tolist()
    many = rng.integers(0, 2**24, (5, n_rows), dtype=np.uint32)
    out = run("SumShares", dict(ofHeads=many, shares=words(n_rows)), nKvHeads=5, nRows=n_rows)
    assert out["shares"].tolist() == many.sum(axis=0).tolist()


@pytest.mark.parametrize(("before", "after"), [(0, 1), (3, 4), (4, 0)])
def test_the_ring(before: int, after: int) -> None:
    step = np.array([7, before, 8], np.uint32)
    out = run("NextStep", dict(layer=word(LAYER), step=step), nRecent=5)
    assert out["step"].tolist() == [7, after, 8]


@given(
    seed=st.integers(0, 2**32 - 1),
    first=st.sampled_from([0, 8, 40, 100]),
    length=st.sampled_from([4, 8, 20, 64]),
    filled=st.sampled_from([1, 6, 12, 60, 90]),
    top_k=st.sampled_from([1, 12, 33]),
    layer_rows=st.sampled_from([0, 1000]),
)
def test_a_step_takes_the_place_of_the_oldest(
    seed: int, first: int, length: int, filled: int, top_k: int, layer_rows: int
) -> None:
    rng = np.random.default_rng(seed)
    n_recent, row = 3, 2
    rows = rng.integers(0, 2**20, (LAYERS, n_recent, length), dtype=np.uint32)
    sums = rows.sum(axis=1, dtype=np.uint32)
    used = min(filled, top_k)
    positions = np.sort(rng.choice(filled, used, replace=False))
    listed = np.zeros(top_k, np.uint32)  # what fills up is the first position
    listed[:used] = positions
    shares = rng.integers(0, 2**20, top_k, dtype=np.uint32)
    base = 5000 + LAYER * layer_rows
    out = run(
        "AddStep",
        dict(
            filled=word(filled),
            layer=word(LAYER),
            step=np.array([9, row, 9], np.uint32),
            list=listed + np.uint32(base),
            shares=shares,
            rows=rows,
            sums=sums,
        ),
        topK=top_k,
        nRecent=n_recent,
        length=length,
        firstRow=5000 + first,
        layerRows=layer_rows,
    )
    of_all = np.zeros(max(filled, first + length), np.uint32)
    of_all[positions] = shares[:used]
    rows[LAYER, row] = of_all[first : first + length]
    assert (out["rows"] == rows).all()
    assert (out["sums"] == rows.sum(axis=1, dtype=np.uint32)).all()


@given(
    filled=st.integers(1, 200),
    top_k=st.sampled_from([1, 2, 7, 20, 64]),
    n_local=st.sampled_from([0, 1, 5, 20, 64]),
    first=st.sampled_from([0, 3, 17]),
)
def test_strided_positions(filled: int, top_k: int, n_local: int, first: int) -> None:
    n_local = min(n_local, top_k)
    chosen, counts = window.select_positions(
        np.zeros((1, filled)), WindowSettings(top_k, n_local, 0), np.array([filled])
    )
    settings = dict(topK=top_k, nLocal=n_local)
    out = run("StridedCount", dict(filled=word(filled), count=word(99)), **settings)
    assert out["count"] == counts[0]
    n = 23
    out = run(
        "StridedRows",
        dict(filled=word(filled), layer=word(LAYER), keyRows=words(n), valueRows=words(n)),
        firstEntry=first,
        nEntries=n,
        rowBase=100,
        valueRow=5000,
        layerRows=1000,
        **settings,
    )
    listed = np.zeros(first + n, np.int64)
    listed[: counts[0]] = chosen[0, : min(counts[0], first + n)]
    assert out["keyRows"].tolist() == (listed[first:] + 1100).tolist()
    assert (out["valueRows"] == out["keyRows"] + 5000).all()


def test_numbers_of_a_share() -> None:
    """All of a head's attention is 2**16 units, on either side."""
    out = run(
        "ListShares",
        dict(weights=np.ones((2, 1), np.float32), sums=np.ones(2, np.float32), shares=words(1)),
        groupSize=2,
        nRows=1,
    )
    assert out["shares"].tolist() == [2 * window.UNITS]
