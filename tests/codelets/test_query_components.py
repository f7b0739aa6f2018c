# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import KINDS, tensors
from vertex import assert_bits, floats, run, words

from sparq_reference import exact, numerics

MASK = 0x7FFFFFFF


@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    group=st.sampled_from((1, 3, 8)),
    head_dim=st.sampled_from((8, 64, 80)),
    data=st.data(),
)
def test_components_and_temperature(
    seed: int, kind: str, group: int, head_dim: int, data: st.DataObject
) -> None:
    rank = data.draw(st.sampled_from(sorted({1, head_dim // 4, head_dim})))
    query = tensors(kind, (1, group, head_dim), np.random.default_rng(seed))
    magnitudes = run(
        "GroupMagnitude", dict(query=query, magnitudes=floats(head_dim)), groupSize=group, headDim=head_dim
    )["magnitudes"]
    assert_bits(magnitudes, numerics.group_sum(np.abs(query), 1)[0, 0])
    # ranked in two pieces, as two parts would
    selected = words(head_dim)
    for first, end in ((0, 8), (8, head_dim)):
        if first < end:
            selected[first:end] = run(
                "ComponentRanks",
                dict(magnitudes=magnitudes, selected=words(end - first)),
                headDim=head_dim,
                first=first,
                nComponents=end - first,
                rank=rank,
            )["selected"]
    expected = exact.query_components(query, rank=rank, n_kv_heads=1)
    np.testing.assert_array_equal(np.flatnonzero(selected), expected[0, 0])
    assert set(selected.tolist()) <= {0, MASK}
    sums = run("MagnitudeSums", dict(query=query, sums=floats(group)), groupSize=group, headDim=head_dim)[
        "sums"
    ]
    assert_bits(sums, numerics.lane_sum(np.abs(query[0]).astype(np.float32)))
    out = run(
        "ComponentList",
        dict(
            query=query,
            selected=selected,
            magnitudeSums=sums,
            components=words(rank),
            selectedQuery=floats(group, rank),
            inverseTemperature=floats(group),
        ),
        groupSize=group,
        headDim=head_dim,
        rank=rank,
        scale=float(numerics.scale(head_dim)),
    )
    np.testing.assert_array_equal(out["components"], expected[0, 0])
    assert_bits(out["selectedQuery"], query[0][:, expected[0, 0]].astype(np.float32))
    assert_bits(out["inverseTemperature"], exact.inverse_temperature(query, expected)[0])


def test_equal_magnitudes_take_the_lower_index() -> None:
    out = run(
        "ComponentRanks",
        dict(magnitudes=np.ones(16, np.float32), selected=words(16)),
        headDim=16,
        first=0,
        nComponents=16,
        rank=5,
    )
    assert out["selected"].tolist() == [MASK] * 5 + [0] * 11


@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_zero_query_has_the_plain_scale(head_dim: int) -> None:
    out = run(
        "ComponentList",
        dict(
            query=np.zeros((1, head_dim), np.float16),
            selected=(np.arange(head_dim) < 4) * np.uint32(MASK),
            magnitudeSums=np.zeros(1, np.float32),
            components=words(4),
            selectedQuery=floats(1, 4),
            inverseTemperature=floats(1),
        ),
        groupSize=1,
        headDim=head_dim,
        rank=4,
        scale=float(numerics.scale(head_dim)),
    )
    assert out["inverseTemperature"][0] == numerics.scale(head_dim)


@pytest.mark.parametrize("number", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n_bad", [1, 30, 64])
def test_bad_numbers_stay_within_the_list(n_bad: int, number: float) -> None:
    """They count as the largest: `rank` components are selected all the same, each worker lists its own."""
    head_dim, rank = 64, 16
    query = np.ones((2, head_dim), np.float16)
    bad = np.random.default_rng(0).permutation(head_dim)[:n_bad]
    query[1, bad] = number
    magnitudes = run(
        "GroupMagnitude", dict(query=query, magnitudes=floats(head_dim)), groupSize=2, headDim=head_dim
    )["magnitudes"]
    expected = np.full(head_dim, 2, np.float32)
    expected[bad] = np.finfo(np.float32).max
    assert_bits(magnitudes, expected)
    selected = run(
        "ComponentRanks",
        dict(magnitudes=magnitudes, selected=words(head_dim)),
        headDim=head_dim,
        first=0,
        nComponents=head_dim,
        rank=rank,
    )["selected"]
    assert (selected != 0).sum() == rank
    out = run(
        "ComponentList",
        dict(
            query=query,
            selected=selected,
            magnitudeSums=np.ones(2, np.float32),
            components=words(rank + head_dim),
            selectedQuery=floats(2 * rank + head_dim),
            inverseTemperature=floats(2),
        ),
        groupSize=2,
        headDim=head_dim,
        rank=rank,
        scale=1.0,
    )
    np.testing.assert_array_equal(out["components"][:rank], np.flatnonzero(selected))
    assert_bits(out["components"][rank:], words(head_dim))
    assert_bits(out["selectedQuery"][2 * rank :], floats(head_dim))
