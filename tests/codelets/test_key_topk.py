# SPDX-License-Identifier: Apache-2.0
"""Selection: the vertices driven over parts as the program drives them, against a stable sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vertex import LAYOUTS, Layout, assert_bits, floats, in_order, run, word, words

from sparq_reference import exact, numerics

KEY_SCALE = np.float32(2.0**-16)  # keys come scaled, so that the highest bits of their patterns are 0


def test_group_keys() -> None:
    rng = np.random.default_rng(0)
    weights = rng.random((3, 128)).astype(np.float32)
    sums = np.array([3.0, 7.7, 1.0], np.float32)
    out = run(
        "GroupKeys",
        dict(weights=weights, sums=sums, keys=floats(128), states=words(6, 3)),
        groupSize=3,
        nLocal=128,
        first=32,
        end=96,
    )
    expected = floats(128)
    expected[32:96] = (numerics.group_sum((weights / sums[:, None])[None], 1)[0, 0] * KEY_SCALE)[32:96]
    assert_bits(out["keys"], expected)
    assert (out["states"] == 0).all()


@pytest.mark.parametrize("n_digits", [1, 2, 7, 12, 13, 32])
def test_sum_counts(n_digits: int) -> None:
    counts = np.arange(5 * n_digits, dtype=np.uint32).reshape(5, n_digits)
    out = run("SumCounts", dict(counts=counts, totals=words(n_digits)), nRows=5, nDigits=n_digits)
    assert out["totals"].tolist() == counts.sum(axis=0).tolist()


def select(layout: Layout, keys: np.ndarray, top_k: int, n_local: int, row_base: int = 10_000) -> np.ndarray:
    """Rows that the vertices select, driven pass by pass."""
    parts = range(layout.n_parts)
    filled = word(layout.filled)
    by_part = layout.spread(keys * KEY_SCALE, np.float32(0))
    n_pieces = layout.n_local // 32
    states = [np.zeros((6, 3), np.uint32) for _ in parts]
    totals = words(32)  # the first pass does not look
    for _ in range(6):
        counts = []
        for part in parts:
            out = run(
                "KeyHistogram",
                dict(
                    filled=filled, keys=by_part[part], totals=totals, states=states[part], counts=words(6, 32)
                ),
                topK=top_k,
                nRecent=n_local,
                **layout.settings(part),
            )
            states[part] = out["states"]
            counts.append(out["counts"])
        totals = np.sum(counts, axis=(0, 1), dtype=np.uint32)
    thresholds, ties = [], []
    for part in parts:
        out = run(
            "CountTies",
            dict(
                filled=filled,
                keys=by_part[part],
                totals=totals,
                states=states[part],
                threshold=words(2),
                ties=words(n_pieces),
            ),
            nRecent=n_local,
            **layout.settings(part),
        )
        thresholds.append(out["threshold"])
        ties.append(out["ties"])
    masks, counts = [], []
    for part in parts:
        out = run(
            "SelectMask",
            dict(
                filled=filled,
                keys=by_part[part],
                threshold=thresholds[part],
                allTies=in_order(layout, np.stack(ties), 32),
                mask=words(n_pieces),
                counts=words(n_pieces),
            ),
            topK=top_k,
            nRecent=n_local,
            nWaveParts=layout.n_wave_parts,
            **layout.settings(part),
        )
        masks.append(out["mask"])
        counts.append(out["counts"])
    all_masks = in_order(layout, np.stack(masks), 32)
    out = run(
        "ExpandMask",
        dict(
            filled=filled,
            masks=all_masks,
            counts=in_order(layout, np.stack(counts), 32),
            rows=words(top_k),
        ),
        topK=top_k,
        rowBase=row_base,
        nPieces=len(all_masks),
        nWaveParts=layout.n_wave_parts,
        **layout.common(),
    )
    return out["rows"].astype(np.int64) - row_base


KEYS = {
    "distinct": lambda rng, n: rng.permutation(n) / n,
    "ties": lambda rng, n: rng.integers(0, 3, n) / 2,
    "constant": lambda rng, n: np.full(n, 0.25),
    "zeros and one": lambda rng, n: (np.arange(n) == n // 2) * 1.0,
    "neighbours": lambda rng, n: (
        np.nextafter(np.float32(0.5), np.float32(1), dtype=np.float32)
        * (1 + rng.integers(0, 4, n) * 2.0**-23)
    ),
    "tiny": lambda rng, n: 2.0 ** -rng.integers(90, 102, n),
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: f"{x.n_parts}parts{x.filled}")
@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
def test_selection_equals_stable_sort(layout: Layout, kind: str, data: st.DataObject) -> None:
    n = layout.filled
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    top_k = data.draw(st.sampled_from(sorted({1, 2, 33, max(n - 1, 1), n, n + 5})), label="top_k")
    n_local = data.draw(st.sampled_from(sorted({0, 1, top_k // 2, top_k})), label="n_local")
    keys = KEYS[kind](rng, n).astype(np.float32)
    positions, counts = exact.key_topk(
        keys[None, None], np.ones((1, 1), np.float32), n_kv_heads=1, top_k=top_k, n_local=n_local
    )
    rows = select(layout, keys, top_k, n_local)
    np.testing.assert_array_equal(rows[: counts[0]], positions[0, 0, : counts[0]])
    assert (rows[counts[0] :] == 0).all()  # what fills up is a row that exists


def test_ties_go_to_the_lower_index_across_parts() -> None:
    layout = Layout(2, 128, 64, 2, 0, 0, 1, 256)
    keys = np.full(256, 0.5, np.float32)
    keys[[5, 200]] = 0.75
    assert select(layout, keys, 4, 0).tolist() == [0, 1, 5, 200]
    # an order that preferred higher indices would be seen
    assert select(layout, keys[::-1].copy(), 4, 0).tolist() != [5, 200, 254, 255]
