# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import KINDS, tensors
from vertex import assert_bits, floats, run, word, words

from sparq_reference import exact, numerics

MASK = np.uint32(0x7FFFFFFF)
LAYER, COLUMN_STEP, LENGTH = 2, 18, 1234


def ranked(magnitudes: np.ndarray, first: int, end: int, rank: int) -> np.ndarray:
    fields = dict(magnitudes=magnitudes, selected=words(end - first))
    sizes = dict(headDim=len(magnitudes), first=first, nComponents=end - first)
    return run("ComponentRanks", fields, **sizes, rank=rank)["selected"]


def listed(query: np.ndarray, selected: np.ndarray, rank: int, spare: int = 0) -> dict[str, np.ndarray]:
    group, head_dim = query.shape
    return run(
        "ListComponents",
        dict(
            length=word(LENGTH),
            filled=word(77),
            layer=word(LAYER),
            query=query,
            selected=selected,
            components=words(rank + spare),
            columns=words(rank + spare),
            selectedQuery=floats(group * rank + spare),
        ),
        groupSize=group,
        headDim=head_dim,
        nComponents=len(selected),
        rank=rank,
        columnStep=COLUMN_STEP,
    )


@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    group=st.sampled_from((1, 3, 4)),
    head_dim=st.sampled_from((8, 24, 64, 80, 128)),
    piece=st.sampled_from((4, 24)),
    data=st.data(),
)
def test_components_and_temperature(
    seed: int, kind: str, group: int, head_dim: int, piece: int, data: st.DataObject
) -> None:
    """From magnitudes piece by piece, the list, and temperatures from the masks of the list; of the index's
    components alone, which are the first ones."""
    n = 8 * data.draw(st.sampled_from(sorted({1, head_dim // 16 or 1, head_dim // 8})))
    rank = data.draw(st.sampled_from(sorted({1, n // 4, n})))
    query = tensors(kind, (1, group, head_dim), np.random.default_rng(seed))
    magnitudes = []
    for first in range(0, head_dim, piece):
        own = min(piece, head_dim - first)
        fields = dict(query=query[0], magnitudes=floats(own))
        out = run("PieceMagnitude", fields, groupSize=group, headDim=head_dim, first=first, n=own)
        magnitudes.append(out["magnitudes"])
    assert_bits(np.concatenate(magnitudes), numerics.group_sum(np.abs(query), 1)[0, 0])
    expected = exact.query_components(query, rank=rank, n_kv_heads=1, index_components=n)
    selected = np.concatenate(  # ranked in two pieces, as two parts would
        [
            ranked(np.concatenate(magnitudes)[:n], first, end, rank)
            for first, end in ((0, 8), (8, n))
            if first < end
        ]
    )
    np.testing.assert_array_equal(np.flatnonzero(selected), expected[0, 0])
    assert set(selected.tolist()) <= {0, MASK}
    sums = run("MagnitudeSums", dict(query=query, sums=floats(group)), groupSize=group, headDim=head_dim)[
        "sums"
    ]
    assert_bits(sums, numerics.lane_sum(np.abs(query[0]).astype(np.float32)))
    out = listed(query[0], selected, rank)
    assert out["filled"] == LENGTH
    np.testing.assert_array_equal(out["components"], expected[0, 0])
    assert out["columns"].tolist() == [(LAYER * n + int(c)) * COLUMN_STEP for c in expected[0, 0]]
    assert_bits(out["selectedQuery"].reshape(group, rank), query[0][:, expected[0, 0]].astype(np.float32))
    out = run(
        "HeadTemperatures",
        dict(
            query=query[0],
            selected=selected,
            magnitudeSums=sums,
            inverseTemperature=floats(group),
        ),
        groupSize=group,
        headDim=head_dim,
        nComponents=n,
        scale=float(numerics.scale(head_dim)),
    )
    assert_bits(out["inverseTemperature"], exact.inverse_temperature(query, expected)[0])


def test_equal_magnitudes_take_the_lower_index() -> None:
    assert ranked(np.ones(16, np.float32), 0, 16, 5).tolist() == [MASK] * 5 + [0] * 11


def test_zero_query_has_the_plain_scale() -> None:
    fields = dict(query=np.zeros((2, 64), np.float16), selected=np.full(64, MASK))
    out = run(
        "HeadTemperatures",
        dict(fields, magnitudeSums=np.zeros(2, np.float32), inverseTemperature=floats(2)),
        groupSize=2,
        headDim=64,
        nComponents=64,
        scale=0.125,
    )
    assert out["inverseTemperature"].tolist() == [0.125, 0.125]


@pytest.mark.parametrize("number", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n_bad", [1, 30, 64])
def test_bad_numbers_stay_within_the_list(n_bad: int, number: float) -> None:
    """They count as the largest: `rank` components are selected all the same, each worker lists its own."""
    head_dim, rank = 64, 16
    query = np.ones((2, head_dim), np.float16)
    bad = np.random.default_rng(0).permutation(head_dim)[:n_bad]
    query[1, bad] = number
    fields = dict(query=query, magnitudes=floats(head_dim))
    magnitudes = run("PieceMagnitude", fields, groupSize=2, headDim=head_dim, first=0, n=head_dim)[
        "magnitudes"
    ]
    expected = np.full(head_dim, 2, np.float32)
    expected[bad] = np.finfo(np.float32).max
    assert_bits(magnitudes, expected)
    selected = ranked(magnitudes, 0, head_dim, rank)
    assert (selected != 0).sum() == rank
    out = listed(query, selected, rank, spare=head_dim)
    np.testing.assert_array_equal(out["components"][:rank], np.flatnonzero(selected))
    assert_bits(out["components"][rank:], words(head_dim))
    assert_bits(out["selectedQuery"][2 * rank :], floats(head_dim))


@pytest.mark.parametrize("n_selected", [16, 40])
def test_each_worker_lists_its_own(n_selected: int) -> None:
    """Whoever is selected: nothing is written behind the list."""
    rng, head_dim = np.random.default_rng(n_selected), 64
    selected = np.zeros(head_dim, np.uint32)
    selected[rng.permutation(head_dim)[:n_selected]] = MASK
    query = rng.normal(size=(3, head_dim)).astype(np.float16)
    out = listed(query, selected, n_selected)
    np.testing.assert_array_equal(out["components"], np.flatnonzero(selected))
    assert_bits(out["selectedQuery"].reshape(3, -1), query[:, np.flatnonzero(selected)].astype(np.float32))
